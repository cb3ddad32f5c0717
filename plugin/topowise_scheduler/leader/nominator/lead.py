"""How many pods kube-scheduler takes while a nomination is on its way to it: those are left to it.

A nomination of a pod that it has taken already is of no use, and books room for a moment. How long a write takes and
how fast kube-scheduler is both change all the time, so what is measured is only what comes of it: each nomination that
came too late widens the lead, and half of it is gone after a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MOST: Final = 32
_HALF_LIFE_S: Final = 1.0


class Lead:
    """`clock` gives seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pods = 0.0
        self._at = clock()

    @property
    def pods(self) -> int:
        """So many of the next ones are left to kube-scheduler."""
        now = self._clock()
        self._pods *= 0.5 ** ((now - self._at) / _HALF_LIFE_S)
        self._at = now
        return int(self._pods + 0.5)

    def widen(self) -> None:
        """One came too late."""
        self._pods = min(_MOST, self._pods + 1)
