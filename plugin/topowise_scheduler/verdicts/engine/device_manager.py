"""The device manager of many nodes at once (kubelet/device_manager.py), by number of devices per NUMA node.

Invariant: on a node that is not deferred to the model, the free devices per NUMA node equal those of its device manager
after the same containers. Such numbers cannot represent a device near several NUMA nodes, so its node is deferred.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Kind
from topowise_scheduler.verdicts.engine.mask_arrays import (
    LOWEST_ZONE,
    Flags,
    Masks,
    Subset,
    at_zone,
    popcounts,
    to_masks,
    zones_in,
)
from topowise_scheduler.verdicts.engine.node_groups import NodesView
from topowise_scheduler.verdicts.engine.topology_manager import CountHints, ResourceHints
from topowise_scheduler.verdicts.engine.verdicts import FAILED, Decisions

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _Resource:
    """The state of a resource. `free` (zones, nodes), `free_all` (nodes,) including devices near no NUMA node.
    `healthy`, `allocated`, `requested` (by pods), `registered`, `aligned` (with topology) and `crossing` (a device is
    near several NUMA nodes) are (nodes,).

    `reusable` is the number of init containers' devices, equal on every node, all near `zone`. `taken` is the number of
    devices newly allocated to this pod. `unknown`: the NUMA nodes of taken devices are unknown. `is_copy`: `free` may
    be written.
    """

    free: Numbers
    free_all: Numbers
    healthy: Numbers
    allocated: Numbers
    requested: Numbers
    registered: Flags
    aligned: Flags
    crossing: Flags
    reusable: int = 0
    zone: Masks | None = None
    taken: int = 0
    unknown: Flags | None = None
    is_copy: bool = False


class DeviceManager:
    """The state of the resources that the pod requests."""

    def __init__(self, nodes: NodesView, decisions: Decisions) -> None:
        self.nodes = nodes
        self.decisions = decisions
        self._resources: dict[str, _Resource | None] = {}

    def hints(self, name: str, count: int) -> ResourceHints | None:
        """The hints for this number of devices (generateDeviceTopologyHints), None if no node has hints."""
        resource = self._resource(name)
        if resource is None or not resource.aligned.any():
            return None
        self.decisions.defer(resource.aligned & resource.crossing, "devices-near-several-nodes")
        if resource.unknown is not None:
            self.decisions.defer(resource.aligned & resource.unknown, "devices-over-several-nodes")
        fresh = count - resource.reusable
        singles = to_masks(resource.free >= fresh)
        bound = resource.zone if resource.reusable else None
        if bound is not None:
            # A hint must contain the NUMA node of the reusable devices.
            singles = singles & bound
        sizes = self.nodes.device_sizes(name, count)
        active = None if resource.aligned.all() else resource.aligned
        return CountHints(resource.free, fresh, singles, sizes, active, bound)

    def check(self, name: str, count: int) -> None:
        """Refuses a container under every hint (allocateContainerResources)."""
        resource = self._resource(name)
        if resource is not None:
            fresh = max(0, count - resource.reusable) if count > 0 else 0
            lacking = (resource.healthy == 0) | (resource.free_all < fresh)
            # The device manager ignores resources without a registered plug-in.
            self.decisions.refuse(resource.registered & lacking, FAILED)

    def allocate(self, name: str, count: int, kind: Kind, hint: Masks, *, more: bool) -> None:
        """Allocates a container that passed `check`; `more`: a later container requests the resource too."""
        resource = self._resource(name)
        if resource is None or count <= 0:
            return
        fresh = max(0, count - resource.reusable)
        resource.taken += fresh
        if more:
            if fresh:
                self._take(resource, fresh, hint)
            before = resource.reusable
            resource.reusable = max(before, count) if kind == "init" else max(0, before - count)
            # The first init container decides; `_take` marks nodes with further NUMA nodes as unknown.
            if not before:
                resource.zone = hint if self.nodes.zones > 1 else np.ones_like(hint)

    def aligned(self, name: str) -> Flags | None:
        """(nodes,) whether devices of the resource have NUMA nodes, None if on no node."""
        resource = self._resource(name)
        return None if resource is None else resource.aligned

    def located(self, name: str, count: int, hint: Masks, preferred: Flags, subset: Subset, known: Flags) -> Masks:
        """(subset,) the NUMA nodes of the devices that `allocate` takes. Where ids decide, they are an upper bound and
        `known` (nodes,) is cleared.

        Devices near the hint come first (filterByAffinity). If all devices of a side are taken, or they are near a
        single NUMA node, amounts decide.
        """
        resource, nothing = self._resource(name), np.zeros(len(subset), dtype=np.uint8)
        if resource is None or count <= 0:
            return nothing
        # ABSENT is negative.
        free, zones = np.maximum(resource.free[:, subset], 0), self.nodes.zones
        inside = free * zones_in(hint[subset], zones)
        first, second, sizes = to_masks(inside > 0), to_masks(free > inside), popcounts(zones)
        near_hint = np.minimum(count, inside.sum(axis=0))
        sure = (near_hint == inside.sum(axis=0)) | (sizes[first] <= 1)
        rest, left = count - near_hint, resource.free_all[subset] - inside.sum(axis=0)
        with_node = (free - inside).sum(axis=0)
        sure &= (rest == 0) | (rest == left) | ((sizes[second] <= 1) & (with_node == left))
        masks = first * (near_hint > 0) | second * (rest > 0)
        # Numbers are unreliable after an earlier container took any device. A preferred hint is still sufficient.
        counted = ~resource.crossing[subset] & (resource.reusable == 0)
        if resource.unknown is not None:
            counted &= ~resource.unknown[subset]
        possible = np.where(preferred[subset], hint[subset], np.uint8((1 << zones) - 1))
        aligned = resource.aligned[subset]
        known[subset[aligned & ~(sure & counted)]] = False
        return np.where(aligned, np.where(counted, masks, possible), nothing)

    def short(self, name: str, requested: int, has_devices: Flags) -> Flags | None:
        """(nodes,) whether the predicates miss devices. `has_devices`: the pod was allocated devices of any resource.

        Then sanitizeNodeAllocatable raises node allocatable to the allocated devices.
        """
        resource = self._resource(name)
        if resource is None:
            return None
        raised = np.maximum(resource.healthy, resource.allocated + resource.taken)
        capacity = np.where(has_devices, raised, resource.healthy)
        short: Flags = resource.registered & (requested > capacity - resource.requested)
        return short

    def registered(self, name: str) -> Flags | None:
        """(nodes,) whether a device plug-in has registered the resource, None if on no node."""
        resource = self._resource(name)
        return None if resource is None else resource.registered

    def _take(self, resource: _Resource, fresh: int, hint: Masks) -> None:
        """Takes devices that are not reused (devicesToAllocate)."""
        zones = self.nodes.zones
        if not resource.is_copy:
            # `free` may be a view of the group's arrays, which must not change.
            resource.free, resource.is_copy = resource.free.copy(), True
        zone = LOWEST_ZONE[hint]
        free = at_zone(resource.free, zone)
        within = (popcounts(zones)[hint] == 1) & (free >= fresh)
        if resource.reusable and resource.zone is not None:
            within &= hint == resource.zone
        if zones == 1:
            # Without affinity any devices are taken, including devices near no NUMA node.
            within = (free >= fresh) & ((hint != 0) | (free == resource.free_all))
        resource.unknown = ~within if resource.unknown is None else resource.unknown | ~within
        resource.free[zone, np.arange(len(zone))] -= fresh
        resource.free_all = resource.free_all - fresh

    def _resource(self, name: str) -> _Resource | None:
        if name in self._resources:
            return self._resources[name]
        resource = None
        section, zones = self.nodes.find(("device", name)), self.nodes.zones
        if section is not None:
            rest = section[zones:]
            resource = _Resource(section[:zones], *rest[:4], *(rest[4:] > 0))
        self._resources[name] = resource
        return resource
