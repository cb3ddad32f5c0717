"""A token bucket: `burst` at once, `per_second` in the long run."""

from __future__ import annotations

from collections.abc import Callable

from topowise.runtime import clock


class TokenBucket:
    """Not thread-safe. `clock` is monotonic."""

    __slots__ = ("_burst", "_clock", "_per_second", "_tokens", "at")

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = clock.monotonic) -> None:
        self._per_second = per_second
        self._burst = self._tokens = burst
        self._clock = clock
        self.at = clock()
        """The time of the last call."""

    def take(self, amount: float = 1.0) -> None:
        """Takes tokens, also if fewer are left."""
        self.left()
        self._tokens -= amount

    def left(self) -> float:
        """Returns the tokens; below 0 if more were taken."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self.at) * self._per_second)
        self.at = now
        return self._tokens

    def delay(self) -> float:
        """Returns seconds until the bucket is no longer below 0."""
        return max(0.0, -self.left() / self._per_second)
