"""Tries every plan, the shortest first, for small clusters; a plan may also move pods to make room for moved pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise_scheduler.overlay.defrag.movable import Movable
from topowise_scheduler.overlay.defrag.scene import Scene

MAX_TRIALS: Final = 4_000


class Exhaustive:
    """Moves of all pods to all nodes in every order, until `count` target pods fit."""

    def __init__(self, movers: Mapping[str, Sequence[Movable]], count: int) -> None:
        self._movers = [(mover, name) for name, here in movers.items() for mover in here]
        self._count = count
        self._left = MAX_TRIALS
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
