"""Ids of devices by resource and NUMA nodes: `topowise.io/devices`, JSON.

{"nvidia.com/gpu": {"0": ["a", "b"], "0-1": ["c"], "": ["d"]}}: a key is the nodelist of its devices, "" means no
affinity. A resource without devices ("{}") has a plug-in that is away: pods that request it are refused, not ignored.
Devices of a resource and nodelist are interchangeable for hints. Their ids are needed because the kubelet allocates the
lowest ids, or the ids that the plug-in prefers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

import msgspec

from topowise import cpuset, documents
from topowise.errors import ParseError

# Limit for all groups together; a machine has a few groups of a few nodes.
_MAX_NODES: Final = 1 << 16

NOWHERE: Final = cpuset.MAX_ID
"""Stands for a NUMA node that cannot exist, such as the -1 of sysfs that a plug-in passes on. Such a device is near no
node, unlike a device without nodes: the kubelet aligns no pod with it (getNUMANodeIds in topology_hints.go)."""

_decode = msgspec.json.Decoder(dict[str, dict[str, list[str]]]).decode


class Device(msgspec.Struct, frozen=True, gc=False, order=True):
    """`nodes` ascend; empty without affinity."""

    resource: str
    id: str
    nodes: tuple[int, ...]


def write(devices: Iterable[Device], empty: Iterable[str] = ()) -> str:
    """Returns the text, whatever the order of the devices; `empty` are resources that may have no device."""
    grouped: dict[str, dict[str, list[str]]] = {resource: {} for resource in empty}
    for device in sorted(devices):
        grouped.setdefault(device.resource, {}).setdefault(cpuset.to_text(device.nodes), []).append(device.id)
    return msgspec.json.encode(grouped, order="sorted").decode()


def names(text: str) -> frozenset[str]:
    """Returns the resources, also without devices. Raises ParseError."""
    return frozenset(_listed(text))


def count(text: str) -> int:
    """Returns the number of devices. Raises ParseError."""
    return sum([len(ids) for by_nodes in _listed(text).values() for ids in by_nodes.values()])


def read(text: str) -> tuple[Device, ...]:
    """Returns the inverse of `write`, sorted. Raises ParseError."""
    listed = _listed(text)
    devices: list[Device] = []
    width = 0
    for resource, by_nodes in listed.items():
        for nodes, ids in by_nodes.items():
            near = tuple(sorted(cpuset.parse(nodes)))
            width += len(near)
            if width > _MAX_NODES:
                raise ParseError("devices", text, f"nodelists of together up to {_MAX_NODES} nodes")
            # Many nodes of a cluster have equal PCI addresses: interning keeps a single copy of each.
            devices += [Device(sys.intern(resource), sys.intern(device_id), near) for device_id in ids]
    return tuple(sorted(devices))


def _listed(text: str) -> dict[str, dict[str, list[str]]]:
    return documents.decoded(_decode, text, "devices", '{"resource": {"nodelist": ["id"]}}')
