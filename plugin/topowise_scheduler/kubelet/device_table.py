"""The devices of one resource as a plugin reports them, and the sets every hint needs (cm/devicemanager/manager.go)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from weakref import WeakValueDictionary

from topowise_scheduler.kubelet.machine import Device
from topowise_scheduler.kubelet.masks import Mask, MaskSet, by_size, mask_of, members, reaching, submasks, subsets

DeviceSet = int


class DeviceTable:
    """Immutable. Devices are numbered in the order of their ids; `others` are ids that are held but not reported.

    `nodes` are those that hints are made of: the ones with devices, or with `everywhere` all.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        positions: Mapping[int, int],
        others: Iterable[str] = (),
        *,
        everywhere: bool = False,
    ) -> None:
        listed = {device.id: device for device in devices}
        self._devices = tuple(listed.values())
        self._positions = positions
        self.ids = tuple(sorted({*listed, *others}))
        self.index = {device_id: number for number, device_id in enumerate(self.ids)}
        reported = [(self.index[device.id], device) for device in self._devices]
        self.reported: DeviceSet = mask_of(number for number, _ in reported)
        self.healthy: DeviceSet = mask_of(number for number, device in reported if device.healthy)
        self.without_topology: DeviceSet = mask_of(number for number, device in reported if device.numa is None)
        self.without_nodes: DeviceSet = mask_of(number for number, device in reported if not device.numa)
        self.has_topology = any(device.numa for _, device in reported)
        # Nodes that cadvisor does not know take part in no mask.
        near: dict[int, DeviceSet] = {}
        for number, device in reported:
            for node in device.numa or ():
                if node in positions:
                    near[positions[node]] = near.get(positions[node], 0) | 1 << number
        self._near = near
        self._everywhere = everywhere
        self.nodes: Mask = mask_of(positions.values() if everywhere else near)
        self.with_nodes: DeviceSet = self.touching(self.nodes)
        self._of_one_node = sum(held.bit_count() for held in near.values()) == self.with_nodes.bit_count()

    @cached_property
    def _masks(self) -> tuple[tuple[Mask, DeviceSet], ...]:
        """Every mask over `nodes`, with the devices it touches."""
        return tuple([(mask, self.touching(mask)) for mask in submasks(self.nodes)])

    @cached_property
    def _most(self) -> tuple[int, ...]:
        """At index k the most devices, held or unhealthy ones too, that k nodes touch."""
        most = [0] * (self.nodes.bit_count() + 1)
        for mask, touching in self._masks:
            size = mask.bit_count()
            most[size] = max(most[size], touching.bit_count())
        return tuple(most)

    @cached_property
    def near(self) -> tuple[DeviceSet, ...]:
        """At index p the devices with the NUMA node at position p."""
        return tuple(self._near.get(position, 0) for position in range(len(self._positions)))

    @property
    def of_one_node(self) -> bool:
        """Whether no device is near several NUMA nodes."""
        return self._of_one_node

    @property
    def sizes(self) -> tuple[MaskSet, ...]:
        """At index k the masks of k nodes of the machine."""
        return by_size(len(self._positions))

    def touching(self, mask: Mask) -> DeviceSet:
        """The devices with a node in the mask."""
        found = 0
        for position in members(mask & self.nodes):
            found |= self._near.get(position, 0)
        return found

    def touched_by(self, available: DeviceSet, wanted: int) -> MaskSet:
        """The masks over `nodes` that touch `wanted` of these devices."""
        if self._of_one_node:
            counts = [(self._near.get(position, 0) & available).bit_count() for position in range(len(self._positions))]
            return reaching(tuple(counts), wanted) & subsets(self.nodes)
        return mask_of(mask for mask, near in self._masks if (available & near).bit_count() >= wanted)

    def touching_all(self, devices: DeviceSet) -> MaskSet:
        """The masks over `nodes` that touch each of these devices."""
        return mask_of(mask for mask, near in self._masks if not devices & ~near)

    def smallest_mask(self, requested: int) -> int:
        """The least number of nodes that touch so many devices; all nodes if none do."""
        for size, count in enumerate(self._most[1:], start=1):
            if count >= requested:
                return size
        return self.nodes.bit_count()

    def names(self, devices: DeviceSet) -> tuple[str, ...]:
        """The ids of a set, ascending."""
        return tuple([self.ids[number] for number in members(devices)])

    def select(self, ids: Iterable[str]) -> DeviceSet:
        """The set of these ids, all of which the table must have."""
        return mask_of([self.index[device_id] for device_id in ids])

    def with_ids(self, ids: Iterable[str]) -> DeviceTable:
        """This table with numbers for these ids too."""
        missing = [device_id for device_id in ids if device_id not in self.index]
        if not missing:
            return self
        return DeviceTable(self._devices, self._positions, (*self.ids, *missing), everywhere=self._everywhere)


# PCI addresses are the same on all nodes of a kind. A table is kept as long as a node has it.
_shared: WeakValueDictionary[tuple[object, ...], DeviceTable] = WeakValueDictionary()


def shared_table(devices: tuple[Device, ...], positions: Mapping[int, int], *, everywhere: bool) -> DeviceTable:
    """The table of these devices, one for all who ask for the same."""
    key = (devices, tuple(positions.items()), everywhere)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = DeviceTable(devices, positions, everywhere=everywhere)
    return found
