"""BalancedAllocation: the more equal the pod's shares of the resources, the better (KEP-119 of scheduler-plugins).

1 minus the sample variance (divided by n - 1, as in gonum's stat.Variance) of the shares of the zone's available
amounts that the pod takes (balanced_allocation.go). Weights are ignored, as upstream. With a single resource the
variance is 0 here. Upstream it is NaN, and the integer score depends on the platform. zone_scores.py says which zone
counts and lists further differences.
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
        """Unchanged."""
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
