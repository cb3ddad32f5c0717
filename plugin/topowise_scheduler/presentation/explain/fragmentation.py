"""What is lost because what is free does not lie together, by one measure for all who show it."""

from __future__ import annotations

from collections.abc import Sequence


def lost(free: Sequence[int], largest: int) -> int | None:
    """Percent of the largest aligned pod that there could be room for which there is no room for.

    If what is free lay together, the largest pod on one NUMA node would have as much as is free, or as the `largest`
    node can give. The fullest node counts by what it has: 0 says that nothing is lost, 75 that the largest pod that
    fits has a quarter of what it could have. None if nothing is free.
    """
    ideal = min(sum(free), largest)
    return round(100 * (ideal - max(free)) / ideal) if ideal else None
