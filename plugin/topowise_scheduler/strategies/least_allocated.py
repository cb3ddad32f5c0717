"""LeastAllocated: the emptier the NUMA nodes stay, the better (KEP-119 of scheduler-plugins).

The weighted mean over resources of the share of the zone's available amount that stays free (least_allocated.go).
zone_scores.py says which zone counts and where this differs from upstream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Candidates
from topowise_scheduler.strategies import zone_scores


class LeastAllocated:
    """`weights` of resources, 1 by default."""

    in_percent = False

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = weights

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) 0 to RAW_MAX."""
        return zone_scores.raw(candidates, self._left)

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """Unchanged."""
        return raw

    def _left(self, shares: Sequence[zone_scores.Share]) -> zone_scores.Scores:
        return 1 - zone_scores.mean_used(shares, self._weights)
