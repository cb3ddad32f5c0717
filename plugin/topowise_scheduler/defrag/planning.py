"""The plan: how many of the wanted pods fit as it is, and the moves that make room for the others.

Room is opened for one wanted pod after the other. That is the least for one of them where `search` has tried every
set; for several it need not be, and a pod that is moved may need another to make room for it. So where the cluster is
small every shorter plan is tried as well, and only then, or where one pod is asked for, a plan is said to be the least.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TypeVar

import msgspec

from topowise_scheduler.answers import Answers
from topowise_scheduler.defrag.exhaustive import Exhaustive
from topowise_scheduler.defrag.movable import Movable
from topowise_scheduler.defrag.scene import Change, Cluster, Scene, Step
from topowise_scheduler.defrag.search import Progress, Search
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.presentation.explain.cluster_view import ClusterView

_Found = TypeVar("_Found")


class Plan(msgspec.Struct, frozen=True):
    """Steps in the order in which they must be done, or `why` there are none.

    `already` of the wanted pods fit as it is. `is_least`: no plan has fewer moves; else there may be one.
    """

    steps: Sequence[Step]
    already: int
    is_least: bool
    why: str = ""
    changes: Sequence[Change] = ()

    @property
    def moves(self) -> int:
        """How many pods are moved."""
        return sum(step.kind == "move" for step in self.steps)


def plan(
    answers: Answers,
    view: ClusterView,
    wanted: Pod,
    count: int,
    movers: Sequence[Movable],
    most: int,
    *,
    progress: Progress = lambda _: None,
) -> Plan:
    """The fewest moves, at most `most`, after which `count` such pods fit. Raises ParseError for one that cannot be
    read."""
    cluster = Cluster(answers, view, wanted, view.names)
    start = Scene(cluster)
    scene = start.fill(count)
    already = scene.arrived
    if already >= count:
        return _planned(scene, already, is_least=True)
    by_node = _by_node(movers)
    search = Search(by_node, progress)
    found, reached = finished(_opened(scene, search, count, most, progress))
    moves = most + 1 if found is None else len(found.moved)
    if found is not None and _is_least(search, moves, missing=count - already):
        return _planned(found, already, is_least=True)
    exhaustive = Exhaustive(by_node, count)
    shorter = exhaustive.find(start, moves - 1)
    if shorter is not None:
        return _planned(shorter, already, is_least=True)
    if found is not None:
        return _planned(found, already, is_least=exhaustive.shortest >= moves)
    tried_all = exhaustive.shortest > most
    return Plan((), already, is_least=tried_all, why=_why(cluster, search, reached, count, most, tried_all=tried_all))


def one_more(
    answers: Answers,
    view: ClusterView,
    wanted: Pod,
    count: int,
    movers: Sequence[Movable],
    most: int,
    names: Sequence[str],
) -> Generator[None, None, Plan]:
    """A plan for one more than fit on these nodes as it is, none if `count` do; in steps of some milliseconds."""
    cluster = Cluster(answers, view, wanted, names)
    scene = Scene(cluster).fill(count)
    if scene.arrived >= count:
        return Plan((), scene.arrived, is_least=True)
    yield
    search = Search(_by_node(movers), lambda _: None)
    found = yield from search.open(scene, most)
    if found is None:
        why = _why(cluster, search, scene.arrived, count, most, tried_all=False)
        return Plan((), scene.arrived, is_least=False, why=why)
    return Plan(found.steps, scene.arrived, is_least=_is_least(search, len(found.moved), missing=1))


def finished(steps: Generator[None, None, _Found]) -> _Found:
    """What the steps come to, all done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: _Found = end.value
            return found


def _planned(scene: Scene, already: int, *, is_least: bool) -> Plan:
    return Plan(scene.steps, already, is_least, changes=tuple(scene.changes()))


def _opened(
    scene: Scene, search: Search, count: int, most: int, progress: Progress
) -> Generator[None, None, tuple[Scene | None, int]]:
    """The scene with all wanted pods, None if some find no room; and how many do."""
    while scene.arrived < count:
        opened = yield from search.open(scene, most - len(scene.moved))
        if opened is None:
            return None, scene.arrived
        # What was moved may have made room for more than one.
        scene = opened.fill(count)
        progress(f"room for {scene.arrived} of {count} with {len(scene.moved)} moves")
    return scene, scene.arrived


def _is_least(search: Search, moves: int, *, missing: int) -> bool:
    """Nobody can make room for a pod with fewer moves than pods must leave its node; with one move more than that,
    pods could also make room for each other, so that such a plan is no longer than another."""
    fewest = search.fewest_leaving
    return moves == 1 or (missing == 1 and search.tried_all and fewest is not None and moves <= fewest + 1)


def _by_node(movers: Sequence[Movable]) -> Mapping[str, Sequence[Movable]]:
    found: dict[str, list[Movable]] = {}
    for mover in movers:
        found.setdefault(mover.record.node, []).append(mover)
    return found


def _why(cluster: Cluster, search: Search, reached: int, count: int, most: int, *, tried_all: bool) -> str:
    so_far = f"room for {reached} of {count}: " if reached else ""
    if not cluster.homes(cluster.wanted, cluster.asked.record).thinkable:
        return f"{so_far}no node would take such a pod whatever left it"
    moves = f"{most} move{'' if most == 1 else 's'}"
    if search.fewest_leaving is not None:
        reason = "those whose leaving would make room fit on no other node"
    else:
        reason = "on no node would it make room if pods that may be moved left"
    certain = "" if tried_all or search.tried_all else "; not every plan was tried"
    return f"{so_far}with up to {moves} there is no more: {reason}{certain}"
