"""LeastNUMANodes: the fewer NUMA nodes the pod needs, the better (KEP-454 of scheduler-plugins).

Containers are placed in the kubelet's order, each on the fewest NUMA nodes that have room, and what they take is gone
for the next. The container that needs most counts: `100 - n * (100 / max)`, plus half a step if every container lies on
a combination than which no other of its size is closer; 100 for a pod without NUMA resources, 0 for one that does not
fit (pkg/noderesourcetopology/least_numa.go, read at 903da7d). In whole percents, times 100. Here is different:

- where the kubelet aligns, its NUMA nodes are those of the predicted hint; upstream's search on counts is for nodes
  without one (policy none). Scope pod has the same hint in all containers, so n is the pod's;
- a plain init container gives back what it took; upstream keeps it;
- in a combination every zone must have CPUs and memory if these are asked for; upstream that goes for every resource,
  although the kubelet takes devices from some zones of a mask only;
- a resource that no zone of a node has is left out there; upstream nothing fits then;
- a zone alone is always closest, SLIT having 10 there (ACPI 6.5, 5.2.17).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Candidates
from topowise_scheduler.strategies.allocations import INIT, aligned_requests
from topowise_scheduler.strategies.combinations import are_closest, fewest
from topowise_scheduler.strategies.hinted_zones import HintedZones, PerZone
from topowise_scheduler.strategies.scale import RAW_MAX

_PERCENT = RAW_MAX // 100


class LeastNUMANodes:
    """`max_numa_nodes` is the number that scores 0: `topologyManagerMaxNUMANodes` upstream, 8 by default."""

    def __init__(self, max_numa_nodes: int) -> None:
        self._step = 100 // max_numa_nodes

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) 0 to RAW_MAX."""
        count = candidates.masks.shape[1]
        most = np.zeros(count, np.int64)
        close = np.ones(count, np.bool_)
        fits = np.ones(count, np.bool_)
        left = dict(candidates.available)
        for index, (container, hints) in enumerate(zip(candidates.containers, candidates.masks, strict=True)):
            requests = aligned_requests(candidates, container)
            if not requests:
                continue
            masks = _search_without_hint(candidates, hints, requests, left, fits)
            hinted = HintedZones.of(masks, candidates.zones)
            most = np.maximum(most, np.bitwise_count(masks))
            if hinted.several.size:
                close[hinted.several] &= are_closest(
                    masks[hinted.several], candidates.distances.take(hinted.several, axis=2)
                )
            if container.kind != INIT and index + 1 < len(candidates.containers):
                left |= {name: hinted.without(left[name], amount) for name, amount in requests.items()}
        scores = 100 - most * self._step + close * (self._step // 2)
        scores[most == 0] = 100
        return np.where(fits, np.maximum(scores, 0), 0) * _PERCENT

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """As it is."""
        return raw


def _search_without_hint(
    candidates: Candidates,
    hints: NDArray[np.int32],
    requests: dict[str, int],
    left: dict[str, PerZone],
    fits: NDArray[np.bool_],
) -> NDArray[np.int32]:
    """(nodes,) the hints, those of 0 replaced by the fewest zones with room. Clears `fits` where there are none."""
    nodes = np.flatnonzero(hints == 0)
    if not nodes.size:
        return hints
    barred = np.zeros((candidates.zones, nodes.size), np.bool_)
    wanted = {}
    for name, amount in requests.items():
        has = candidates.allocatable[name].take(nodes, axis=1) > 0
        somewhere = has.any(axis=0)
        wanted[name] = np.where(somewhere, amount, 0)
        if name in ("cpu", "memory"):
            barred |= ~has & somewhere
    some = {name: left[name].take(nodes, axis=1) for name in requests}
    found = fewest(some, wanted, barred, candidates.distances.take(nodes, axis=2))
    nothing = np.logical_and.reduce([amount == 0 for amount in wanted.values()])
    found[nothing] = 0
    fits[nodes[(found == 0) & ~nothing]] = False
    masks = hints.copy()
    masks[nodes] = found
    return masks
