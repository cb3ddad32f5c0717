"""TightFit: place the pod where it costs the least contiguous free capacity for large pods.

A pod that must be in a single NUMA node needs a zone with enough free capacity; the sum over zones does not help. If
the free amounts of all zones are sorted, a placement only changes entries from its zone down. So breaking the smallest
sufficient zone keeps the capacity for the largest pods: best fit over the zones of the predicted placement. Two
criteria apply to nodes of equal rank (ranks.py), the second only to nodes with an equal first criterion:

1. *Loss*, in octaves: log2 of the number of copies of the container that fit the zone's free amount, a weighted mean
   over the requested resources. 0 is an exact fit; twice the free amount is an octave more for every size of zone.
   Added to it are
   - half an octave for an intact zone, because only intact zones fit a pod that needs a whole zone. It also separates
     an intact zone from a slightly used zone where the container is too small for the logarithm;
   - up to an octave and a half for devices and hugepages that the pod does not use, as far as they and the rest of the
     zone are free: pods that need them would lack CPUs in that zone;
   - containers over several zones count as if all of these zones were intact. Their memory makes the zones a group, and
     no zone of a group fits a pod of a single zone until these containers end.
   Containers in the same zones count together, otherwise the mean counts. Plain init containers do not count, because
   they keep nothing.
2. *Fill*: the free share of the node's resources with the pod, in quarters; packing prefers the fuller node, spreading
   the emptier node.

312 * 4 levels in steps of 8 use 9,984 of the 10,001 raw scores. 30 levels per octave separate free amounts that differ
by 2.3 %. Under the logarithm 240 and 241 free CPUs are equal, so the second criterion decides, and 4 and 5 free CPUs
are ten levels apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies.allocations import Allocation, allocation_plans
from topowise_scheduler.verdicts.strategies.scale import Strategy

_LOSSES: Final = 312
_FILLS: Final = 4
_STEP: Final = 8

_LEVELS_PER_OCTAVE: Final = 30
_INTACT: Final = 0.5
_IDLE: Final = 1.5

Octaves = NDArray[np.float64]


class TightFit(Strategy):
    """`weights` of resources, 1 by default."""

    def __init__(self, weights: Mapping[str, int], tie_break: Literal["spread", "pack"]) -> None:
        self._weights = weights
        self._packs = tie_break == "pack"

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) 0 to RAW_MAX."""
        scores = np.zeros(candidates.placed.shape[1], np.int64)
        for where, allocations in allocation_plans(candidates, without_init=True):
            scores = np.where(where, self._levels(candidates, allocations), scores)
        return scores

    def _levels(self, candidates: Candidates, allocations: Sequence[Allocation]) -> NDArray[np.int64]:
        """(nodes,) the raw score: loss and fill combined."""
        count = candidates.placed.shape[1]
        idle = _idle(candidates, allocations)
        loss = np.zeros(count)
        for allocation in allocations:
            loss += self._loss(candidates, allocation, idle)
        # Rounded half up.
        worse = np.floor(loss * (_LEVELS_PER_OCTAVE / len(allocations)) + 0.5).astype(np.int64)
        return (np.maximum(_LOSSES - 1 - worse, 0) * _FILLS + self._fill(candidates, allocations)) * _STEP

    def _loss(self, candidates: Candidates, allocation: Allocation, idle: Iterable[str]) -> Octaves:
        """(nodes,) the loss of an allocation; 0 where nothing is aligned."""
        placed, whole_zones = allocation.placed, candidates.allocatable
        count = placed.masks.size
        octaves, parts = np.zeros(count), np.zeros(count)
        share, left = np.ones(count), np.zeros(count)
        for name, amount in allocation.requests.items():
            # Several zones count as intact.
            free = placed.gather(allocation.available[name], whole_zones[name])
            whole = placed.gather(whole_zones[name], whole_zones[name])
            has = whole > 0
            weight = self._weights.get(name, 1) * has
            octaves += weight * np.log2(np.maximum(free, amount) / amount)
            parts += weight
            np.minimum(share, free / np.maximum(whole, 1), out=share, where=has)
        for name in idle:
            free = placed.gather(candidates.available[name], whole_zones[name])
            whole = placed.gather(whole_zones[name], whole_zones[name])
            np.maximum(left, free / np.maximum(whole, 1), out=left)
        intact = (share >= 1) & (parts > 0)
        return octaves / np.maximum(parts, 1) + _INTACT * intact + _IDLE * np.minimum(left, share)

    def _fill(self, candidates: Candidates, allocations: Iterable[Allocation]) -> NDArray[np.int64]:
        """(nodes,) 0 to _FILLS - 1."""
        count = candidates.placed.shape[1]
        free, parts = np.zeros(count), np.zeros(count)
        for name, amount in _together(allocations).items():
            whole = candidates.allocatable[name].sum(axis=0)
            weight = self._weights.get(name, 1) * (whole > 0)
            free += weight * ((candidates.available[name].sum(axis=0) - amount) / np.maximum(whole, 1))
            parts += weight
        share = np.clip(free / np.maximum(parts, 1), 0.0, 1.0)
        if self._packs:
            share = 1 - share
        return np.minimum(share * _FILLS, _FILLS - 1).astype(np.int64)


def _idle(candidates: Candidates, allocations: Iterable[Allocation]) -> list[str]:
    """Devices and hugepages that no allocation requests."""
    used = {"cpu", "memory"}.union(*(allocation.requests for allocation in allocations))
    return [name for name in candidates.available if name not in used]


def _together(allocations: Iterable[Allocation]) -> dict[str, int]:
    total: dict[str, int] = {}
    for allocation in allocations:
        for name, amount in allocation.requests.items():
            total[name] = total.get(name, 0) + amount
    return total
