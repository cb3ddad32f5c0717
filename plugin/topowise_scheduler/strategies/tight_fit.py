"""TightFit: put the pod where it costs the least room for large pods to come.

A pod that must lie in one NUMA node needs one large hole, not much room in all. Sort the free amounts of all zones of
the cluster: placing a pod leaves the list as it was down to the hole it goes into. So the largest pods that can still
come are kept by breaking the smallest hole that will do: best fit, over the zones on which the pod is predicted to lie.
What counts among nodes of equal rank (ranks.py), the second only among equals of the first:

1. *Loss*, in octaves: log2 of how many copies of the container the hole had, a weighted mean over the resources it asks
   for. 0 is an exact fit; twice the hole is an octave more, whatever the zone's size. On top of it come
   - half an octave for an intact zone, the only home of a pod that wants a whole one. It also tells a zone that is
     barely touched from an intact one, when the container is too small for the logarithm to;
   - up to an octave and a half for devices and hugepages the pod leaves idle, as far as both they and the rest of the
     zone are still free: pods that want them would find no CPUs beside them;
   - containers over several zones break all of these as if they were intact, whatever is free. They tie the memory of
     these zones together, so that no zone of them takes a pod of one zone until they end, whoever else does before.
   Containers in the same zones break one hole together, of others it is the mean. Plain init containers do not count:
   they leave the hole as it was.
2. *Fill*: the free share of the node's resources once the pod is there, in quarters; packing prefers the fuller node,
   spreading the emptier.

312 * 4 levels, 8 apart: 9,984 of the 10,001 raw scores. 30 levels an octave tell holes of 2.3 % difference. A
logarithm keeps the first level from drowning the second by differences that do not matter, such as 240 or 241 free
CPUs, and still tells 4 from 5 by ten levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Candidates
from topowise_scheduler.strategies.allocations import Allocation, allocation_plans

_LOSSES: Final = 312
_FILLS: Final = 4
_STEP: Final = 8

_LEVELS_PER_OCTAVE: Final = 30
_INTACT: Final = 0.5
_IDLE: Final = 1.5

Octaves = NDArray[np.float64]


class TightFit:
    """`weights` of resources; one that is missing has 1."""

    in_percent = False

    def __init__(self, weights: Mapping[str, int], tie_break: Literal["spread", "pack"]) -> None:
        self._weights = weights
        self._packs = tie_break == "pack"

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) 0 to RAW_MAX."""
        scores = np.zeros(candidates.placed.shape[1], np.int64)
        for where, allocations in allocation_plans(candidates, without_init=True):
            scores = np.where(where, self._levels(candidates, allocations), scores)
        return scores

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """As it is."""
        return raw

    def _levels(self, candidates: Candidates, allocations: Sequence[Allocation]) -> NDArray[np.int64]:
        """(nodes,) both levels in one number."""
        count = candidates.placed.shape[1]
        idle = _idle(candidates, allocations)
        loss = np.zeros(count)
        for allocation in allocations:
            loss += self._loss(candidates, allocation, idle)
        # Half up.
        worse = np.floor(loss * (_LEVELS_PER_OCTAVE / len(allocations)) + 0.5).astype(np.int64)
        return (np.maximum(_LOSSES - 1 - worse, 0) * _FILLS + self._fill(candidates, allocations)) * _STEP

    def _loss(self, candidates: Candidates, allocation: Allocation, idle: Iterable[str]) -> Octaves:
        """(nodes,) of one allocation; 0 where nothing is aligned."""
        placed, whole_zones = allocation.placed, candidates.allocatable
        count = placed.masks.size
        octaves, parts = np.zeros(count), np.zeros(count)
        share, left = np.ones(count), np.zeros(count)
        for name, amount in allocation.requests.items():
            # Several zones are given up whole.
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
    """Devices and hugepages that none of these asks for."""
    used = {"cpu", "memory"}.union(*(allocation.requests for allocation in allocations))
    return [name for name in candidates.available if name not in used]


def _together(allocations: Iterable[Allocation]) -> dict[str, int]:
    total: dict[str, int] = {}
    for allocation in allocations:
        for name, amount in allocation.requests.items():
            total[name] = total.get(name, 0) + amount
    return total
