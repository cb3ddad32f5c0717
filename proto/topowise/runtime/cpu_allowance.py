"""Limits the CPU time of the event loop's thread for a kind of work.

Both daemons do everything in a single thread. So work that any client can request gets a share of that thread. The
share is measured in CPU time: load of other processes on the machine does not use it up.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from topowise.runtime import clock
from topowise.runtime.backoff import TokenBucket

Result = TypeVar("Result")


class Allowance:
    """A token bucket of CPU seconds: `share` of the time in the long run, and `burst` seconds beyond that. While burst
    is left, the work gets `peak` of the time."""

    def __init__(
        self, share: float, burst: float, *, peak: float = 1.0, clock: Callable[[], float] = clock.monotonic
    ) -> None:
        self._bucket = TokenBucket(share, burst, clock)
        self._rest = 1 / peak - 1
        self._rested_at = self._bucket.at
        self._numbers = itertools.count()
        self._is_taken = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    def number(self) -> int:
        """Returns the number of a new piece of work: the lower number gets the first turn."""
        return next(self._numbers)

    async def take_turn(self, number: int) -> None:
        """Waits for this work's turn and for CPU time in the bucket. Call `end_turn` afterwards."""
        while self._is_taken:
            future = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (number, next(self._numbers), future))
            try:
                await future
            except asyncio.CancelledError:
                if not self._is_taken:
                    self.end_turn()
                raise
        self._is_taken = True
        try:
            # Other work may be charged while this work sleeps, so the delay is computed again.
            while delay := self.delay():  # noqa: ASYNC110 - there is no event, only time
                await asyncio.sleep(delay)
        except BaseException:
            self.end_turn()
            raise

    def end_turn(self) -> None:
        """Gives the turn to the oldest waiting work."""
        self._is_taken = False
        while self._waiting:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)
                return

    def charge(self, seconds: float) -> None:
        """Subtracts used CPU seconds; the bucket may go below zero."""
        self._bucket.take(seconds)
        self._rested_at = self._bucket.at + seconds * self._rest

    def delay(self) -> float:
        """Returns seconds until CPU time is available again; 0.0 if it is available now."""
        return max(self._bucket.delay(), self._rested_at - self._bucket.at)


class Paced(Awaitable[Result | None]):
    """A coroutine whose steps are charged to an allowance, and wait while the allowance is used up.

    Of several coroutines with the same allowance, the oldest that can continue gets the next step: the first ends
    first, and none waits for another that waits for the network. Only the coroutine's own steps are charged, not other
    work of the loop between two steps. If `is_wanted` returns False before a step, the coroutine is cancelled, and the
    result is None.
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, Result],
        allowance: Allowance,
        is_wanted: Callable[[], bool] = lambda: True,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._work = work
        self._allowance = allowance
        self._is_wanted = is_wanted
        self._cpu = cpu

    def __await__(self) -> Generator[Any, Any, Result | None]:
        """Behaves as the coroutine; exceptions, including a cancellation, are passed to it at once, without waiting for
        a turn."""
        raised: BaseException | None = None
        number = self._allowance.number()
        is_given_up = False
        while True:
            has_turn = False
            if raised is None:
                try:
                    yield from self._allowance.take_turn(number).__await__()
                    has_turn = True
                except BaseException as exc:
                    raised = exc
            if raised is None and not is_given_up and not self._is_wanted():
                # Cancelled instead of closed: the coroutine may have to await the release of its resources.
                raised, is_given_up = asyncio.CancelledError(), True
            try:
                waited = self._step(raised, has_turn=has_turn)
            except StopIteration as end:
                result: Result = end.value
                return result
            except asyncio.CancelledError:
                if is_given_up:
                    return None
                raise
            raised = None
            try:
                yield waited
            except BaseException as exc:
                raised = exc

    def _step(self, raised: BaseException | None, *, has_turn: bool) -> Any:
        cpu_before = self._cpu()
        try:
            return self._work.send(None) if raised is None else self._work.throw(raised)
        finally:
            self._allowance.charge(self._cpu() - cpu_before)
            if has_turn:
                self._allowance.end_turn()
