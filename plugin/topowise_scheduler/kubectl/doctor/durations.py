"""Durations as Go spells them."""

from __future__ import annotations

import re
from typing import Any, Final

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)", re.ASCII)


def seconds(text: Any) -> float | None:
    """The duration; None if it is none, or 0, which is "not set"."""
    if not isinstance(text, str) or not re.fullmatch(f"(?:{_PART.pattern})+", text, re.ASCII):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)) or None
