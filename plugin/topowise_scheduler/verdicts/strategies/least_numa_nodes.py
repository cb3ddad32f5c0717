"""The fewer NUMA nodes the pod needs, the better: LeastNUMANodes (KEP-454) and NUMAAware (Volcano).

LeastNUMANodes of scheduler-plugins: the container with the most NUMA nodes counts, in scope pod the pod: `100 - n *
(100 / max)`, plus half a step if every container has a closest combination of its size; 100 for a pod without NUMA
resources (pkg/noderesourcetopology/least_numa.go, read at 903da7d). In whole percents, times 100. `max` is the node's
topologyManagerMaxNUMANodes. Like upstream's normalizeScore, this adds the half step for every policy and policy option:
near NUMA nodes are as near without prefer-closest-numa-nodes, which only affects the kubelet's choice. Differences:

- n is the kubelet's allocation, by its model. Upstream searches for the fewest NUMA nodes with sufficient amounts,
  which the Topology Manager may not find or not look for;
- a resource that no zone of a node has is ignored there. Upstream then finds no zones;
- a single zone is always closest, because its SLIT distance is 10 (ACPI 6.5, 5.2.17).

All combinations of a size are compared at once, for all nodes: a table of members, and sums over pairs. Only tables of
sizes that occur are built.

NUMAAware: `100 - 100 * n / max n` over the candidates, truncated, 100 for all if max n is 0 (getNodeNumaNumForTask and
NormalizeScore in Volcano, pkg/scheduler/plugins/numaaware, read at ed72c7c). The score is in hundredths of a percent;
kube-scheduler's weight of the extender replaces Volcano's weight. Differences:

- n counts the NUMA nodes of all resources of the pod, including sidecars. Volcano uses the hint for CPUs only and
  ignores sidecars;
- so a node that aligns nothing counts with its kubelet's allocation. In Volcano it has n = 0 and beats every node that
  aligns.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies.allocations import INIT
from topowise_scheduler.verdicts.strategies.scale import RAW_MAX, Strategy

# Sums in memory at a time.
_CELLS: Final = 1 << 17
# Above this there are too many combinations, and kubelets align nothing (max-allowable-numa-nodes is 8 by default).
_MAX_ZONES: Final = 16
_PERCENT = RAW_MAX // 100
# The kubelet's default of topologyManagerMaxNUMANodes, for nodes that do not report theirs.
_DEFAULT_MAX_NUMA_NODES = 8
_HUNDREDTHS = RAW_MAX // 100


def are_closest(masks: NDArray[np.int64], distances: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(nodes,) whether no combination of as many zones is closer, free or not (minAvgDistanceInCombinations).

    `distances` are (zones, zones, nodes).
    """
    zones = distances.shape[0]
    sizes = np.bitwise_count(masks)
    # A single zone is as close to itself as any zone.
    close = sizes <= 1
    if zones > _MAX_ZONES:
        return close
    for size in np.unique(sizes[~close]).tolist():
        for nodes in _chunks(np.flatnonzero(sizes == size), zones, size):
            spans = _spans(distances.take(nodes, axis=2), size)
            own = (_masks(zones, size)[:, None] == masks[nodes]).argmax(axis=0)
            if spans.shape[1] == 1:
                close[nodes] = spans[own, 0] == spans.min()
            else:
                close[nodes] = np.take_along_axis(spans, own[None], axis=0)[0] == spans.min(axis=0)
    return close


def _spans(distances: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """(combinations, nodes), or (combinations, 1) for equal nodes: the sum of the distances between different members.

    Upstream's averages include the distance to itself (nodesAvgDistance), which is always 10: the order is the same.
    """
    if (distances == distances[:, :, :1]).all():
        distances = distances[:, :, :1]
    members = _members(distances.shape[0], size)
    both_ways = distances + distances.transpose(1, 0, 2)
    total = np.zeros((len(members), distances.shape[2]), np.int32)
    for first, second in combinations(members.T, 2):
        total += both_ways[first, second]
    return total


def _chunks(nodes: NDArray[np.intp], zones: int, size: int) -> list[NDArray[np.intp]]:
    step = max(1, _CELLS // len(_masks(zones, size)))
    return [nodes[start : start + step] for start in range(0, nodes.size, step)]


@lru_cache(maxsize=64)
def _members(zones: int, size: int) -> NDArray[np.intp]:
    """(combinations, size) the positions of the members."""
    return np.array(list(combinations(range(zones), size)), np.intp)


@lru_cache(maxsize=64)
def _masks(zones: int, size: int) -> NDArray[np.int64]:
    """(combinations,) as bit masks."""
    masks: NDArray[np.int64] = (1 << _members(zones, size)).sum(axis=1).astype(np.int64)
    return masks


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


class NUMAAware(Strategy):
    """Without options."""

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) minus the number of NUMA nodes used."""
        used = np.zeros(candidates.placed.shape[1], np.int64)
        for container, placed in zip(candidates.containers, candidates.placed, strict=True):
            if container.kind != INIT:
                used |= placed
        return -np.bitwise_count(used).astype(np.int64)

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """(nodes,) of all candidates, 0 to RAW_MAX."""
        most = -int(raw.min()) if raw.size else 0
        if not most:
            return np.full_like(raw, RAW_MAX)
        return (100 - 100 * -raw // most) * _HUNDREDTHS
