"""Keeps the cost of a daemon's heap low: garbage collections that traverse all of it, and free memory inside it.

A full garbage collection of a large cluster takes a third of a second in which no request is answered, and finds hardly
anything: almost all objects die by their reference count. So objects that have survived a long collection are excluded
from later collections. Cyclic garbage among them is never found: objects that come and go for the process's lifetime
must not form cycles (connections of uvloop do not, those of asyncio's own loop do).

Python starts a collection when the number of new containers exceeds the number of freed containers by a threshold. New
states of nodes replace old states, so that number stays low while hundreds of thousands of new containers accumulate;
a collection of the youngest generation then takes half a second. So a timer collects the new containers as well.

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

# CPU time of a full collection after which its survivors are excluded from the next, and of the collections of younger
# generations after which a full collection is due.
_LONG_S: Final = 0.001
# New states of nodes are some 150 containers per millisecond, which take 0.1 ms to collect.
_INTERVAL_S: Final = 0.02
TRIM_S: Final = 30.0
"""Interval in seconds at which free pages are returned to the system."""
# Numbers of new containers, and of collections of each younger generation, before the next collection; Python's
# defaults are 700, 10, 10. The timer collects often enough for replaced containers; these bound a single long step.
_THRESHOLDS: Final = (3000, 1, 1)


class Heap:
    """While `run` runs, collections are short, and free memory is returned to the system."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._since = 0.0
        # CPU time of collections since the last full collection.
        self._spent = 0.0

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
                for _ in range(int(TRIM_S / _INTERVAL_S)):
                    await asyncio.sleep(_INTERVAL_S)
                    self.collect()
                trim()
        finally:
            gc.callbacks.remove(self._note)
            gc.set_threshold(*thresholds)

    def collect(self) -> None:
        """Collects what is new, and all that is not excluded if that has become much."""
        gc.collect(1)
        if self._spent > _LONG_S:
            gc.collect()

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        """Called at the start and the end of a collection."""
        if phase == "start":
            self._since = self._clock()
            return
        spent = self._clock() - self._since
        if info["generation"] < 2:
            self._spent += spent
            return
        self._spent = 0.0
        if spent > _LONG_S:
            gc.freeze()


def trim() -> None:
    """Returns free pages of the allocator to the system, which takes some milliseconds. Only glibc needs it."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
