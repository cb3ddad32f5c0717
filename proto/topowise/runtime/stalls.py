"""Reports what blocks the event loop, from a thread that checks it regularly.

The loop itself cannot report it: it continues only when the blocking call has returned and is no longer on the stack.
The thread needs the interpreter's lock, so a native call that keeps the lock shows only afterwards.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from topowise.runtime.log import kv

log = logging.getLogger(__name__)

# A liveness probe gives up after 5 s, three times in a row.
LIMIT_S: Final = 5.0
_LOOKS_PER_LIMIT: Final = 4
# The innermost calls; a stack of asyncio and a library is about twenty.
_MOST_CALLS: Final = 40


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
