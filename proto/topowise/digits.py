"""Parses whole numbers in foreign text.

`str.isdigit()` is true for "²", for which `int()` raises ValueError. `int()` accepts "٣", " 7 " and "1_0", which no
Kubernetes component accepts, and refuses more than 4,300 digits. So all callers share a rule: ASCII digits only,
limited to the length of the largest valid number. `int64` reads what a Go component reads as an integer.
"""

from __future__ import annotations

import re
from typing import Final

# Ids of CPUs and NUMA nodes, sizes, counts: any such number fits into 32 bits.
ID: Final = 9
# A resourceVersion is an unsigned number of 64 bits.
UINT64: Final = 20

_INTEGER: Final = re.compile("([+-]?)0*([0-9]*)")
_INT64_DIGITS: Final = 19


def natural(text: str, most: int = ID) -> int | None:
    """Returns the number of up to `most` decimal digits, leading zeros allowed; None for any other text."""
    return int(text) if len(text) <= most and text.isascii() and text.isdigit() else None


def int64(text: str) -> int | None:
    """Returns the number that Go's strconv.ParseInt(text, 10, 64) returns, and strconv.Atoi on a 64-bit machine; None
    where they return an error."""
    match = _INTEGER.fullmatch(text)
    if match is None or text in ("", "+", "-") or len(match[2]) > _INT64_DIGITS:
        return None
    number = int(match[1] + (match[2] or "0"))
    return number if -(1 << 63) <= number < 1 << 63 else None
