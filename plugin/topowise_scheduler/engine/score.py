"""From raw scores to the extender's 0..10.

kube-scheduler adds an extender's score as it comes (times weight times ten) and asks for integers, which leaves eleven
levels. So the nodes of one call are spread over all of them, best 10 and worst 0; if all are equal there is no opinion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Raw scores are hundredths of a percent, so that nodes of a percent's difference are still told apart.
RAW_MAX: Final = 10_000
WIRE_MAX: Final = 10


def spread(raw: Sequence[int]) -> list[int]:
    """Raw scores 0..10,000 to 0..10, in order: linear between the worst and the best, rounded half up."""
    if not raw:
        return []
    low, high = min(raw), max(raw)
    if low == high:
        # One level for all; its height still means something to someone who compares two calls.
        return [(2 * low * WIRE_MAX + RAW_MAX) // (2 * RAW_MAX)] * len(raw)
    width = high - low
    return [(2 * (one - low) * WIRE_MAX + width) // (2 * width) for one in raw]
