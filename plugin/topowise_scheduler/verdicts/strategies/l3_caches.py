"""Whether an L3 cache has enough CPUs for a pod, the last criterion among otherwise equal nodes.

Only a CPU manager with prefer-align-cpus-by-uncorecache places a container in an L3 cache on purpose, so only such
nodes count. Each container of several on a NUMA node is checked as if it came first. The model confirms the result of
the best nodes (Engine.confirm_caches).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies.allocations import INIT, PlacedZones


def in_one(candidates: Candidates) -> NDArray[np.bool_] | None:
    """(nodes,) whether every container with exclusive CPUs, without plain init containers, gets them in a single cache;
    None without such containers or without nodes that report caches."""
    requests = [
        (container.requests["cpu"], placed)
        for container, placed in zip(candidates.containers, candidates.placed, strict=True)
        if container.kind != INIT and "cpu" in container.requests
    ]
    if candidates.caches is None or not requests:
        return None
    in_cache = np.ones(candidates.placed.shape[1], np.bool_)
    for count, masks in requests:
        placed = PlacedZones.of(masks, candidates.zones)
        enough = np.zeros(masks.size, np.bool_)
        enough[placed.single] = placed.at_single(candidates.caches) >= count
        in_cache &= enough
    return in_cache
