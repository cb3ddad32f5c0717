"""BalancedAllocation: the more evenly the pod takes of each resource, the better (KEP-119 of scheduler-plugins).

One less the sample variance (divided by n - 1, as gonum's stat.Variance) of the shares of the zone's available amounts
that the pod takes (balanced_allocation.go); weights do not count, as upstream. Of a single resource the variance is 0
here; upstream it is NaN, and the score whatever the platform makes an integer of that. zone_scores.py tells which zone
counts and where else this differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Candidates
from topowise_scheduler.strategies import zone_scores


class BalancedAllocation:
    """Without options."""

    in_percent = False

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) 0 to RAW_MAX."""
        return zone_scores.raw(candidates, _evenness)

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """As it is."""
        return raw


def _evenness(shares: Sequence[zone_scores.Share]) -> zone_scores.Scores:
    mean = zone_scores.mean_used(shares, {})
    if len(shares) == 1:
        return np.ones_like(mean)
    squares = np.zeros_like(mean)
    number = np.zeros(mean.shape[1])
    for _, used, counts in shares:
        off = (used - mean) ** 2
        squares += off if counts is None else off * counts
        number += 1 if counts is None else counts
    return 1 - squares / np.maximum(number - 1, 1)
