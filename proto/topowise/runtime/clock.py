"""The clock of everything that waits: backoff, leases, quarantine, expiry, requeueing, intervals.

Sleeps and timeouts of asyncio follow the clock of the event loop. A test gives a loop and this module the same clock,
and passes an hour in a few milliseconds. The duration of work (metrics, the slices of `event_loop`) is measured by
`time` itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

_source: Callable[[], float] = time.monotonic


def replace(source: Callable[[], float]) -> None:
    """Lets `monotonic` return the seconds of another clock, which the event loops of this process have to follow."""
    global _source  # noqa: PLW0603 - a process has a single time
    _source = source


def monotonic() -> float:
    """Returns seconds since an unknown moment, never fewer than before."""
    return _source()


def wall() -> float:
    """Returns seconds since 1970, as far from `time.time` as `monotonic` is from `time.monotonic`."""
    return time.time() if _source is time.monotonic else time.time() - time.monotonic() + _source()


def utc_now() -> datetime:
    """Returns `wall` as a time of UTC."""
    return datetime.fromtimestamp(wall(), UTC)
