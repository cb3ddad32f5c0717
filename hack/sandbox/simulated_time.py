"""An event loop whose time passes only where everybody waits: an hour of a cluster in some seconds, the same each time.

While anything can run its clock stands still; when all wait for timers it jumps to the first of them. Nothing may be
waited for that happens outside of the process: there is no time in which it could.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from unittest import mock

Result = TypeVar("Result")

_BEGINNING: Final = datetime(2026, 1, 1, tzinfo=UTC)


class StuckError(Exception):
    """Everybody waits, and for nothing that will ever happen."""


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise StuckError
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine as asyncio.run does; `time.monotonic()` returns the loop's time. Raises StuckError, too."""
    with asyncio.Runner(loop_factory=_Loop) as runner, mock.patch("time.monotonic", runner.get_loop().time):
        return runner.run(main)


def utc_now() -> datetime:
    """Returns the wall clock, which in such a loop goes with the loop's."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return datetime.now(UTC)
    return _BEGINNING + timedelta(seconds=loop.time()) if isinstance(loop, _Loop) else datetime.now(UTC)
