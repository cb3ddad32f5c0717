"""Durations in the formats of kubectl and of Go.

Source: k8s.io/apimachinery/pkg/util/duration (HumanDuration), time.ParseDuration.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY
_GO_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)", re.ASCII)


def seconds_since(timestamp: str, now: float) -> float | None:
    """Seconds since an RFC 3339 time; None for an invalid text."""
    try:
        return now - datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def age(timestamp: str, now: float) -> str:
    """ "3m20s" since an RFC 3339 time; "-" for an invalid text."""
    seconds = seconds_since(timestamp, now)
    return "-" if seconds is None else human(int(max(0, seconds)))


def human(seconds: int) -> str:
    """A duration of two units at most."""
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 3 * _HOUR:
        return _two(seconds, _MINUTE, "m", 1, "s", 10)
    if seconds < 2 * _DAY:
        return _two(seconds, _HOUR, "h", _MINUTE, "m", 8)
    if seconds < 2 * _YEAR:
        return _two(seconds, _DAY, "d", _HOUR, "h", 8)
    return _two(seconds, _YEAR, "y", _DAY, "d", 8)


def of_go(text: Any) -> float | None:
    """The seconds of "1m30s"; None for an invalid text, or for 0, which means "not set"."""
    if not isinstance(text, str) or not re.fullmatch(f"(?:{_GO_PART.pattern})+", text, re.ASCII):
        return None
    return sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text)) or None


def _two(seconds: int, unit: int, name: str, smaller: int, its_name: str, until: int) -> str:
    """The smaller unit is shown only below `until` larger units."""
    count, rest = divmod(seconds, unit)
    less = rest // smaller if count < until else 0
    return f"{count}{name}{less}{its_name}" if less else f"{count}{name}"
