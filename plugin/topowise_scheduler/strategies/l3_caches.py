"""Whether a pod's CPUs will lie in one L3 cache: what decides among nodes that are otherwise as good as each other.

Only a CPU manager with prefer-align-cpus-by-uncorecache puts a container into one cache on purpose, so only such nodes
count. Of several containers on one NUMA node each is looked at as if it came first; it is the last of all reasons.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Candidates
from topowise_scheduler.strategies.allocations import INIT
from topowise_scheduler.strategies.placed_zones import PlacedZones


def in_one(candidates: Candidates) -> NDArray[np.bool_] | None:
    """(nodes,) whether every container with CPUs of its own, plain init containers aside, will have them in one cache;
    None if there is none, or no node that tells."""
    asked = [
        (container.requests["cpu"], placed)
        for container, placed in zip(candidates.containers, candidates.placed, strict=True)
        if container.kind != INIT and "cpu" in container.requests
    ]
    if candidates.caches is None or not asked:
        return None
    found = np.ones(candidates.placed.shape[1], np.bool_)
    for count, masks in asked:
        placed = PlacedZones.of(masks, candidates.zones)
        enough = np.zeros(masks.size, np.bool_)
        enough[placed.single] = placed.at_single(candidates.caches) >= count
        found &= enough
    return found
