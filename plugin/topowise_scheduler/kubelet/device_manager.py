"""The device manager: devices of plugins, near the NUMA nodes of the hint (pkg/kubelet/cm/devicemanager).

A set of devices is an integer over the resource's ids in ascending order, so the lowest id is the lowest bit. Where the
kubelet takes any device of a set (Go's map order), the model takes the lowest id, or the devices that a `chooser`
returns. With a `chooser`, a caller can try every choice that the kubelet may make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import panics
from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.device_table import DeviceSet, DeviceTable, shared_table
from topowise_scheduler.kubelet.hints import IMPOSSIBLE, Hint, Hints, ProviderHints, Refused
from topowise_scheduler.kubelet.machine import Device, Machine
from topowise_scheduler.kubelet.masks import lowest
from topowise_scheduler.kubelet.pod import ContainerView, PodView, device_requests
from topowise_scheduler.kubelet.shared_allocations import single_resource
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED

Devices = dict[str, DeviceSet]


class Choice(NamedTuple):
    """The kubelet takes any `number` of the devices `among` for a container that already has `taken` of the resource.

    `among` are the available devices of `near`. `number` is at most the number of available devices.
    """

    container: str
    resource: str
    among: DeviceSet
    near: DeviceSet
    taken: DeviceSet
    number: int


Chooser = Callable[[Choice], DeviceSet]
"""Returns exactly `number` of the devices `among`."""


class DeviceManager:
    """The state: a table per resource, and the devices of every container by pod UID and name.

    A `chooser` overrides the plugins' preferred allocations (`preferred`). `running` has the names of running
    containers by pod UID while a restarted kubelet admits its pods again, and is empty otherwise.
    """

    __slots__ = (
        "_everywhere",
        "_panics",
        "_reusable",
        "allocated",
        "allocations",
        "chooser",
        "positions",
        "preferred",
        "running",
        "tables",
    )

    def __init__(self, machine: Machine, behaviour: Behaviour = NEWEST_RECORDED.behaviour) -> None:
        self._everywhere = not behaviour.device_hints_are_near_devices
        self._panics = behaviour.unlisted_devices_panic
        self.positions = {node.id: position for position, node in enumerate(machine.nodes())}
        self.preferred = {plugin.resource: plugin.preferred for plugin in machine.devices}
        self.tables = {plugin.resource: self.table(plugin.devices) for plugin in machine.devices}
        self.allocated: dict[str, DeviceSet] = dict.fromkeys(self.tables, 0)
        self.allocations: dict[str, dict[str, Devices]] = {}
        self._reusable: Devices = {}
        self.chooser: Chooser | None = None
        self.running: Mapping[str, Collection[str]] = {}

    def fork(self) -> DeviceManager:
        """Returns an independent copy of the state."""
        copy = DeviceManager.__new__(DeviceManager)
        copy._everywhere = self._everywhere
        copy._panics = self._panics
        copy.positions = self.positions
        copy.preferred = self.preferred
        copy.tables = self.tables.copy()
        copy.allocated = self.allocated.copy()
        copy.allocations = self.allocations.copy()
        copy._reusable = {}
        copy.chooser = self.chooser
        copy.running = self.running
        return copy

    def table(self, devices: Iterable[Device]) -> DeviceTable:
        """Returns the table of a resource for this kubelet; nodes with equal devices share it."""
        return shared_table(tuple(devices), self.positions, everywhere=self._everywhere)

    def report(self, resource: str, table: DeviceTable) -> None:
        """Applies a plugin's new list. Containers keep their devices, whether the list has them or not."""
        old = self.tables.get(resource)
        if old is not None:
            allocated_ids = old.names(self.allocated[resource])
            # Positions in a set are positions among the ids, so allocated sets are translated to the new table.
            table = table.with_ids(allocated_ids)
            self.allocations = {
                uid: {
                    name: {
                        key: table.select(old.names(devices)) if key == resource else devices
                        for key, devices in by_resource.items()
                    }
                    for name, by_resource in containers.items()
                }
                for uid, containers in self.allocations.items()
            }
            self.allocated[resource] = table.select(allocated_ids)
        else:
            self.allocated[resource] = 0
        self.tables[resource] = table

    def free(self, resource: str) -> DeviceSet:
        """Returns the healthy devices that no container has (getAvailableDevices)."""
        return self.tables[resource].healthy & ~self.allocated[resource]

    def begin(self) -> None:
        """Starts an admission: nothing can be reused yet (devicesToReuse)."""
        self._reusable = {}

    def hints(self, pod: PodView, container: ContainerView) -> ProviderHints:
        """Returns the hints for a container (GetTopologyHints)."""
        hints = self._marked(pod, container.limits.get(MARKER))
        reusable = self._reusable
        by_resource = self.allocations.get(pod.uid, {}).get(container.name, {})
        for resource, requested in container.limits.items():
            if resource in hints:
                continue
            table = self.tables.get(resource)
            if table is None or not table.has_topology:
                # No hint means "don't care" (deviceHasTopologyAlignment).
                continue
            allocated = by_resource.get(resource, 0)
            if allocated:
                hints[resource] = self._hints_again(resource, allocated, requested)
            else:
                hints[resource] = _fitting(table, self.free(resource), reusable.get(resource, 0), requested)
        return hints

    def pod_hints(self, pod: PodView) -> ProviderHints:
        """Returns the hints for the pod as a whole (GetPodTopologyHints), which reuses no devices."""
        hints = self._marked(pod, device_requests(pod, MARKER))
        by_container = self.allocations.get(pod.uid, {})
        for resource, table in self.tables.items():
            if resource in hints or not table.has_topology:
                continue
            requested = device_requests(pod, resource)
            if requested is None:
                continue
            allocated = 0
            for by_resource in by_container.values():
                allocated |= by_resource.get(resource, 0)
            if allocated:
                hints[resource] = self._hints_again(resource, allocated, requested)
            else:
                hints[resource] = _fitting(table, self.free(resource), 0, requested)
        return hints

    def _marked(self, pod: PodView, requested: int | None) -> ProviderHints:
        """Returns the hints of the markers for a steered pod, none for any other pod.

        A marker has no NUMA node at rest, so it gives no hint and reports leave it out. Free markers never run out: a
        marker of an ended pod has the same label.
        """
        if pod.steered is None or not requested:
            return {}
        return {MARKER: _fitting(self.table((Device("", (pod.steered,)),)), 1, 0, 1)}

    def _hints_again(self, resource: str, allocated: DeviceSet, requested: int) -> Hints:
        """Returns the hints of a container that has its devices already. Raises Refused where the kubelet would
        panic."""
        table = self.tables[resource]
        if allocated.bit_count() != requested:
            return IMPOSSIBLE
        missing = allocated & ~table.reported
        if missing and self._panics:
            raise panics.device_missing(resource, table.names(missing))
        return _fitting(table, allocated, 0, requested)

    def allocate(self, pod: PodView, container: ContainerView, hint: Hint) -> None:
        """Allocates for a container (allocateContainerResources). Raises Refused without any change."""
        by_container = self.allocations.get(pod.uid, {})
        reusable = dict(self._reusable)
        previous = by_container.get(container.name, {})
        taken: Devices = {}
        is_running = container.name in self.running.get(pod.uid, ())
        for resource, required in container.limits.items():
            table = self.tables.get(resource)
            if table is None:
                continue
            devices = previous.get(resource, 0)
            if devices and devices.bit_count() != required:
                raise Refused(
                    f'pod "{pod.uid}" container "{container.name}" changed request for resource "{resource}" '
                    f"from {devices.bit_count()} to {required}"
                )
            # Upstream checks health before it checks how many devices are needed (kubernetes#109595).
            if not is_running and not table.healthy:
                raise Refused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
            if not is_running and devices & ~table.healthy:
                raise Refused(
                    "previously allocated devices are no longer healthy; cannot allocate unhealthy devices " + resource
                )
            if not is_running and not devices and required > 0:
                pool = reusable.get(resource, 0)
                if self.chooser is None:
                    devices = self._take(resource, required, pool, hint)
                else:
                    devices = self._take_any(self.chooser, container.name, resource, required, pool, hint)
                taken[resource] = devices
            if devices:
                pool = reusable.get(resource, 0)
                reusable[resource] = pool | devices if container.kind == "init" else pool & ~devices
        # Booked only after all resources of the container were found.
        for resource, devices in taken.items():
            self.allocated[resource] |= devices
        if taken:
            self.allocations[pod.uid] = {**by_container, container.name: {**previous, **taken}}
        self._reusable = reusable

    def hold(self, uid: str, container: str, resource: str, ids: tuple[str, ...]) -> None:
        """Books devices that a container is known to have, even if the plugin does not list them."""
        table = self.tables.get(resource) or self.table(())
        extended = table.with_ids(ids)
        if extended is not self.tables.get(resource):
            self.report(resource, extended)
        devices = extended.select(ids)
        by_container = self.allocations.get(uid, {})
        self.allocations[uid] = (
            {**by_container, container: {**by_container.get(container, {}), resource: devices}}
            if by_container
            else single_resource(container, resource, devices)
        )
        self.allocated[resource] |= devices

    def release(self, uid: str) -> None:
        """Releases all devices of the pod."""
        for by_resource in self.allocations.pop(uid, {}).values():
            for resource, devices in by_resource.items():
                self.allocated[resource] &= ~devices

    def recount(self) -> None:
        """Rebuilds the allocated sets from the allocations."""
        allocated = dict.fromkeys(self.tables, 0)
        for containers in self.allocations.values():
            for by_resource in containers.values():
                for resource, devices in by_resource.items():
                    allocated[resource] |= devices
        self.allocated = allocated

    def _take(self, resource: str, required: int, reusable: DeviceSet, hint: Hint) -> DeviceSet:
        # devicesToAllocate: reusable devices first, then devices near the hint, then other devices. Raises Refused.
        taken = lowest(reusable, required)
        needed = required - taken.bit_count()
        if not needed:
            return taken
        available, aligned, without_nodes = self._sides(resource, needed, hint)
        unaligned = available & ~without_nodes & ~aligned
        order: tuple[DeviceSet, ...]
        if needed < aligned.bit_count():
            # Enough aligned devices: the plugin may choose among them only.
            order = (self._preferred(resource, aligned, taken, required) & aligned, aligned)
        else:
            # All aligned devices are taken first; the plugin may choose the rest.
            included = taken | aligned
            preferred = self._preferred(resource, available | taken, included, required)
            order = (aligned, preferred & available, unaligned, without_nodes)
        for devices in order:
            taken |= lowest(devices & ~taken, required - taken.bit_count())
        return taken

    def _take_any(
        self, choose: Chooser, container: str, resource: str, required: int, reusable: DeviceSet, hint: Hint
    ) -> DeviceSet:
        """Implements `_take` with a chooser."""
        table = self.tables[resource]
        count = min(required, reusable.bit_count())
        taken = choose(Choice(container, resource, reusable, reusable, 0, count)) if count else 0
        needed = required - count
        if not needed:
            return taken
        available, aligned, _ = self._sides(resource, needed, hint)
        near = table.healthy & (table.touching(hint.mask) if hint.mask is not None else 0)
        # Among devices that are not near the hint, a plugin may prefer devices without NUMA nodes.
        for among, where in ((aligned, near), (available & ~aligned, table.healthy)):
            count = min(required - taken.bit_count(), among.bit_count())
            if count:
                taken |= choose(Choice(container, resource, among, where, taken, count))
        return taken

    def _sides(self, resource: str, needed: int, hint: Hint) -> tuple[DeviceSet, DeviceSet, DeviceSet]:
        """Returns the available devices, the aligned devices, and the devices to take last. Raises Refused."""
        # filterByAffinity.
        table, available = self.tables[resource], self.free(resource)
        if available.bit_count() < needed:
            raise Refused(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {available.bit_count()}"
            )
        if hint.mask is None or not table.has_topology:
            return available, 0, available
        return available, available & table.touching(hint.mask), available & table.without_nodes

    def _preferred(self, resource: str, available: DeviceSet, included: DeviceSet, size: int) -> DeviceSet:
        """Returns a plugin's answer to GetPreferredAllocation: `included`, filled up from an end of the ids."""
        preference = self.preferred.get(resource, "")
        missing = size - included.bit_count()
        candidates = available & ~included
        if not preference or missing <= 0:
            return 0
        if preference == "first":
            return included | lowest(candidates, missing)
        return included | candidates & ~lowest(candidates, candidates.bit_count() - missing)


def _fitting(table: DeviceTable, available: DeviceSet, reusable: DeviceSet, requested: int) -> Hints:
    # generateDeviceTopologyHints: masks over the nodes of the table that touch enough devices.
    if (available | reusable).bit_count() < requested:
        return IMPOSSIBLE
    # A reusable device must be near the mask; upstream skips a device whose topology is nil.
    reusable_near = reusable & ~table.without_topology
    missing = requested - reusable_near.bit_count()
    fits = table.touched_by(available, missing)
    if reusable_near:
        fits &= table.touching_all(reusable_near)
    return Hints(fits, fits & table.sizes[table.smallest_mask(requested)])
