"""CPU time of the event loop's thread that one kind of work may take.

Both daemons do everything in one thread. Work that strangers can ask for therefore gets a share of that thread, and the
share is measured in CPU time: a machine that is busy with other processes does not use the share up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


class Allowance:
    """A token bucket of CPU seconds: `burst` at once, `share` of the time in the long run."""

    def __init__(self, share: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._at = clock()

    def charge(self, seconds: float) -> None:
        """Takes CPU seconds that were used; the bucket may go below zero."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._share) - seconds
        self._at = now

    def delay(self) -> float:
        """Seconds until the bucket is above zero; 0.0 if it is now."""
        self.charge(0.0)
        return max(0.0, -self._left / self._share)


class Paced(Awaitable[Result]):
    """A coroutine whose steps are charged to an allowance, and wait while the allowance is used up.

    Only the coroutine's own steps are charged, not what the loop does between two steps.
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, Result],
        allowance: Allowance,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._work = work
        self._allowance = allowance
        self._cpu = cpu

    def __await__(self) -> Generator[Any, Any, Result]:
        """As the coroutine; exceptions, a cancellation among them, go through to it."""
        raised: BaseException | None = None
        while True:
            started = self._cpu()
            try:
                waited = self._work.send(None) if raised is None else self._work.throw(raised)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self._allowance.charge(self._cpu() - started)
            raised = None
            try:
                yield waited
                if delay := self._allowance.delay():
                    yield from asyncio.sleep(delay).__await__()
            except BaseException as exc:
                raised = exc
