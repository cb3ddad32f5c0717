"""Fragmentation: the measure that all commands show."""

from __future__ import annotations

from collections.abc import Sequence


def lost(free: Sequence[int], largest: int) -> int | None:
    """Percent by which fragmentation makes the largest aligned pod smaller; None if nothing is free.

    `free` are the free amounts of NUMA nodes. Without fragmentation the largest aligned pod would have their sum, but
    at most `largest`, the capacity of the largest NUMA node. 75 says that it has only a quarter of that.
    """
    ideal = min(sum(free), largest)
    return round(100 * (ideal - max(free)) / ideal) if ideal else None
