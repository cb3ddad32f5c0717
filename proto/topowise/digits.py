"""Whole numbers in texts that others wrote.

`str.isdigit()` is true of "²", which `int()` refuses with a ValueError that nobody expects after such a check. `int()`
takes "٣", " 7 " and "1_0", which no component of Kubernetes takes, and refuses what has more than 4,300 digits. So
there is one rule for all: ASCII digits, and no more of them than the largest such number has.
"""

from __future__ import annotations

from typing import Final

# Ids of CPUs and NUMA nodes, sizes, counts: what fits into 32 bits whatever the digits are.
ID: Final = 9
# A resourceVersion is an unsigned number of 64 bits.
UINT64: Final = 20


def natural(text: str, most: int = ID) -> int | None:
    """The number that up to `most` decimal digits spell, leading zeros allowed; None for any other text."""
    return int(text) if len(text) <= most and text.isascii() and text.isdigit() else None
