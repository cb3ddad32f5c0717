"""Times of API objects: RFC 3339 in UTC, in whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds(stamp: str) -> float:
    """Returns an RFC 3339 time in seconds since 1970, 0 if it is none."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0


def text(now: float) -> str:
    """Returns seconds since 1970 as RFC 3339."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
