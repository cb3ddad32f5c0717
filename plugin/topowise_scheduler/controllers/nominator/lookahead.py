"""How many pods at the head of the queue the nominator skips, because kube-scheduler reaches them before a nomination.

A nomination that arrives after kube-scheduler has taken the pod is useless and books resources for a moment. Write
latency and kube-scheduler's rate change all the time, so only the outcome is measured: each late nomination widens the
lookahead by a pod, and the lookahead halves every second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MAX_PODS: Final = 32
_HALF_LIFE_S: Final = 1.0


class Lookahead:
    """`clock` gives seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pods = 0.0
        self._at = clock()

    @property
    def pods(self) -> int:
        """Returns how many pods at the head of the queue are left to kube-scheduler."""
        now = self._clock()
        self._pods *= 0.5 ** ((now - self._at) / _HALF_LIFE_S)
        self._at = now
        return int(self._pods + 0.5)

    def widen(self) -> None:
        """Records a nomination that came too late."""
        self._pods = min(_MAX_PODS, self._pods + 1)
