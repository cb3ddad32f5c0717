"""The API server's side: when the node's object last changed."""

from __future__ import annotations

import asyncio
import time

from topowise import nrt
from topowise.kube.reflector import EventType


class Arrivals:
    """A consumer that knows when the node's object last changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.at = 0.0

    def replace(self, items: list[nrt.NodeResourceTopology]) -> None:
        if items:
            self.apply("ADDED", items[0])

    def apply(self, event: EventType, item: nrt.NodeResourceTopology) -> None:
        self.at = time.perf_counter()
        self._changed.set()

    async def next(self, since: float, limit: float = 10.0) -> float:
        """Seconds from `since` to the first change after it."""
        async with asyncio.timeout(limit):
            while self.at <= since:
                self._changed.clear()
                await self._changed.wait()
        return self.at - since
