"""The device manager: devices of plugins, near the NUMA nodes of the hint (pkg/kubelet/cm/devicemanager).

A set of devices is an integer over the ids of the resource in ascending order, so "the lowest id" is the lowest bit.
Where the kubelet takes any device of a set (Go's map order) the lowest id is taken here, unless a `chooser` says which:
so one can go through all that it may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.device_table import DeviceSet, DeviceTable, shared_table
from topowise_scheduler.kubelet.hints import IMPOSSIBLE, Hint, Hints, ProviderHints, Refused
from topowise_scheduler.kubelet.machine import Device, Machine
from topowise_scheduler.kubelet.masks import lowest
from topowise_scheduler.kubelet.pod import ContainerView, PodView, device_requests
from topowise_scheduler.kubelet.shared_allocations import single_resource
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED

Holding = dict[str, DeviceSet]


class Choice(NamedTuple):
    """The kubelet takes any `number` of the devices `among` for a container that has `taken` of the resource already.

    `among` are those of `near` that can be had. `number` is at most as many as those.
    """

    container: str
    resource: str
    among: DeviceSet
    near: DeviceSet
    taken: DeviceSet
    number: int


Chooser = Callable[[Choice], DeviceSet]
"""Which devices are taken: exactly `number`, of those `among`."""


class DeviceManager:
    """The state: a table per resource, and the devices of every container by pod uid and name.

    With a `chooser`, what plugins prefer (`preferred`) does not count: who chooses knows better.
    """

    __slots__ = ("_everywhere", "_reusable", "allocated", "allocations", "chooser", "positions", "preferred", "tables")

    def __init__(self, machine: Machine, behaviour: Behaviour = NEWEST_RECORDED.behaviour) -> None:
        self._everywhere = not behaviour.device_hints_are_near_devices
        self.positions = {node.id: position for position, node in enumerate(machine.nodes())}
        self.preferred = {plugin.resource: plugin.preferred for plugin in machine.devices}
        self.tables = {plugin.resource: self.table(plugin.devices) for plugin in machine.devices}
        self.allocated: dict[str, DeviceSet] = dict.fromkeys(self.tables, 0)
        self.allocations: dict[str, dict[str, Holding]] = {}
        self._reusable: Holding = {}
        self.chooser: Chooser | None = None

    def fork(self) -> DeviceManager:
        """An independent copy of the state."""
        copy = DeviceManager.__new__(DeviceManager)
        copy._everywhere = self._everywhere
        copy.positions = self.positions
        copy.preferred = self.preferred
        copy.tables = self.tables.copy()
        copy.allocated = self.allocated.copy()
        copy.allocations = self.allocations.copy()
        copy._reusable = {}
        copy.chooser = self.chooser
        return copy

    def table(self, devices: Iterable[Device]) -> DeviceTable:
        """The devices of one resource, as this kubelet looks at them; nodes that have the same share it."""
        return shared_table(tuple(devices), self.positions, everywhere=self._everywhere)

    def report(self, resource: str, table: DeviceTable) -> None:
        """The plugin reports a new list; devices that containers hold stay theirs, whatever the list says."""
        old = self.tables.get(resource)
        if old is not None:
            held_ids = old.names(self.allocated[resource])
            table = table.with_ids(held_ids)
            self.allocations = {
                uid: {
                    name: {
                        held: table.select(old.names(devices)) if held == resource else devices
                        for held, devices in holding.items()
                    }
                    for name, holding in containers.items()
                }
                for uid, containers in self.allocations.items()
            }
            self.allocated[resource] = table.select(held_ids)
        else:
            self.allocated[resource] = 0
        self.tables[resource] = table

    def free(self, resource: str) -> DeviceSet:
        """Healthy devices nobody holds."""
        return self.tables[resource].healthy & ~self.allocated[resource]

    def begin(self) -> None:
        """A new admission begins: nothing is left for reuse yet (devicesToReuse)."""
        self._reusable = {}

    def hints(self, pod: PodView, container: ContainerView) -> ProviderHints:
        """GetTopologyHints."""
        found: ProviderHints = {}
        reusable = self._reusable
        mine = self.allocations.get(pod.uid, {}).get(container.name, {})
        for resource, requested in container.limits.items():
            table = self.tables.get(resource)
            if table is None or not table.has_topology:
                continue
            held = mine.get(resource, 0)
            if held:
                found[resource] = self._hints_again(table, held, requested)
            else:
                found[resource] = _fitting(table, self.free(resource), reusable.get(resource, 0), requested)
        return found

    def pod_hints(self, pod: PodView) -> ProviderHints:
        """GetPodTopologyHints: nothing is reusable there."""
        found: ProviderHints = {}
        mine = self.allocations.get(pod.uid, {})
        for resource, table in self.tables.items():
            if not table.has_topology:
                continue
            requested = device_requests(pod, resource)
            if requested is None:
                continue
            held = 0
            for holding in mine.values():
                held |= holding.get(resource, 0)
            if held:
                found[resource] = self._hints_again(table, held, requested)
            else:
                found[resource] = _fitting(table, self.free(resource), 0, requested)
        return found

    def allocate(self, pod: PodView, container: ContainerView, hint: Hint) -> None:
        """Allocate for one container (allocateContainerResources). Raises Refused; nothing is booked then."""
        mine = self.allocations.get(pod.uid, {})
        reusable = dict(self._reusable)
        held = mine.get(container.name, {})
        taken: Holding = {}
        for resource, required in container.limits.items():
            table = self.tables.get(resource)
            if table is None:
                continue
            devices = held.get(resource, 0)
            if devices and devices.bit_count() != required:
                raise Refused(
                    f'pod "{pod.uid}" container "{container.name}" changed request for resource "{resource}" '
                    f"from {devices.bit_count()} to {required}"
                )
            if not table.healthy:
                raise Refused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
            if not devices and required > 0:
                given = reusable.get(resource, 0)
                if self.chooser is None:
                    devices = self._take(resource, required, given, hint)
                else:
                    devices = self._take_any(self.chooser, container.name, resource, required, given, hint)
                taken[resource] = devices
            if devices:
                before = reusable.get(resource, 0)
                reusable[resource] = before | devices if container.kind == "init" else before & ~devices
        for resource, devices in taken.items():
            self.allocated[resource] |= devices
        if taken:
            self.allocations[pod.uid] = {**mine, container.name: {**held, **taken}}
        self._reusable = reusable

    def hold(self, uid: str, container: str, resource: str, ids: tuple[str, ...]) -> None:
        """Book devices that a container is known to have, on the plugin's list or not."""
        table = self.tables.get(resource) or self.table(())
        known = table.with_ids(ids)
        if known is not self.tables.get(resource):
            self.report(resource, known)
        devices = known.select(ids)
        mine = self.allocations.get(uid, {})
        self.allocations[uid] = (
            {**mine, container: {**mine.get(container, {}), resource: devices}}
            if mine
            else single_resource(container, resource, devices)
        )
        self.allocated[resource] |= devices

    def release(self, uid: str) -> None:
        """Give back all the pod has."""
        for holding in self.allocations.pop(uid, {}).values():
            for resource, devices in holding.items():
                self.allocated[resource] &= ~devices

    def recount(self) -> None:
        """Only what is held is taken."""
        allocated = dict.fromkeys(self.tables, 0)
        for containers in self.allocations.values():
            for holding in containers.values():
                for resource, devices in holding.items():
                    allocated[resource] |= devices
        self.allocated = allocated

    def _hints_again(self, table: DeviceTable, held: DeviceSet, requested: int) -> Hints:
        """The container has its devices already, after a restart of the kubelet."""
        return _fitting(table, held, 0, requested) if held.bit_count() == requested else IMPOSSIBLE

    def _take(self, resource: str, required: int, reusable: DeviceSet, hint: Hint) -> DeviceSet:
        """devicesToAllocate: reuse, then near the hint, then elsewhere; a plugin may prefer some. Raises Refused."""
        taken = lowest(reusable, required)
        needed = required - taken.bit_count()
        if not needed:
            return taken
        available, aligned, rest = self._sides(resource, needed, hint)
        unaligned = available & ~rest & ~aligned
        order: tuple[DeviceSet, ...]
        if needed < aligned.bit_count():
            order = (self._preferred(resource, aligned, taken, required) & aligned, aligned)
        else:
            kept = taken | aligned
            wish = self._preferred(resource, available | taken, kept, required)
            order = (aligned, wish & available, unaligned, rest)
        for devices in order:
            taken |= lowest(devices & ~taken, required - taken.bit_count())
        return taken

    def _take_any(
        self, choose: Chooser, container: str, resource: str, required: int, reusable: DeviceSet, hint: Hint
    ) -> DeviceSet:
        """The same by a chooser. Of devices that are not near the hint a plugin may prefer those without NUMA nodes."""
        table = self.tables[resource]
        count = min(required, reusable.bit_count())
        taken = choose(Choice(container, resource, reusable, reusable, 0, count)) if count else 0
        needed = required - count
        if not needed:
            return taken
        available, aligned, _ = self._sides(resource, needed, hint)
        near = table.healthy & (table.touching(hint.mask) if hint.mask is not None else 0)
        for among, where in ((aligned, near), (available & ~aligned, table.healthy)):
            count = min(required - taken.bit_count(), among.bit_count())
            if count:
                taken |= choose(Choice(container, resource, among, where, taken, count))
        return taken

    def _sides(self, resource: str, needed: int, hint: Hint) -> tuple[DeviceSet, DeviceSet, DeviceSet]:
        """filterByAffinity: what is available, of that what is near the hint, and what comes last. Raises Refused."""
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
        """What the plugin answers to GetPreferredAllocation: `included`, filled up from one end of the ids."""
        preference = self.preferred.get(resource, "")
        missing = size - included.bit_count()
        others = available & ~included
        if not preference or missing <= 0:
            return 0
        if preference == "first":
            return included | lowest(others, missing)
        return included | others & ~lowest(others, others.bit_count() - missing)


def _fitting(table: DeviceTable, available: DeviceSet, reusable: DeviceSet, requested: int) -> Hints:
    """generateDeviceTopologyHints: the masks over the nodes of the table that touch enough devices."""
    if (available | reusable).bit_count() < requested:
        return IMPOSSIBLE
    # A device to reuse must be near the mask; one without topology at all is not looked at.
    bound = reusable & ~table.without_topology
    wanted = requested - bound.bit_count()
    fits = table.touched_by(available, wanted)
    if bound:
        fits &= table.touching_all(bound)
    return Hints(fits, fits & table.sizes[table.smallest_mask(requested)])
