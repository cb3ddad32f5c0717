"""Stops nominating pod classes whose nominations kube-scheduler does not honour, for a pause.

kube-scheduler checks more than the nominator does: anti-affinity of running pods to the new pod, plug-ins of its own. A
nomination that kube-scheduler does not honour costs more than none.

Invariant: a stopped pod class is nominated again after a pause, which doubles while nominations are not honoured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from topowise.bounded import Bounded

Key = tuple[bytes, bytes]
"""A pod class: shape and scheduling constraints."""

_MIN_BOUND: Final = 20
# Above this count both counts are halved, so that old outcomes lose weight.
_MAX_BOUND: Final = 100
_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 3600.0
_CLASS_BYTES: Final = 2 << 20


class _Outcomes(msgspec.Struct):
    """Outcomes of one pod class, which is stopped `until` a time (seconds, monotonic)."""

    bound: int = 0
    honoured: int = 0
    until: float = float("-inf")
    pause: float = _FIRST_PAUSE_S


class NominationBackoff:
    """`clock` gives seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._outcomes: Bounded[Key, _Outcomes] = Bounded(_CLASS_BYTES, lambda key, _: sum(map(len, key)))

    @property
    def stopped(self) -> int:
        """Returns how many pod classes are not nominated now."""
        now = self._clock()
        return sum(outcomes.until > now for _, outcomes in self._outcomes.items())

    def is_stopped(self, key: Key) -> bool:
        """Returns whether kube-scheduler has placed too many pods of the class on other nodes."""
        outcomes = self._outcomes.get(key)
        return outcomes is not None and outcomes.until > self._clock()

    def count(self, key: Key, *, is_honoured: bool) -> bool:
        """Counts a bound pod, on its nominated node or another node. Returns whether this pod stops its class."""
        outcomes = self._outcomes.once(key, _Outcomes)
        outcomes.bound, outcomes.honoured = outcomes.bound + 1, outcomes.honoured + is_honoured
        if outcomes.bound >= _MIN_BOUND and 2 * outcomes.honoured < outcomes.bound:
            outcomes.until = self._clock() + outcomes.pause
            outcomes.pause = min(_LONGEST_PAUSE_S, 2 * outcomes.pause)
            outcomes.bound = outcomes.honoured = 0
            return True
        if outcomes.bound >= _MAX_BOUND:
            outcomes.bound, outcomes.honoured = outcomes.bound // 2, outcomes.honoured // 2
            outcomes.pause = _FIRST_PAUSE_S
        return False
