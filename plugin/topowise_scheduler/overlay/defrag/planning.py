"""Plans moves: how many target pods fit as it is, and the moves that make room for the remaining ones.

Room is made for the target pods in turn. For a single pod the plan is the shortest if `search` has tried every set of
pods. For several pods it need not be, and a moved pod may need another move to make room for it. So in a small cluster
all shorter plans are tried as well; only in these two cases a plan is called the shortest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from topowise_scheduler.overlay.defrag.movable import Movable
from topowise_scheduler.overlay.defrag.scene import Change, Cluster, Scene, Step
from topowise_scheduler.overlay.defrag.search import Exhaustive, Progress, Search
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts.kube_scheduler import Pod


class Shortfall(msgspec.Struct, frozen=True):
    """Why at most `most` moves make no room for all target pods, but for `reached`: no node would take such a pod
    whatever pods left it, none would have room if all movable pods left it, or the pods that would have to leave fit
    nowhere else. `is_certain`: every plan was tried."""

    reason: Literal["no node", "no room", "nowhere else"]
    reached: int
    most: int
    is_certain: bool = True


class Plan(msgspec.Struct, frozen=True):
    """Steps in execution order, or `why` there are none.

    `already`: target pods that fit as it is. `is_least`: no plan has fewer moves; otherwise such a plan may exist.
    """

    steps: Sequence[Step]
    already: int
    is_least: bool
    why: Shortfall | None = None
    changes: Sequence[Change] = ()

    @property
    def moves(self) -> int:
        """Returns the number of moves."""
        return sum(step.kind == "move" for step in self.steps)


def plan(
    trial: Trial,
    target: Pod,
    count: int,
    movers: Sequence[Movable],
    most: int,
    *,
    progress: Progress = lambda _: None,
) -> Plan:
    """Returns the plan with the fewest moves, at most `most`, after which `count` target pods fit. Raises ParseError
    for a pod that cannot be read."""
    cluster = Cluster(trial, target)
    start = Scene(cluster, cluster.overlay)
    scene = start.fill(count)
    already = scene.arrived
    if already >= count:
        return _planned(scene, already, is_least=True)
    by_node = _by_node(movers)
    search = Search(by_node, progress)
    goal, reached = _opened(scene, search, count, most, progress)
    moves = most + 1 if goal is None else len(goal.moved)
    if goal is not None and _is_least(search, moves, missing=count - already):
        return _planned(goal, already, is_least=True)
    exhaustive = Exhaustive(by_node, count)
    shorter = exhaustive.find(start, moves - 1)
    if shorter is not None:
        return _planned(shorter, already, is_least=True)
    if goal is not None:
        return _planned(goal, already, is_least=exhaustive.shortest >= moves)
    tried_all = exhaustive.shortest > most
    return Plan((), already, is_least=tried_all, why=_why(cluster, search, reached, most, tried_all=tried_all))


def _planned(scene: Scene, already: int, *, is_least: bool) -> Plan:
    return Plan(scene.steps, already, is_least, changes=tuple(scene.changes()))


def _opened(scene: Scene, search: Search, count: int, most: int, progress: Progress) -> tuple[Scene | None, int]:
    """Returns the scene with all target pods, None if some do not fit, and the number of pods that fit."""
    while scene.arrived < count:
        opened = search.open(scene, most - len(scene.moved))
        if opened is None:
            return None, scene.arrived
        # The moves may have made room for several pods.
        scene = opened.fill(count)
        progress(f"room for {scene.arrived} of {count} with {len(scene.moved)} moves")
    return scene, scene.arrived


def _is_least(search: Search, moves: int, *, missing: int) -> bool:
    """Returns whether no plan has fewer moves.

    At least `fewest_leaving` pods must leave a node. A plan that also moves pods to make room for moved pods has at
    least one move more, so a plan of that many moves is a shortest plan too.
    """
    fewest = search.fewest_leaving
    return moves == 1 or (missing == 1 and search.tried_all and fewest is not None and moves <= fewest + 1)


def _by_node(movers: Sequence[Movable]) -> Mapping[str, Sequence[Movable]]:
    by_node: dict[str, list[Movable]] = {}
    for mover in movers:
        by_node.setdefault(mover.record.node, []).append(mover)
    return by_node


def _why(cluster: Cluster, search: Search, reached: int, most: int, *, tried_all: bool) -> Shortfall:
    if not cluster.homes.possible:
        return Shortfall("no node", reached, most)
    has_leaving = search.fewest_leaving is not None
    return Shortfall("nowhere else" if has_leaving else "no room", reached, most, tried_all or search.tried_all)
