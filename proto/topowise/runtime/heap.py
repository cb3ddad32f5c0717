"""Keeps the cost of a daemon's heap low: garbage collections that traverse all of it, and free memory inside it.

A full garbage collection of a large cluster takes a third of a second in which no request is answered, and finds hardly
anything: almost all objects die by their reference count. So objects that have survived a long collection are excluded
from later collections. Cyclic garbage among them is never found: objects that come and go for the process's lifetime
must not form cycles (connections of uvloop do not, those of asyncio's own loop do). A collection also runs after a
tenth as many new objects as Python's default: for a growing cluster, collecting 70,000 objects takes 30 ms, a tenth of
them three.

glibc returns memory to the system only from the end of its heap. Verdicts and lists are allocated and freed in the
middle of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from typing import Final

# CPU time of a collection after which its survivors are excluded from the next.
_LONG_S: Final = 0.002
TRIM_S: Final = 30.0
"""Interval in seconds at which free pages are returned to the system."""
# Numbers of new containers, and of collections of each younger generation, before the next collection; Python's
# defaults are 700, 10, 10.
_THRESHOLDS: Final = (700, 5, 2)


class Heap:
    """While `run` runs, collections are short, and free memory is returned to the system."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._since = 0.0

    async def run(self) -> None:
        """Runs until cancelled."""
        thresholds = gc.get_threshold()
        gc.set_threshold(*_THRESHOLDS)
        gc.freeze()
        # This collection finds nothing. It postpones the next until a quarter more objects exist.
        gc.collect()
        gc.callbacks.append(self._note)
        try:
            while True:
                await asyncio.sleep(TRIM_S)
                trim()
        finally:
            gc.callbacks.remove(self._note)
            gc.set_threshold(*thresholds)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        """Called at the start and the end of a collection."""
        if phase == "start":
            self._since = self._clock()
        elif info["generation"] == 2 and self._clock() - self._since > _LONG_S:
            gc.freeze()


def trim() -> None:
    """Returns free pages of the allocator to the system, which takes some milliseconds. Only glibc needs it."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
