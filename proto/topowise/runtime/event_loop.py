"""Splits long work on the event loop into slices, measures the loop's lag, and reports what blocks it.

Both daemons do everything in a single thread, so long work delays everything else: a scheduler's request, a probe, an
event. Work on a whole cluster is therefore done step by step, and `Lag` measures the delay.

The loop itself cannot report a call that blocks it: it continues only when the call has returned and is no longer on
the stack. So a thread checks it regularly. The thread needs the interpreter's lock, so a native call that keeps the
lock shows only afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from prometheus_client import CollectorRegistry, Histogram

from topowise.runtime.log import kv

log = logging.getLogger(__name__)

# A liveness probe gives up after 5 s, three times in a row.
LIMIT_S: Final = 5.0
_LOOKS_PER_LIMIT: Final = 4
# The innermost calls; a stack of asyncio and a library is about twenty.
_MOST_CALLS: Final = 40
# Seconds of work in a slice: other tasks wait for as long.
SLICE_S: Final = 0.002
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class StallWatch:
    """Watches the loop of the thread that creates it, which calls `beat` many times within `limit` seconds."""

    def __init__(self, limit: float = LIMIT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._watched = threading.get_ident()
        self._beat_at = self._looked_at = clock()
        self._reported_beat: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()

    def beat(self) -> None:
        """Notes an iteration of the loop; logs once if the loop had been blocked."""
        before, self._beat_at = self._beat_at, self._clock()
        if self._reported_beat is not None:
            self._reported_beat = None
            log.warning("The event loop goes on", extra=kv(stood_still_s=round(self._beat_at - before, 1)))

    def look(self) -> None:
        """Logs the stack of the loop's thread, once for each time that the loop is blocked."""
        now, beat_at = self._clock(), self._beat_at
        since_look, self._looked_at = now - self._looked_at, now
        if now - beat_at < self._limit or self._reported_beat == beat_at:
            return
        if since_look > self._limit:
            # This thread did not run either, so the stack is not the cause. The next check decides.
            log.warning("The process stood still: stopped, or without CPU", extra=kv(seconds=round(since_look, 1)))
            return
        self._reported_beat = beat_at
        frame = sys._current_frames().get(self._watched)
        calls = traceback.extract_stack(frame)[-_MOST_CALLS:] if frame is not None else []
        stack = " > ".join(f"{call.name} ({call.filename}:{call.lineno})" for call in calls)
        log.error("The event loop stands still", extra=kv(seconds=round(now - beat_at, 1), stack=stack))

    def _run(self) -> None:
        while not self._end.wait(self._limit / _LOOKS_PER_LIMIT):
            self.look()


Item = TypeVar("Item")


class UnpreparedError(Exception):
    """The answer would take long. Do the `steps` first, then ask again."""

    def __init__(self, steps: Iterator[None]) -> None:
        super().__init__("the answer is to be made in steps")
        self.steps = steps


async def sliced(steps: Iterable[object]) -> None:
    """Does all steps, and lets other tasks run after each `SLICE_S`."""
    since = time.monotonic()
    for _ in steps:
        if time.monotonic() - since > SLICE_S:
            await asyncio.sleep(0)
            since = time.monotonic()


async def collected(steps: Iterable[Item | None]) -> list[Item]:
    """Returns the items that the steps yield, in slices as well."""
    items: list[Item] = []

    def gather() -> Iterator[None]:
        for item in steps:
            if item is not None:
                items.append(item)
            yield

    await sliced(gather())
    return items


class TimeSlices:
    """Iterates over as many items as fit into `seconds`, at least one. If items are left, the next call starts at
    another item, so that every item gets its turn."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        # A fraction, because the next sequence may have another length.
        self._begin = 0.0

    def of(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yields a portion of the items."""
        until, begin = self._clock() + self._seconds, int(self._begin * len(items))
        for count, item in enumerate((*items[begin:], *items[:begin]), 1):
            yield item
            if self._clock() >= until and count < len(items):
                self._begin = random.random()
                return


class Lag:
    """Measures how late a timer of the loop runs. Wall-clock time: it includes the time in which the node gives the
    process no CPU, because requests wait for that too."""

    def __init__(self, registry: CollectorRegistry, prefix: str, interval: float = 0.1) -> None:
        """`interval`: seconds between two measurements. A measurement takes 0.1 ms of CPU."""
        self._interval = interval
        self._seconds = Histogram(
            f"{prefix}_event_loop_lag_seconds",
            "How late timers of the event loop run: for this time other work has blocked the loop.",
            buckets=_BUCKETS,
            registry=registry,
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        with StallWatch() as watch:
            while True:
                due = time.monotonic() + self._interval
                await asyncio.sleep(self._interval)
                watch.beat()
                self._seconds.observe(max(0.0, time.monotonic() - due))
