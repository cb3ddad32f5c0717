"""Simulated time: what is to happen, in the order in which it does."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Timeline:
    """Calling it tells the time in seconds, as a clock does."""

    def __init__(self) -> None:
        self._now = 0.0
        self._numbers = count()
        self._ahead: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self._now

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Of what happens at the same time, what was asked for first comes first."""
        heappush(self._ahead, (self._now + seconds, next(self._numbers), do))

    def run(self, until: float) -> None:
        """Everything that happens before then."""
        while self._ahead and self._ahead[0][0] <= until:
            self._now, _, do = heappop(self._ahead)
            do()
        self._now = until
