"""Reads the kubelet's checkpoint of its device manager: devices that podresources does not list.

List leaves init containers out, but a pod keeps the devices of a finished init container until the pod ends. Only this
file shows them, and devices with an empty topology (empty_topologies.py).

Two traps: the kubelet writes the file when it allocates a device and not when a pod ends, so the file names many pods
that are long gone; and it names pods by UID. Formats (pkg/kubelet/cm/devicemanager/checkpoint): up to Kubernetes 1.19
DeviceIDs is a list of ids. Since then it maps NUMA nodes to ids, where -1 is no node; a device near two nodes is under
both.

The checksum is not verified (state_files.py). Markers of steering are left out, as in podresources.py.

Finds devices that the kubelet allocates and GetAllocatableResources leaves out.

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

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from topowise import digits, documents, steering
from topowise.errors import SourceError
from topowise_exporter.kubelet.allocations import Allocatable, Device

MOST_BYTES: Final = 16 << 20
"""For each container the file has the plug-in's whole answer, with environment and mounts."""
_MOST_DEVICES: Final = 1 << 16

_Ids = tuple[str, ...]


class DeviceState(msgspec.Struct, frozen=True):
    """Pod UID -> container name -> its devices, and the ids of the healthy devices of resources that have any."""

    holders: Mapping[str, Mapping[str, tuple[Device, ...]]]
    registered: Mapping[str, frozenset[str]]


class _Entry(msgspec.Struct, frozen=True):
    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[str, _Ids | None] | _Ids | None = None


class _Data(msgspec.Struct, frozen=True):
    PodDeviceEntries: tuple[_Entry, ...] | None
    RegisteredDevices: dict[str, _Ids | None] | None


class _Checkpoint(msgspec.Struct, frozen=True):
    Data: _Data


_decode = msgspec.json.Decoder(_Checkpoint).decode


def parse(text: bytes, source: str) -> DeviceState:
    """Returns the state. Raises SourceError for a file that no kubelet has written."""
    try:
        checkpoint = _decode(text)
        holders = _holders(checkpoint.Data, source)
    except documents.UNREADABLE as exc:
        raise SourceError(source, f"is not a checkpoint of a known format: {exc}") from exc
    except ValueError as exc:
        raise SourceError(source, str(exc)) from exc
    registered = {
        name: frozenset(ids)
        for name, ids in (checkpoint.Data.RegisteredDevices or {}).items()
        if ids and name != steering.RESOURCE
    }
    if (count := sum(map(len, registered.values()))) > _MOST_DEVICES:
        raise SourceError(source, f"names {count} devices of plug-ins, expected up to {_MOST_DEVICES}")
    return DeviceState(holders, registered)


def _holders(data: _Data, source: str) -> dict[str, dict[str, tuple[Device, ...]]]:
    """Raises SourceError and ValueError."""
    nodes: dict[tuple[str, str, str, str], set[int]] = {}
    count = 0
    for entry in data.PodDeviceEntries or ():
        for node, device in _placed(entry) if entry.ResourceName != steering.RESOURCE else ():
            near = nodes.setdefault((entry.PodUID, entry.ContainerName, entry.ResourceName, device), set())
            near.update([node] if node >= 0 else [])
            count += 1
            if count > _MOST_DEVICES:
                raise SourceError(source, f"names more than {_MOST_DEVICES} devices")
    holders: dict[str, dict[str, tuple[Device, ...]]] = {}
    for (uid, container, resource, device), near in sorted(nodes.items()):
        containers = holders.setdefault(uid, {})
        containers[container] = (*containers.get(container, ()), Device(resource, device, tuple(sorted(near))))
    return holders


def _placed(entry: _Entry) -> Iterator[tuple[int, str]]:
    ids = entry.DeviceIDs
    by_node = ids if isinstance(ids, dict) else {"-1": ids}
    for node, listed in by_node.items():
        if (number := digits.int64(node)) is None:
            raise ValueError(f"has NUMA node {node!r:.80}, expected an integer")
        for device in listed or ():
            yield number, device


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
