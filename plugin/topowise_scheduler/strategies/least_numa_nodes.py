"""LeastNUMANodes: the fewer NUMA nodes the pod needs, the better (KEP-454 of scheduler-plugins).

The container that lies on most NUMA nodes counts, in scope pod the pod: `100 - n * (100 / max)`, plus half a step if
every container lies on a combination than which no other of its size is closer; 100 for a pod without NUMA resources
(pkg/noderesourcetopology/least_numa.go, read at 903da7d). In whole percents, times 100. `max` is the node's own
topologyManagerMaxNUMANodes. Here is different:

- n is what the kubelet will give, by its model: upstream searches for the fewest NUMA nodes whose counts suffice, which
  its Topology Manager may not find, or not look for;
- a resource that no zone of a node has is left out there; upstream nothing fits then;
- a zone alone is always closest, SLIT having 10 there (ACPI 6.5, 5.2.17).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Candidates
from topowise_scheduler.strategies.closest_zones import are_closest
from topowise_scheduler.strategies.scale import RAW_MAX

_PERCENT = RAW_MAX // 100


class LeastNUMANodes:
    """`max_numa_nodes` is the number that scores 0 where a node does not tell its own."""

    in_percent = True

    def __init__(self, max_numa_nodes: int) -> None:
        self._most = max_numa_nodes

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
        step = 100 // (candidates.max_numa_nodes or self._most)
        scores = 100 - most * step + close * (step // 2)
        scores[most == 0] = 100
        found: NDArray[np.int64] = np.maximum(scores, 0) * _PERCENT
        return found

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """As it is."""
        return raw
