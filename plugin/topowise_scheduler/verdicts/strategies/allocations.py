"""The containers of a pod in order, each with the resources that the previous containers leave on the candidates.

Upstream scores every container against the same zones. Here the zones lack what the previous containers keep. A plain
init container keeps nothing. A container has mostly a single zone, sometimes several, sometimes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise.pods import peak
from topowise_scheduler.verdicts.engine import AlignedContainer, Candidates

PerZone = NDArray[np.int64]
Zones = NDArray[np.int64]
"""(nodes,) sets of zones, bit z for position z."""


@dataclass(frozen=True, slots=True)
class PlacedZones:
    """`masks` (nodes,) by number of zones. `single` are the nodes with a single zone, `flat` the index of that zone in
    a flattened (zones, nodes) array. `several` are the nodes with more zones, `inside` (zones, several) whether each
    zone is in the mask. `none` are the nodes without zones."""

    masks: Zones
    single: NDArray[np.intp]
    flat: NDArray[np.intp]
    several: NDArray[np.intp]
    inside: NDArray[np.int64]
    none: NDArray[np.intp]

    @classmethod
    def of(cls, masks: Zones, zones: int) -> PlacedZones:
        counts = np.bitwise_count(masks)
        single, several = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
        # The position of the only set bit is the number of bits below it.
        zone = np.bitwise_count(masks[single] - 1).astype(np.intp)
        return cls(
            masks,
            single,
            zone * masks.size + single,
            several,
            masks[several] >> np.arange(zones)[:, None] & 1,
            np.flatnonzero(counts == 0),
        )

    def at_single(self, amounts: PerZone) -> NDArray[np.int64]:
        """(single,) the entry of (zones, nodes) at the single zone."""
        return amounts.take(self.flat)

    def at_several(self, amounts: PerZone) -> NDArray[np.int64]:
        """(several,) the sum of (zones, nodes) over the zones of the mask."""
        total: NDArray[np.int64] = (amounts.take(self.several, axis=1) * self.inside).sum(axis=0)
        return total

    def gather(self, single: PerZone, several: PerZone) -> NDArray[np.int64]:
        """(nodes,) `at_single` of the first argument, `at_several` of the second, 0 for nodes without zones."""
        if self.single.size == self.masks.size:
            return self.at_single(single)
        amounts = np.zeros(self.masks.size, np.int64)
        amounts[self.single] = self.at_single(single)
        if self.several.size:
            amounts[self.several] = self.at_several(several)
        return amounts

    def without(self, available: PerZone, amount: int) -> PerZone:
        """(zones, nodes) the available amounts after each node has allocated `amount`, from its lowest zone on."""
        left = available.copy()
        left.put(self.flat, np.maximum(self.at_single(available) - amount, 0))
        if self.several.size:
            rest = np.full(self.several.size, amount, np.int64)
            for zone, inside in enumerate(self.inside):
                taken = np.minimum(left[zone, self.several], rest) * inside
                left[zone, self.several] -= taken
                rest -= taken
        return left


INIT: Final = "init"


@dataclass(frozen=True, slots=True)
class Allocation:
    """A step of the placement: its positive `requests`, and the `available` amount (zones, nodes) before it."""

    requests: Mapping[str, int]
    available: Mapping[str, PerZone]
    placed: PlacedZones


class AllocationPlan(NamedTuple):
    """The steps of a placement: the allocations, computed for all nodes, are valid for `where` (nodes,)."""

    where: NDArray[np.bool_]
    allocations: Sequence[Allocation]


def allocation_plans(candidates: Candidates, *, without_init: bool = False) -> Iterator[AllocationPlan]:
    """The allocations on every node, none without requests. `without_init` leaves plain init containers out.

    Where all containers have the same zones they form a single allocation, elsewhere an allocation each. So a pod
    counts as a unit in scope pod, and in scope container where that makes no difference to the zones.
    """
    chosen = [
        index
        for index, container in enumerate(candidates.containers)
        if aligned_requests(candidates, container) and not (without_init and container.kind == INIT)
    ]
    if not chosen:
        return
    containers = [candidates.containers[index] for index in chosen]
    masks = candidates.placed[chosen]
    together = (masks == masks[0]).all(axis=0)
    if together.any():
        requests = peak_requests(candidates, containers)
        available = {name: candidates.available[name] for name in requests}
        yield AllocationPlan(together, [Allocation(requests, available, PlacedZones.of(masks[0], candidates.zones))])
    if not together.all():
        yield AllocationPlan(~together, list(_one_by_one(candidates, containers, masks)))


def _one_by_one(
    candidates: Candidates, containers: Sequence[AlignedContainer], masks: NDArray[np.int64]
) -> Iterator[Allocation]:
    left = dict(candidates.available)
    for index, (container, mask) in enumerate(zip(containers, masks, strict=True)):
        requests = aligned_requests(candidates, container)
        placed = PlacedZones.of(mask, candidates.zones)
        yield Allocation(requests, {name: left[name] for name in requests}, placed)
        if container.kind != INIT and index + 1 < len(containers):
            left |= {name: placed.without(left[name], amount) for name, amount in requests.items()}


def aligned_requests(candidates: Candidates, container: AlignedContainer) -> dict[str, int]:
    """The positive requests of a container for resources that any candidate aligns."""
    return {name: amount for name, amount in container.requests.items() if amount > 0 and name in candidates.available}


def peak_requests(candidates: Candidates, containers: Sequence[AlignedContainer]) -> dict[str, int]:
    """The requests of these containers together."""
    requests = [(container.kind, aligned_requests(candidates, container)) for container in containers]
    names = dict.fromkeys(name for _, amounts in requests for name in amounts)
    return {name: peak([(kind, amounts.get(name, 0)) for kind, amounts in requests]) for name in names}


def has_resource(candidates: Candidates, name: str) -> NDArray[np.bool_] | None:
    """(nodes,) whether any zone of a node has the resource; None if so on all nodes. The kubelet does not align a
    resource that no zone has."""
    somewhere = np.asarray(candidates.allocatable[name].any(axis=0))
    return None if somewhere.all() else somewhere
