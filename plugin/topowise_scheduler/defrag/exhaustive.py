"""Every plan, the shortest first: for small clusters, where pods may also make room for pods that are moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise_scheduler.defrag.movable import Movable
from topowise_scheduler.defrag.scene import Scene

MAX_TRIALS: Final = 4_000


class Exhaustive:
    """Moves of any pods to any nodes, one after the other, until `count` wanted pods fit."""

    def __init__(self, movers: Mapping[str, Sequence[Movable]], count: int) -> None:
        self._movers = [(mover, name) for name, here in movers.items() for mover in here]
        self._count = count
        self._left = MAX_TRIALS
        self.shortest = 1
        """Every plan with fewer moves was tried, and none did."""

    def find(self, scene: Scene, most: int) -> Scene | None:
        """The shortest plan of at most so many moves; None if there is none, or trials have run out."""
        while self.shortest <= most and len(self._movers) * self.shortest < self._left:
            found = self._extended(scene, self.shortest, "")
            if found is not None:
                return found
            if self._left <= 0:
                return None
            self.shortest += 1
        return None

    def _extended(self, scene: Scene, moves: int, last: str) -> Scene | None:
        if not moves:
            self._left -= 1
            filled = scene.fill(self._count)
            return filled if filled.arrived >= self._count else None
        found = self._with_one_more(scene, moves, last)
        if found is not None:
            return found
        for mover, name in self._movers:
            if mover.uid == last:
                continue
            origin = scene.moved.get(mover.uid, name)
            for target in scene.cluster.homes(mover.pod, mover.record).thinkable:
                if target == origin:
                    continue
                self._left -= 1
                if self._left <= 0:
                    return None
                after = scene.move(mover, origin, target)
                found = None if after is None else self._extended(after, moves - 1, mover.uid)
                if found is not None:
                    return found
        return None

    def _with_one_more(self, scene: Scene, moves: int, last: str) -> Scene | None:
        """Where several are wanted it can matter that one of them is there before a pod is moved."""
        if scene.arrived + 1 >= self._count:
            return None
        for name in scene.wanted_homes():
            self._left -= 1
            if self._left <= 0:
                return None
            after = scene.place(name)
            found = None if after is None else self._extended(after, moves, last)
            if found is not None:
                return found
        return None
