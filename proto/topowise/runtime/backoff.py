"""Delays between tries: exponential with full jitter, so that a thousand nodes do not retry at the same time.

https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/ ("full jitter"), with a minimum that prevents
an immediate retry; the defaults are those of client-go's reflector.

A token bucket: `burst` at once, `per_second` in the long run.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from topowise.runtime import clock


class Backoff:
    """Not thread-safe; each retried operation has its own Backoff."""

    def __init__(
        self,
        initial: float = 0.8,
        maximum: float = 30.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._initial = initial
        self._maximum = maximum
        self._uniform = uniform
        self.failures = 0

    def next_delay(self, at_least: float | None = None) -> float:
        """Returns seconds to wait before the next try; never below `at_least` (a server's Retry-After)."""
        ceiling = min(self._maximum, self._initial * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return max(self._uniform(self._initial / 2, ceiling), at_least or 0.0)

    def reset(self) -> None:
        """Starts again with the initial delay, after a success."""
        self.failures = 0


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
