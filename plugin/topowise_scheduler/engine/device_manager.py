"""The device manager of many nodes at once (kubelet/device_manager.py), by numbers of devices per NUMA node.

Invariant: where a node is not deferred to the model, the numbers of free devices kept here are those its device manager
would have left after the same containers. A device near several NUMA nodes is in no such number, so such nodes are
deferred.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Kind
from topowise_scheduler.engine.mask_arrays import (
    LOWEST_ZONE,
    Flags,
    Masks,
    Subset,
    at_zone,
    popcounts,
    to_masks,
    zones_in,
)
from topowise_scheduler.engine.node_groups import NodesView
from topowise_scheduler.engine.topology_manager import CountHints, ResourceHints
from topowise_scheduler.engine.verdicts import FAILED, Decisions

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _Resource:
    """One resource. `free` (zones, nodes), `free_all` (nodes,) with those near no NUMA node; `healthy`, `held`,
    `requested` by pods, `registered`, `aligned` (it has topology) and `crossing` (a device is near several NUMA
    nodes) as the node has them.

    `reusable` devices of init containers, on every node the same number, all on `zone`; `taken` for this pod anew.
    `unknown`: where it is not known from which NUMA nodes devices were taken. `owned`: `free` may be written to.
    """

    free: Numbers
    free_all: Numbers
    healthy: Numbers
    held: Numbers
    requested: Numbers
    registered: Flags
    aligned: Flags
    crossing: Flags
    reusable: int = 0
    zone: Masks | None = None
    taken: int = 0
    unknown: Flags | None = None
    owned: bool = False


class DeviceManager:
    """The state of all resources the pod asks for."""

    def __init__(self, counts: NodesView, decisions: Decisions) -> None:
        self.counts = counts
        self.decisions = decisions
        self._resources: dict[str, _Resource | None] = {}

    def hints(self, name: str, count: int) -> ResourceHints | None:
        """The hints for so many devices, None if no node has any."""
        resource = self._resource(name)
        if resource is None or not resource.aligned.any():
            return None
        self.decisions.defer(resource.aligned & resource.crossing, "devices-near-several-nodes")
        if resource.unknown is not None:
            self.decisions.defer(resource.aligned & resource.unknown, "devices-over-several-nodes")
        wanted = count - resource.reusable
        singles = to_masks(resource.free >= wanted)
        bound = resource.zone if resource.reusable else None
        if bound is not None:
            singles = singles & bound
        sizes = self.counts.device_sizes(name, count)
        active = None if resource.aligned.all() else resource.aligned
        return CountHints(resource.free, wanted, singles, sizes, active, bound)

    def check(self, name: str, count: int) -> None:
        """Refuse where no hint would help."""
        resource = self._resource(name)
        if resource is not None:
            anew = max(0, count - resource.reusable) if count > 0 else 0
            lacking = (resource.healthy == 0) | (resource.free_all < anew)
            self.decisions.refuse(resource.registered & lacking, FAILED)

    def allocate(self, name: str, count: int, kind: Kind, hint: Masks, *, more: bool) -> None:
        """Allocate what `check` let pass; `more`: a later container asks for the resource too."""
        resource = self._resource(name)
        if resource is None or count <= 0:
            return
        anew = max(0, count - resource.reusable)
        resource.taken += anew
        if more:
            if anew:
                self._take(resource, anew, hint)
            before = resource.reusable
            resource.reusable = max(before, count) if kind == "init" else max(0, before - count)
            if not before:
                resource.zone = hint if self.counts.zones > 1 else np.ones_like(hint)

    def aligned(self, name: str) -> Flags | None:
        """Where devices of the resource are near NUMA nodes, None if nowhere."""
        resource = self._resource(name)
        return None if resource is None else resource.aligned

    def located(self, name: str, count: int, hint: Masks, preferred: Flags, subset: Subset, known: Flags) -> Masks:
        """(subset,) the NUMA nodes near which `allocate` takes so many; where ids decide, `known` (nodes,) is
        cleared and they are all that may be.

        Those of the hint come first, and of as many as are wanted, or of a single NUMA node, it is clear which.
        """
        resource, nothing = self._resource(name), np.zeros(len(subset), dtype=np.uint8)
        if resource is None or count <= 0:
            return nothing
        free, zones = np.maximum(resource.free[:, subset], 0), self.counts.zones
        inside = free * zones_in(hint[subset], zones)
        first, others = to_masks(inside > 0), to_masks(free > inside)
        wanted, have = np.minimum(count, inside.sum(axis=0)), popcounts(zones)
        sure = (wanted == inside.sum(axis=0)) | (have[first] <= 1)
        rest, left = count - wanted, resource.free_all[subset] - inside.sum(axis=0)
        near = (free - inside).sum(axis=0)
        sure &= (rest == 0) | (rest == left) | ((have[others] <= 1) & (near == left))
        found = first * (wanted > 0) | others * (rest > 0)
        # Where earlier containers may have taken any, the numbers are not right; but a preferred hint has enough.
        counted = ~resource.crossing[subset] & (resource.reusable == 0)
        if resource.unknown is not None:
            counted &= ~resource.unknown[subset]
        possible = np.where(preferred[subset], hint[subset], np.uint8((1 << zones) - 1))
        aligned = resource.aligned[subset]
        known[subset[aligned & ~(sure & counted)]] = False
        return np.where(aligned, np.where(counted, found, possible), nothing)

    def short(self, name: str, requested: int, holding: Flags) -> Flags | None:
        """Whether the predicates miss devices. `holding`: the pod was given some of any resource."""
        resource = self._resource(name)
        if resource is None:
            return None
        capacity = np.where(holding, np.maximum(resource.healthy, resource.held + resource.taken), resource.healthy)
        short: Flags = resource.registered & (requested > capacity - resource.requested)
        return short

    def registered(self, name: str) -> Flags | None:
        """Where there is a plugin for the resource, None if nowhere."""
        resource = self._resource(name)
        return None if resource is None else resource.registered

    def _take(self, resource: _Resource, anew: int, hint: Masks) -> None:
        zones = self.counts.zones
        if not resource.owned:
            resource.free, resource.owned = resource.free.copy(), True
        zone = LOWEST_ZONE[hint]
        have = at_zone(resource.free, zone)
        within = (popcounts(zones)[hint] == 1) & (have >= anew)
        if resource.reusable and resource.zone is not None:
            within &= hint == resource.zone
        if zones == 1:
            # Without affinity any devices are taken, also those near no NUMA node.
            within = (have >= anew) & ((hint != 0) | (have == resource.free_all))
        resource.unknown = ~within if resource.unknown is None else resource.unknown | ~within
        resource.free[zone, np.arange(len(zone))] -= anew
        resource.free_all = resource.free_all - anew

    def _resource(self, name: str) -> _Resource | None:
        if name in self._resources:
            return self._resources[name]
        found = None
        if ("device", name) in self.counts:
            section, zones = self.counts.section(("device", name)), self.counts.zones
            rest = section[zones:]
            found = _Resource(section[:zones], *rest[:4], *(rest[4:] > 0))
        self._resources[name] = found
        return found
