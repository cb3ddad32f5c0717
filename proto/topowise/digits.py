"""Parses whole numbers in foreign text.

`str.isdigit()` is true for "²", for which `int()` raises ValueError. `int()` accepts "٣", " 7 " and "1_0", which no
Kubernetes component accepts, and refuses more than 4,300 digits. So all callers share a rule: ASCII digits only,
limited to the length of the largest valid number.
"""

from __future__ import annotations

from typing import Final

# Ids of CPUs and NUMA nodes, sizes, counts: any such number fits into 32 bits.
ID: Final = 9
# A resourceVersion is an unsigned number of 64 bits.
UINT64: Final = 20


def natural(text: str, most: int = ID) -> int | None:
    """Returns the number of up to `most` decimal digits, leading zeros allowed; None for any other text."""
    return int(text) if len(text) <= most and text.isascii() and text.isdigit() else None
