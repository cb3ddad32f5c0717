"""LeastNUMANodes: the fewer NUMA nodes the pod needs, the better (KEP-454 of scheduler-plugins).

The container with the most NUMA nodes counts, in scope pod the pod: `100 - n * (100 / max)`, plus half a step if every
container has a closest combination of its size; 100 for a pod without NUMA resources
(pkg/noderesourcetopology/least_numa.go, read at 903da7d). In whole percents, times 100. `max` is the node's
topologyManagerMaxNUMANodes. Like upstream's normalizeScore, this adds the half step for every policy and policy option:
near NUMA nodes are as near without prefer-closest-numa-nodes, which only affects the kubelet's choice. Differences:

- n is the kubelet's allocation, by its model. Upstream searches for the fewest NUMA nodes with sufficient amounts,
  which the Topology Manager may not find or not look for;
- a resource that no zone of a node has is ignored there. Upstream then finds no zones;
- a single zone is always closest, because its SLIT distance is 10 (ACPI 6.5, 5.2.17).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies.closest_zones import are_closest
from topowise_scheduler.verdicts.strategies.scale import RAW_MAX
from topowise_scheduler.verdicts.strategies.strategy import Strategy

_PERCENT = RAW_MAX // 100
# The kubelet's default of topologyManagerMaxNUMANodes, for nodes that do not report theirs.
_DEFAULT_MAX_NUMA_NODES = 8


class LeastNUMANodes(Strategy):
    """Prefers placements on few NUMA nodes that are near each other."""

    in_percent = True

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) 0 to RAW_MAX."""
        placed = candidates.placed
        if candidates.by_pod and len(placed):
            placed = np.bitwise_or.reduce(placed, axis=0)[None]
        most = np.bitwise_count(placed).max(axis=0, initial=0).astype(np.int64)
        close = np.ones(most.size, np.bool_)
        several = np.flatnonzero(most > 1)
        if several.size:
            distances = candidates.distances.take(several, axis=2)
            for zones in placed.take(several, axis=1):
                close[several] &= are_closest(zones, distances)
        step = 100 // (candidates.max_numa_nodes or _DEFAULT_MAX_NUMA_NODES)
        scores = 100 - most * step + close * (step // 2)
        scores[most == 0] = 100
        raw: NDArray[np.int64] = np.maximum(scores, 0) * _PERCENT
        return raw
