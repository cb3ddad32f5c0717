"""Reads the kubelet's checkpoint of its device manager: devices that podresources does not list.

List leaves init containers out, but a pod keeps the devices of a finished init container until the pod ends. Only this
file shows them, and devices with an empty topology (empty_topologies.py).

Two traps: the kubelet writes the file when it allocates a device and not when a pod ends, so the file names many pods
that are long gone; and it names pods by UID. Formats (pkg/kubelet/cm/devicemanager/checkpoint): up to Kubernetes 1.19
DeviceIDs is a list of ids. Since then it maps NUMA nodes to ids, where -1 is no node; a device near two nodes is under
both.

The checksum is recomputed (checksum.py), because the kubelet rejects a file with a wrong checksum. Markers of steering
are left out, as in podresources.py.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from topowise import digits, documents, steering
from topowise.errors import SourceError
from topowise_exporter.kubelet.allocations import Device
from topowise_exporter.kubelet.checksum import MOST_DUMPED, fnv1a

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
    AllocResp: str | None = None


class DeviceData(msgspec.Struct, frozen=True):
    PodDeviceEntries: tuple[_Entry, ...] | None
    RegisteredDevices: dict[str, _Ids | None] | None


class _Checkpoint(msgspec.Struct, frozen=True):
    Data: DeviceData
    Checksum: int


_decode = msgspec.json.Decoder(_Checkpoint).decode


def parse(text: bytes, source: str) -> DeviceState:
    """Returns the state. Raises SourceError for a file that no kubelet has written."""
    try:
        checkpoint = _decode(text)
        holders = _holders(checkpoint.Data, source)
        if (computed := checksum(checkpoint.Data)) is not None and computed != checkpoint.Checksum:
            raise SourceError(source, f"has checksum {checkpoint.Checksum}, expected {computed}")
    except documents.UNREADABLE as exc:
        raise SourceError(source, f"is not a checkpoint of a known format: {exc}") from exc
    except ValueError as exc:
        raise SourceError(source, f"has an invalid NUMA node or plug-in answer: {str(exc)[:200]}") from exc
    registered = {
        name: frozenset(ids)
        for name, ids in (checkpoint.Data.RegisteredDevices or {}).items()
        if ids and name != steering.RESOURCE
    }
    if (count := sum(map(len, registered.values()))) > _MOST_DEVICES:
        raise SourceError(source, f"names {count} devices of plug-ins, expected up to {_MOST_DEVICES}")
    return DeviceState(holders, registered)


def checksum(data: DeviceData) -> int | None:
    """Returns the kubelet's checksum; None for a file whose dump would take too long. Raises ValueError."""
    if sum(len(entry.AllocResp or "") for entry in data.PodDeviceEntries or ()) > MOST_DUMPED // 4:
        return None
    dump = _dump(data)
    return fnv1a(dump) if len(dump) <= MOST_DUMPED else None


def _holders(data: DeviceData, source: str) -> dict[str, dict[str, tuple[Device, ...]]]:
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
            raise ValueError(f"NUMA node {node!r:.80}, expected an integer")
        for device in listed or ():
            yield number, device


def _dump(data: DeviceData) -> str:
    entries, registered = data.PodDeviceEntries, data.RegisteredDevices
    dumped_entries = "<nil>" if entries is None else f"[{' '.join(map(_dump_entry, entries))}]"
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){dumped_entries} "
        f"RegisteredDevices:(map[string][]string){_dump_map(registered, sorted(registered or ()))}}}"
    )


def _dump_entry(entry: _Entry) -> str:
    ids = entry.DeviceIDs
    if isinstance(ids, tuple):
        devices = f"([]string){_dump_list(ids)}"
    else:
        devices = f"(checkpoint.DevicesPerNUMA){_dump_map(ids, sorted(ids or (), key=int))}"
    answer = "<nil>"
    if entry.AllocResp is not None:
        try:
            answer = f"[{' '.join(map(str, base64.b64decode(entry.AllocResp, validate=True)))}]"
        except binascii.Error as exc:
            raise ValueError(f"AllocResp: {exc}") from exc
    return (
        f"{{PodUID:(string){entry.PodUID} ContainerName:(string){entry.ContainerName} "
        f"ResourceName:(string){entry.ResourceName} DeviceIDs:{devices} AllocResp:([]uint8){answer}}}"
    )


def _dump_map(ids: Mapping[str, _Ids | None] | None, keys: list[str]) -> str:
    return "<nil>" if ids is None else f"map[{' '.join(f'{key}:{_dump_list(ids[key])}' for key in keys)}]"


def _dump_list(ids: _Ids | None) -> str:
    return "<nil>" if ids is None else f"[{' '.join(ids)}]"
