"""Who leaves which node so that one more of the wanted pods fits there: the fewest, each to another node at once.

Sets of one pod are tried on all nodes, then of two, and so on; amounts rule out most sets (bound.py) before the model
is asked. After `MAX_SETS` of them the preemption search, which finds small sets among many pods without trying all,
is asked about the most promising nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from topowise_scheduler import preemption
from topowise_scheduler.defrag.bound import Bound
from topowise_scheduler.defrag.movable import Movable
from topowise_scheduler.defrag.scene import Scene
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.preemption import Running

MAX_SETS: Final = 100_000
_MAX_TRIALS: Final = 4_000
_MAX_SEARCHED_NODES: Final = 16
_MAX_PLACEMENTS: Final = 64
_NOBODY: Final = -1
Progress = Callable[[str], None]
Steps = Generator[None, None, Scene | None]
"""A search in steps of some milliseconds, and what it comes to."""


class _Node:
    """A node as it is in a scene, the pods that may leave it, and how many must."""

    def __init__(self, name: str, states: tuple[Kubelet, ...], scene: Scene, movers: Sequence[Movable]) -> None:
        self.name = name
        self.states = states
        state = states[0]
        here = {mover.uid: mover for mover in movers if mover.uid in state.active}
        self.bound = Bound(state, scene.cluster.asked.record.view(state), here)
        # The least important first, and of these those that began last.
        relevant = sorted((here[uid] for uid in self.bound.relevant), key=lambda one: one.record.started, reverse=True)
        self.movers = sorted(relevant, key=lambda one: one.record.priority)
        self.least = self.bound.least()


class Search:
    """Opens room for one wanted pod after the other."""

    def __init__(self, movers: Mapping[str, Sequence[Movable]], progress: Progress) -> None:
        self._movers = movers
        self._progress = progress
        self._nodes: dict[str, _Node] = {}
        self._sets = MAX_SETS
        self._trials = _MAX_TRIALS
        self.fewest_leaving: int | None = None
        """The fewest pods whose leaving makes room on some node, wherever they go; None if none were found."""

    @property
    def tried_all(self) -> bool:
        """Whether no set was left out."""
        return self._sets > 0 and self._trials > 0

    def open(self, scene: Scene, most: int) -> Steps:
        """The scene with one more of the wanted pods, and the fewest pods moved for it; None if there is no way."""
        self.fewest_leaving = None
        nodes = []
        for name in self._movers:
            if (node := self._node(scene, name)) is not None:
                nodes.append(node)
            yield
        for size in range(1, most + 1):
            able = [node for node in nodes if max(1, node.least or 0) <= size <= len(node.movers)]
            for node in sorted(able, key=lambda one: (one.least or 0, one.name)):
                found = yield from self._with_leaving(scene, node, size)
                if found is not None:
                    return found
            if not self.tried_all:
                return (yield from self._searched(scene, nodes, most))
            self._progress(f"no {size} pods to move found, trying {size + 1}")
        return None

    def _node(self, scene: Scene, name: str) -> _Node | None:
        """None if the node would not take the wanted pod whoever left it."""
        homes = scene.cluster.homes(scene.cluster.wanted, scene.cluster.asked.record)
        if name not in homes.thinkable_set:
            return None
        states = scene.states(name)
        node = self._nodes.get(name)
        if node is None or node.states is not states:
            movers = [mover for mover in self._movers[name] if mover.uid not in scene.moved]
            node = self._nodes[name] = _Node(name, states, scene, movers)
        return None if node.least is None else node

    def _with_leaving(self, scene: Scene, node: _Node, size: int) -> Steps:
        for leaving in combinations(node.movers, size):
            self._sets -= 1
            if not self.tried_all:
                return None
            if node.bound.may_do([one.uid for one in leaving]) and self._fits_without(scene, node, leaving):
                self.fewest_leaving = min(size, self.fewest_leaving or size)
                yield
                found = self._moved(scene, node, leaving)
                if found is not None:
                    return found
            yield
        return None

    def _fits_without(self, scene: Scene, node: _Node, leaving: Sequence[Movable]) -> bool:
        record = scene.cluster.asked.record
        gone = [one.record.needs.requests for one in leaving if one.record.needs is not None]
        if not scene.has_sums(scene.cluster.wanted, node.name, gone):
            return False
        for state in node.states:
            self._trials -= 1
            copy = _without(state, leaving)
            if not trial(copy, record.view(copy)).admission.admitted:
                return False
        return scene.are_near(record, node.name, (_without(state, leaving) for state in node.states))

    def _moved(self, scene: Scene, node: _Node, leaving: Sequence[Movable]) -> Scene | None:
        """The scene after these have gone elsewhere and a wanted pod has come."""
        left = [_MAX_PLACEMENTS]
        for moved in _placements(scene, node.name, leaving, left):
            found = moved.place(node.name)
            if found is not None:
                return found
        return None

    def _searched(self, scene: Scene, nodes: Sequence[_Node], most: int) -> Steps:
        """The best of what the preemption search finds on the most promising nodes."""
        promising = sorted(nodes, key=lambda one: (one.least or 0, one.name))[:_MAX_SEARCHED_NODES]
        best: Scene | None = None
        for node in promising:
            self._progress(f"looking for pods to move from {node.name}")
            pod = scene.cluster.asked.record.view(node.states[0])
            by_uid = {mover.uid: mover for mover in node.movers if self._has_home(scene, mover, node.name)}
            # All alike: then the fewest are the least harm.
            running = [Running(uid, _NOBODY, one.record.started) for uid, one in by_uid.items()]
            yield
            choice = preemption.choose(node.states[0], pod, 0, running, (), {})
            if choice is None or not 0 < len(choice.victims) <= most:
                continue
            leaving = [by_uid[uid] for uid in choice.victims]
            if self._fits_without(scene, node, leaving) and (found := self._moved(scene, node, leaving)) is not None:
                best, most = found, len(leaving) - 1
        return best

    def _has_home(self, scene: Scene, mover: Movable, origin: str) -> bool:
        return any(name != origin for name in scene.homes(mover))


def _without(state: Kubelet, leaving: Sequence[Movable]) -> Kubelet:
    copy = state.fork()
    for one in leaving:
        copy.remove(one.uid)
    return copy


def _placements(scene: Scene, origin: str, leaving: Sequence[Movable], left: list[int]) -> Iterator[Scene]:
    """Every way in which these may go to other nodes, the most suitable first; `left` counts what may be tried."""
    if not leaving:
        yield scene
        return
    for name in scene.homes(leaving[0]):
        if name == origin:
            continue
        if left[0] <= 0:
            return
        left[0] -= 1
        after = scene.move(leaving[0], origin, name)
        if after is not None:
            yield from _placements(after, origin, leaving[1:], left)
