"""The devices of a resource as a plugin reports them, and the sets that hints need (cm/devicemanager/manager.go)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from weakref import WeakValueDictionary

from topowise_scheduler.kubelet.machine import Device
from topowise_scheduler.kubelet.masks import Mask, MaskSet, by_size, mask_of, members, reaching, submasks, subsets

DeviceSet = int


class DeviceTable:
    """Immutable. Devices are numbered in the order of their ids; `unreported_ids` are allocated but not reported.

    `nodes` are the nodes in hints: nodes with devices (deviceNUMANodes), or all nodes with `everywhere`.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        positions: Mapping[int, int],
        unreported_ids: Iterable[str] = (),
        *,
        everywhere: bool = False,
    ) -> None:
        listed = {device.id: device for device in devices}
        self.devices = tuple(listed.values())
        self._positions = positions
        self.ids = tuple(sorted({*listed, *unreported_ids}))
        self.index = {device_id: number for number, device_id in enumerate(self.ids)}
        reported = [(self.index[device.id], device) for device in self.devices]
        self.reported: DeviceSet = mask_of(number for number, _ in reported)
        self.healthy: DeviceSet = mask_of(number for number, device in reported if device.healthy)
        self.without_topology: DeviceSet = mask_of(number for number, device in reported if device.numa is None)
        self.without_nodes: DeviceSet = mask_of(number for number, device in reported if not device.numa)
        self.has_topology = any(device.numa for _, device in reported)
        # deviceNUMANodes drops nodes that cadvisor does not know.
        near: dict[int, DeviceSet] = {}
        for number, device in reported:
            for node in device.numa or ():
                if node in positions:
                    near[positions[node]] = near.get(positions[node], 0) | 1 << number
        self._near = near
        self._everywhere = everywhere
        # Without any known node the kubelet iterates over all nodes; hints matter then for a request of 0 only.
        self.nodes: Mask = mask_of(near if near and not everywhere else positions.values())
        self.with_nodes: DeviceSet = self.touching(self.nodes)
        # Whether no device is near several NUMA nodes: then masks are sums over nodes.
        self.of_one_node = (
            sum(devices_of_node.bit_count() for devices_of_node in near.values()) == self.with_nodes.bit_count()
        )

    @cached_property
    def _masks(self) -> tuple[tuple[Mask, DeviceSet], ...]:
        """Returns every mask over `nodes`, with the devices that it touches."""
        return tuple([(mask, self.touching(mask)) for mask in submasks(self.nodes)])

    @cached_property
    def _most(self) -> tuple[int, ...]:
        """Returns at index k the most devices, including allocated and unhealthy devices, that k nodes touch."""
        most = [0] * (self.nodes.bit_count() + 1)
        for mask, touching in self._masks:
            size = mask.bit_count()
            most[size] = max(most[size], touching.bit_count())
        return tuple(most)

    @cached_property
    def near(self) -> tuple[DeviceSet, ...]:
        """Returns at index p the devices with the NUMA node at position p."""
        return tuple(self._near.get(position, 0) for position in range(len(self._positions)))

    @property
    def sizes(self) -> tuple[MaskSet, ...]:
        """Returns at index k the masks of k nodes of the machine."""
        return by_size(len(self._positions))

    def touching(self, mask: Mask) -> DeviceSet:
        """Returns the devices with a node in the mask."""
        devices = 0
        for position in members(mask & self.nodes):
            devices |= self._near.get(position, 0)
        return devices

    def touched_by(self, available: DeviceSet, count: int) -> MaskSet:
        """Returns the masks over `nodes` that touch at least `wanted` of these devices."""
        # Sums over nodes would count a device near two nodes twice.
        if self.of_one_node:
            counts = [(self._near.get(position, 0) & available).bit_count() for position in range(len(self._positions))]
            return reaching(tuple(counts), count) & subsets(self.nodes)
        return mask_of(mask for mask, near in self._masks if (available & near).bit_count() >= count)

    def touching_all(self, devices: DeviceSet) -> MaskSet:
        """Returns the masks over `nodes` that touch each of these devices."""
        return mask_of(mask for mask, near in self._masks if not devices & ~near)

    def smallest_mask(self, requested: int) -> int:
        """Returns the least number of nodes that touch the requested number of devices; all nodes if no mask does."""
        # minAffinitySize counts unhealthy and allocated devices too.
        for size, count in enumerate(self._most[1:], start=1):
            if count >= requested:
                return size
        return self.nodes.bit_count()

    def names(self, devices: DeviceSet) -> tuple[str, ...]:
        """Returns the ids of a set, ascending."""
        return tuple([self.ids[number] for number in members(devices)])

    def select(self, ids: Iterable[str]) -> DeviceSet:
        """Returns the set of these ids. The table must have all of them."""
        return mask_of([self.index[device_id] for device_id in ids])

    def with_ids(self, ids: Iterable[str]) -> DeviceTable:
        """Returns the table extended by these ids, itself if it has them."""
        missing = [device_id for device_id in ids if device_id not in self.index]
        if not missing:
            return self
        return DeviceTable(self.devices, self._positions, (*self.ids, *missing), everywhere=self._everywhere)


# Device ids are often PCI addresses, equal on all nodes of a machine type. A table lives as long as a node uses it.
_shared: WeakValueDictionary[tuple[object, ...], DeviceTable] = WeakValueDictionary()


def shared_table(devices: tuple[Device, ...], positions: Mapping[int, int], *, everywhere: bool) -> DeviceTable:
    """Returns the table of these devices; equal arguments return the same object."""
    key = (devices, tuple(positions.items()), everywhere)
    table = _shared.get(key)
    if table is None:
        table = _shared[key] = DeviceTable(devices, positions, everywhere=everywhere)
    return table
