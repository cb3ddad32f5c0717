"""Searches the fewest pods that must leave a node so that another target pod fits there, each placed on another node.

Single pods of all nodes are tried first, then pairs, and so on. Amounts exclude most sets (bound.py) before the model
decides. After `MAX_SETS` sets, the preemption search is used on the most promising nodes: it finds small sets among
many pods without trying all sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, Literal

import msgspec

from topowise_scheduler.overlay import preemption
from topowise_scheduler.overlay.defrag.bound import Bound
from topowise_scheduler.overlay.defrag.movable import Movable
from topowise_scheduler.overlay.defrag.scene import Change, Cluster, Scene, Step
from topowise_scheduler.overlay.overlay import NodeCopy, Placement
from topowise_scheduler.overlay.preemption import Running
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts.kube_scheduler import Pod

MAX_SETS: Final = 100_000
_MAX_TRIALS: Final = 4_000
_MAX_SEARCHED_NODES: Final = 16
_MAX_PLACEMENTS: Final = 64
_EQUAL_PRIORITY: Final = -1
Progress = Callable[[str], None]


class _Node:
    """A node in a scene, the pods that may leave it, and how many must leave at least."""

    def __init__(self, name: str, copy: NodeCopy, scene: Scene, movers: Sequence[Movable]) -> None:
        self.name = name
        self.copy = copy
        self.state = state = copy.states[0]
        here = {mover.uid: mover for mover in movers if mover.uid in state.active}
        self.bound = Bound(state, scene.cluster.target.view(state), here)
        # The lowest priority first, and of equal priority the pod that started last.
        relevant = sorted(
            (here[uid] for uid in self.bound.relevant), key=lambda mover: mover.record.status.started, reverse=True
        )
        self.movers = sorted(relevant, key=lambda mover: mover.record.priority)
        self.least = self.bound.least()


class Search:
    """Makes room for the target pods in turn."""

    def __init__(self, movers: Mapping[str, Sequence[Movable]], progress: Progress) -> None:
        self._movers = movers
        self._progress = progress
        self._nodes: dict[str, _Node] = {}
        self._sets = MAX_SETS
        self._trials = _MAX_TRIALS
        self.fewest_leaving: int | None = None
        """The fewest pods whose leaving makes room on a node, wherever they go; None if no such pods were found."""

    @property
    def tried_all(self) -> bool:
        """Returns whether every set of pods was tried."""
        return self._sets > 0 and self._trials > 0

    def open(self, scene: Scene, most: int) -> Scene | None:
        """Returns the scene with another target pod after the fewest moves, None if no moves make room."""
        self.fewest_leaving = None
        nodes = [node for name in self._movers if (node := self._node(scene, name)) is not None]
        for size in range(1, most + 1):
            able = [node for node in nodes if max(1, node.least or 0) <= size <= len(node.movers)]
            for node in sorted(able, key=lambda node: (node.least or 0, node.name)):
                after = self._with_leaving(scene, node, size)
                if after is not None:
                    return after
            if not self.tried_all:
                return self._best_by_preemption(scene, nodes, most)
            self._progress(f"no {size} pods to move found, trying {size + 1}")
        return None

    def _node(self, scene: Scene, name: str) -> _Node | None:
        """Returns the node, None if it would not take the target pod whatever pods left it."""
        if name not in scene.cluster.homes.possible:
            return None
        copy = scene.overlay.node(name)
        node = self._nodes.get(name)
        if node is None or node.copy is not copy:
            movers = [mover for mover in self._movers[name] if mover.uid not in scene.moved]
            node = self._nodes[name] = _Node(name, copy, scene, movers)
        return None if node.least is None else node

    def _with_leaving(self, scene: Scene, node: _Node, size: int) -> Scene | None:
        for leaving in combinations(node.movers, size):
            self._sets -= 1
            if not self.tried_all:
                return None
            if node.bound.may_do([mover.uid for mover in leaving]) and self._fits_without(scene, node, leaving):
                self.fewest_leaving = min(size, self.fewest_leaving or size)
                after = self._moved(scene, node, leaving)
                if after is not None:
                    return after
        return None

    def _fits_without(self, scene: Scene, node: _Node, leaving: Sequence[Movable]) -> bool:
        self._trials -= len(node.copy.states)
        without = scene.overlay.remove([mover.record for mover in leaving], node.name)
        return isinstance(without.place(scene.cluster.target, node.name), Placement)

    def _moved(self, scene: Scene, node: _Node, leaving: Sequence[Movable]) -> Scene | None:
        """Returns the scene after these pods were moved and a target pod was placed, None if that fails."""
        left = [_MAX_PLACEMENTS]
        for moved in _placements(scene, node.name, leaving, left):
            after = moved.place(node.name)
            if after is not None:
                return after
        return None

    def _best_by_preemption(self, scene: Scene, nodes: Sequence[_Node], most: int) -> Scene | None:
        """Returns the best scene that the preemption search finds on the most promising nodes."""
        promising = sorted(nodes, key=lambda node: (node.least or 0, node.name))[:_MAX_SEARCHED_NODES]
        best: Scene | None = None
        for node in promising:
            self._progress(f"looking for pods to move from {node.name}")
            pod = scene.cluster.target.view(node.state)
            by_uid = {mover.uid: mover for mover in node.movers if self._has_candidate(scene, mover, node.name)}
            # Equal priorities, so that the fewest pods are the least harm.
            running = [Running(uid, _EQUAL_PRIORITY, mover.record.status.started) for uid, mover in by_uid.items()]
            choice = preemption.choose(node.state, pod, 0, running, (), {})
            if choice is None or not 0 < len(choice.victims) <= most:
                continue
            leaving = [by_uid[uid] for uid in choice.victims]
            if self._fits_without(scene, node, leaving) and (after := self._moved(scene, node, leaving)) is not None:
                best, most = after, len(leaving) - 1
        return best

    def _has_candidate(self, scene: Scene, mover: Movable, origin: str) -> bool:
        return any(name != origin for name in scene.candidates(mover))


def _placements(scene: Scene, origin: str, leaving: Sequence[Movable], left: list[int]) -> Iterator[Scene]:
    """Yields scenes with these pods on other nodes, the best nodes first; `left` counts the remaining attempts."""
    if not leaving:
        yield scene
        return
    for name in scene.candidates(leaving[0]):
        if name == origin:
            continue
        if left[0] <= 0:
            return
        left[0] -= 1
        after = scene.move(leaving[0], origin, name)
        if after is not None:
            yield from _placements(after, origin, leaving[1:], left)


class Exhaustive:
    """Tries every plan, the shortest first, for small clusters; a plan may also move pods to make room for moved pods.

    Moves of all pods to all nodes in every order are tried, until `count` target pods fit.
    """

    def __init__(self, movers: Mapping[str, Sequence[Movable]], count: int) -> None:
        self._movers = [(mover, name) for name, here in movers.items() for mover in here]
        self._count = count
        self._left = _MAX_TRIALS
        self.shortest = 1
        """All plans with fewer moves were tried and failed."""

    def find(self, scene: Scene, most: int) -> Scene | None:
        """Returns the scene of the shortest plan of at most `most` moves, None if no plan was found."""
        while self.shortest <= most and len(self._movers) * self.shortest < self._left:
            goal = self._extended(scene, self.shortest, "")
            if goal is not None:
                return goal
            if self._left <= 0:
                return None
            self.shortest += 1
        return None

    def _extended(self, scene: Scene, moves: int, last: str) -> Scene | None:
        if not moves:
            self._left -= 1
            filled = scene.fill(self._count)
            return filled if filled.arrived >= self._count else None
        goal = self._after_placing(scene, moves, last)
        if goal is not None:
            return goal
        for mover, name in self._movers:
            if mover.uid == last:
                continue
            origin = scene.moved.get(mover.uid, name)
            for target in scene.cluster.classes.of(mover.pod, mover.replacement).possible:
                if target == origin:
                    continue
                self._left -= 1
                if self._left <= 0:
                    return None
                after = scene.move(mover, origin, target)
                goal = None if after is None else self._extended(after, moves - 1, mover.uid)
                if goal is not None:
                    return goal
        return None

    def _after_placing(self, scene: Scene, moves: int, last: str) -> Scene | None:
        """Places a target pod before the next move: with several target pods the order can matter."""
        if scene.arrived + 1 >= self._count:
            return None
        for name in scene.target_nodes():
            self._left -= 1
            if self._left <= 0:
                return None
            after = scene.place(name)
            goal = None if after is None else self._extended(after, moves, last)
            if goal is not None:
                return goal
        return None


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
    for a pod that cannot be read.

    Room is made for the target pods in turn. For a single pod the plan is the shortest if `Search` has tried every set
    of pods. For several pods it need not be, and a moved pod may need another move to make room for it. So in a small
    cluster all shorter plans are tried as well; only in these two cases a plan is called the shortest.
    """
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
