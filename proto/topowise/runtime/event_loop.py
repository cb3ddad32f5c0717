"""Splits long work on the event loop into slices, and measures the loop's lag.

Both daemons do everything in a single thread, so long work delays everything else: a scheduler's request, a probe, an
event. Work on a whole cluster is therefore done step by step, and `Lag` measures the delay.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Histogram

from topowise.runtime.stalls import StallWatch

Item = TypeVar("Item")

# Seconds of work in a slice: other tasks wait for as long.
SLICE_S: Final = 0.002
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


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
