"""Finds devices that the kubelet allocates and GetAllocatableResources leaves out.

A device without a topology has an entry there, and a device whose topology names no NUMA node has none
(containerDevicesFromResourceDeviceInstances in pkg/kubelet/cm/container_manager.go, the same from 1.28 to 1.36). List
has both once they are allocated. The kubelet's checkpoint names all healthy devices, and is written with each list of a
plug-in (genericDeviceUpdateCallback). So a device that only the checkpoint names has an empty topology. The kubelet
gives no hint for it, as for a device without a topology.

Two states look alike and are excluded. First, the checkpoint may be newer than the answer: a device counts only if an
earlier reading had it in the checkpoint as well. Second, the checkpoint still names the devices of a plug-in that is
away, and the answer has none of them: a resource that was once in an answer needs a device in the present answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topowise_exporter.kubelet.allocations import Allocatable, Device

Registered = Mapping[str, frozenset[str]]
"""Resource -> ids of healthy devices, from the checkpoint."""


class EmptyTopologies:
    """Compares the checkpoint with the answers, from reading to reading."""

    def __init__(self) -> None:
        self._registered: Registered | None = None
        self._listed: frozenset[str] = frozenset()

    def remember(self, devices: Iterable[Device]) -> None:
        """Starts from the devices in the last object of an earlier exporter."""
        self._listed = frozenset(device.resource for device in devices if device.nodes)

    def is_new(self, registered: Registered) -> bool:
        """Whether the checkpoint names other devices than in the last `read`."""
        return self._registered is not None and registered != self._registered

    def read(self, registered: Registered, allocatable: Allocatable, *, is_complete: bool) -> tuple[Device, ...]:
        """Returns the devices with an empty topology, sorted. `is_complete` is False while plug-ins may have yet to
        register with a kubelet that has started."""
        listed: dict[str, set[str]] = {}
        for device in allocatable.devices:
            listed.setdefault(device.resource, set()).add(device.id)
        # A resource that the kubelet has forgotten may come back with another plug-in.
        self._listed = (self._listed | listed.keys()) & registered.keys()
        earlier = registered if self._registered is None else self._registered
        self._registered = registered
        return tuple(
            sorted(
                Device(resource, device_id, ())
                for resource, ids in registered.items()
                if resource in listed or (is_complete and resource not in self._listed)
                for device_id in (ids & earlier.get(resource, frozenset())) - listed.get(resource, set())
            )
        )
