"""Turns of the event loop: long work gives them up, and how long they take is measured.

Both daemons do everything in one thread, so whoever works for long keeps all others waiting: a scheduler that asks, a
probe, an event. Work on a whole cluster is therefore done step by step, and `Lag` tells whether it is.
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

# Work between two turns, in seconds: whoever else has something to do waits for as long.
SLICE_S: Final = 0.002
# Ten wake-ups a second are not seen in the CPU's use.
_INTERVAL_S: Final = 0.1
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class UnpreparedError(Exception):
    """The answer would take long; it does not once the `steps` are done, and is to be asked for again then."""

    def __init__(self, steps: Iterator[None]) -> None:
        super().__init__("the answer is to be made in steps")
        self.steps = steps


async def sliced(steps: Iterable[object]) -> None:
    """Does all steps, and lets others run whenever they have taken `SLICE_S`."""
    since = time.monotonic()
    for _ in steps:
        if time.monotonic() - since > SLICE_S:
            await asyncio.sleep(0)
            since = time.monotonic()


async def collected(steps: Iterable[Item | None]) -> list[Item]:
    """What the steps come to, in slices as well."""
    found: list[Item] = []

    def gather() -> Iterator[None]:
        for item in steps:
            if item is not None:
                found.append(item)
            yield

    await sliced(gather())
    return found


class Portions:
    """Items that there may not be time for all of: as many as `seconds` suffice for, one at the least. Where some are
    left, the next time begins at another one, so that none is left out for ever."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        # As a part of the whole, which may be of others the next time.
        self._begin = 0.0

    def of(self, items: Sequence[Item]) -> Iterator[Item]:
        """A portion of these."""
        until, begin = self._clock() + self._seconds, int(self._begin * len(items))
        for count, item in enumerate((*items[begin:], *items[:begin]), 1):
            yield item
            if self._clock() >= until and count < len(items):
                self._begin = random.random()
                return


class Lag:
    """How much later than it asked for a timer of the loop runs, looked at ten times a second.

    It is on the wall: a node that gives the process no CPU shows here too, as it does to those who wait.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = Histogram(
            f"{prefix}_event_loop_lag_seconds",
            "How late timers of the event loop run: for as long somebody has kept all others waiting.",
            buckets=_BUCKETS,
            registry=registry,
        )

    async def run(self) -> None:
        """Until cancelled."""
        with StallWatch() as watch:
            while True:
                due = self._clock() + _INTERVAL_S
                await asyncio.sleep(_INTERVAL_S)
                watch.beat()
                self._seconds.observe(max(0.0, self._clock() - due))
