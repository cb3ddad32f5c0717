"""How often nominations are honoured, by what the pods ask for: kinds of pods that kube-scheduler places elsewhere are
left to it for a while.

kube-scheduler looks at more than is looked at here (a pod's anti-affinity to a newcomer, plug-ins of its own), and a
nomination that it does not honour costs more than none.

Invariant: a kind that is left alone is tried again, after a pause that doubles as long as it is to no avail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from topowise.bounded import Bounded

Key = tuple[bytes, bytes]

_FEWEST: Final = 20
# Then both counts are halved, so that what was long ago counts little.
_MOST: Final = 100
_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 3600.0
_KIND_BYTES: Final = 2 << 20


class _Kind(msgspec.Struct):
    bound: int = 0
    honoured: int = 0
    until: float = float("-inf")
    pause: float = _FIRST_PAUSE_S


class Honoured:
    """By kind of pod. `clock` gives seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: Bounded[Key, _Kind] = Bounded(_KIND_BYTES, lambda key, _: sum(map(len, key)))

    @property
    def left_alone(self) -> int:
        """How many kinds are left to kube-scheduler now."""
        now = self._clock()
        return sum(one.until > now for _, one in self._kinds.items())

    def is_left_alone(self, key: Key) -> bool:
        """Whether kube-scheduler has placed too many such pods elsewhere."""
        kind = self._kinds.get(key)
        return kind is not None and kind.until > self._clock()

    def count(self, key: Key, *, is_honoured: bool) -> bool:
        """A pod of this kind was bound, where it was nominated or elsewhere. True if that was the one too many."""
        kind = self._kinds.once(key, _Kind)
        kind.bound, kind.honoured = kind.bound + 1, kind.honoured + is_honoured
        if kind.bound >= _FEWEST and 2 * kind.honoured < kind.bound:
            kind.until = self._clock() + kind.pause
            kind.pause = min(_LONGEST_PAUSE_S, 2 * kind.pause)
            kind.bound = kind.honoured = 0
            return True
        if kind.bound >= _MOST:
            kind.bound, kind.honoured, kind.pause = kind.bound // 2, kind.honoured // 2, _FIRST_PAUSE_S
        return False
