"""From raw scores to the extender's 0..10, or 0..100.

kube-scheduler adds an extender's score as it comes (times weight times ten) and asks for integers, which leaves eleven
levels. So the nodes of one call are spread over all of them, best on top and worst 0. If all are equal there is no
opinion, and all get one level.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# Raw scores are hundredths of a percent, so that nodes of a percent's difference are still told apart.
RAW_MAX: Final = 10_000


def spread(raw: NDArray[np.int64], top: int) -> NDArray[np.int64]:
    """(nodes,) raw scores 0..10,000 to 0..top: linear between the worst and the best, rounded half up."""
    if not raw.size:
        return raw
    low, high = int(raw.min()), int(raw.max())
    if low == high:
        # The height still means something to someone who compares two calls.
        return np.full_like(raw, (2 * low * top + RAW_MAX) // (2 * RAW_MAX))
    width = high - low
    return (2 * top * (raw - low) + width) // (2 * width)
