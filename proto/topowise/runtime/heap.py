"""What the heap of a daemon costs beside what is in it: collections that go through all of it, and room that is free.

A full garbage collection of a large cluster takes a third of a second, in which nobody is answered, and hardly any of
it ever dies but by its reference count. So whatever has survived a collection that took long is kept out of later ones.
What dies in a cycle after that is never found: nothing that comes and goes for as long may be one (connections of
uvloop are none, those of asyncio's own loop are). And a collection comes after a tenth as many new objects as Python
waits for: 70,000 of a growing cluster take 30 ms to go through, a tenth of them three.

glibc gives memory back only from the end of its heap. Verdicts and lists come and go in the middle of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from typing import Final

# CPU of a collection after which its survivors are left out of the next.
_LONG_S: Final = 0.002
TRIM_S: Final = 30.0
"""Seconds after which free pages go back to the system."""
# Of new containers, and of collections of each younger generation, before the next one; Python's own are 700, 10, 10.
_THRESHOLDS: Final = (700, 5, 2)


class Heap:
    """As long as `run` does, collections are short, and what is free goes back to the system."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._since = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        thresholds = gc.get_threshold()
        gc.set_threshold(*_THRESHOLDS)
        gc.freeze()
        # It finds nothing; the next is put off until there is a quarter more than the last has left.
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
        """A collection begins or ends."""
        if phase == "start":
            self._since = self._clock()
        elif info["generation"] == 2 and self._clock() - self._since > _LONG_S:
            gc.freeze()


def trim() -> None:
    """Free pages of the allocator go back to the system: a millisecond or some. Other libraries than glibc do it
    by themselves."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
