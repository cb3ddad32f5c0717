"""Measures how long a callback blocks the event loop.

The unit is CPU time of the loop's thread, which a busy machine does not lengthen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Watchdog:
    """`longest_ms` is the longest time between two turns so far, `turns` how many there were."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self.turns = 0

    async def run(self) -> None:
        """Takes part in every turn of the loop until cancelled."""
        since = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_ms = max(self.longest_ms, 1e3 * (now - since))
            self.turns += 1
            since = now


@asynccontextmanager
async def watchdog() -> AsyncIterator[Watchdog]:
    """Watches the running loop."""
    dog = Watchdog()
    task = asyncio.create_task(dog.run())
    await asyncio.sleep(0)
    try:
        yield dog
    finally:
        # Measures the last callback too.
        await asyncio.sleep(0)
        task.cancel()


async def idle_share(seconds: float) -> float:
    """What share of a core this thread takes while it is left alone."""
    cpu, since = time.thread_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (time.thread_time() - cpu) / (time.perf_counter() - since)
