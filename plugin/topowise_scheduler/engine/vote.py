"""KEP-6007 for many nodes at once (kubelet/most_allocated.py): of two NUMA nodes the one that is allocated fuller."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.lattice import Bits, Flags

Numbers = NDArray[np.int64]


def scores(allocated: Numbers, allocatable: Numbers) -> Numbers:
    """From (zones, nodes) the score of the scheduler's MostAllocated: 0..100, rounded down."""
    shares = np.minimum(100, allocated * 100 // np.maximum(allocatable, 1))
    return np.where(allocatable > 0, shares, 0)


def pick(fits: Bits, votes: list[Numbers]) -> Bits:
    """The NUMA node that remains, as a mask, if those that fit meet in ascending order.

    A candidate wins if one manager scores it higher and none lower. This is no maximum: the vote is not transitive.
    """
    count = len(fits)
    every = np.arange(count)
    best = np.zeros(count, dtype=np.intp)
    found = np.zeros(count, dtype=np.bool_)
    zones = len(votes[0]) if votes else 8
    for zone in range(zones):
        fitting: Flags = (fits >> np.uint8(zone) & 1) > 0
        higher = np.zeros(count, dtype=np.bool_)
        lower = np.zeros(count, dtype=np.bool_)
        for vote in votes:
            kept = vote[best, every]
            higher |= vote[zone] > kept
            lower |= vote[zone] < kept
        better = fitting & (~found | (higher & ~lower))
        best[better] = zone
        found |= fitting
    return np.where(found, np.uint8(1) << best.astype(np.uint8), np.uint8(0))
