"""Whole numbers as strconv.ParseInt(text, 10, 64) reads them; Python's int() takes more spellings, and other digits."""

from __future__ import annotations

import re
from typing import Final

_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,30}")
_LARGEST: Final = (1 << 63) - 1


def integer(text: str) -> int | None:
    """Returns the number, None if Go would refuse the text or the number does not fit into 64 bits."""
    number = int(text) if _DECIMAL.fullmatch(text) else None
    return number if number is not None and -_LARGEST - 1 <= number <= _LARGEST else None
