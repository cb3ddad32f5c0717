"""Reads the kubelet's checkpoint of its device manager: devices that podresources does not list.

List leaves init containers out, but a pod keeps the devices of a finished init container until the pod ends. Only this
file shows them, and devices with an empty topology (empty_topologies.py).

Two traps: the kubelet writes the file when it allocates a device and not when a pod ends, so the file names many pods
that are long gone; and it names pods by UID. Formats (pkg/kubelet/cm/devicemanager/checkpoint): up to Kubernetes 1.19
DeviceIDs is a list of ids. Since then it maps NUMA nodes to ids, where -1 is no node; a device near two nodes is under
both.

The checksum is not verified (state_files.py). Markers of steering are left out, as in podresources.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from topowise import digits, documents, steering
from topowise.errors import SourceError
from topowise_exporter.kubelet.allocations import Device

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
