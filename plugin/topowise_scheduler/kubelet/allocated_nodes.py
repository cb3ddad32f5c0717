"""Computes the NUMA nodes of each container's actual allocation, which may differ from its hint.

A hint that is not preferred does not bind the managers. CPUs that its NUMA nodes lack come from other NUMA nodes.
Memory is extended to a larger set, and a device may come from any NUMA node. Scope pod has a hint for the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from topowise import cpuset
from topowise_scheduler.kubelet import Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.device_table import DeviceSet, DeviceTable
from topowise_scheduler.kubelet.masks import Mask, members, union
from topowise_scheduler.kubelet.node import Kubelet


class AllocatedNodes(NamedTuple):
    """The NUMA nodes of a container's CPUs, memory and devices; 0 if it has none.

    `preferred` is the hint's. On a machine with a single NUMA node every allocation is aligned, with or without a hint.
    """

    cpus: Mask
    memory: Mask
    devices: Mask
    preferred: bool

    @property
    def mask(self) -> Mask:
        """Returns the union of all three."""
        return self.cpus | self.memory | self.devices


def allocated_nodes(kubelet: Kubelet, uid: str) -> dict[str, AllocatedNodes]:
    """Returns the NUMA nodes by container of an active pod. An init container counts with its own allocation."""
    active = kubelet.active[uid]
    cpus = kubelet.cpu.allocations.get(uid, {}) if kubelet.cpu is not None else {}
    memory = kubelet.memory.allocations.get(uid, {}) if kubelet.memory is not None else {}
    devices = kubelet.devices.allocations.get(uid, {})
    names = (*active.hints,) or tuple(dict.fromkeys((*cpus, *memory, *devices)))
    return {
        name: AllocatedNodes(
            nodes_of_cpus(kubelet, cpus.get(name, 0)),
            union(block.mask for block in memory.get(name, ())),
            union(_nodes_of_resource(kubelet, *item) for item in devices.get(name, {}).items()),
            len(kubelet.node_ids) == 1 or (name in active.hints and active.hints[name].preferred),
        )
        for name in names
    }


def nodes_of_cpus(kubelet: Kubelet, cpus: CpuSet) -> Mask:
    """Returns the NUMA nodes of a set of CPUs."""
    return union(1 << at for at, node_cpus in enumerate(kubelet.topology.numa_cpus) if node_cpus & cpus)


def nodes_of_devices(table: DeviceTable, devices: DeviceSet) -> Mask:
    """Returns the NUMA nodes of devices near a single NUMA node; the place of any other device is undefined."""
    once = several = 0
    for near in table.near:
        several |= once & near
        once |= near
    return union(1 << at for at, near in enumerate(table.near) if near & devices & ~several)


def _nodes_of_resource(kubelet: Kubelet, resource: str, devices: DeviceSet) -> Mask:
    table = kubelet.devices.tables[resource]
    if len(kubelet.node_ids) == 1:
        # A single NUMA node: every device with a topology is near it.
        return int(table.has_topology and devices != 0)
    return nodes_of_devices(table, devices)


class Placed(msgspec.Struct, frozen=True):
    """A container. `numa` are the NUMA nodes of its allocation, empty without exclusive resources.

    `cpus` is a cpulist, "" where CPU ids are not known; `aligned` is False if the merged hint was not preferred.
    """

    numa: tuple[int, ...]
    aligned: bool
    cpus: str
    memory: tuple[tuple[str, tuple[int, ...], int], ...]
    devices: Mapping[str, tuple[str, ...]]

    def as_json(self) -> dict[str, Any]:
        """The placement as a JSON object."""
        return {
            "numa": list(self.numa),
            "aligned": self.aligned,
            "cpus": self.cpus,
            "memory": [{"type": kind, "numa": list(nodes), "bytes": size} for kind, nodes, size in self.memory],
            "devices": {resource: list(ids) for resource, ids in self.devices.items()},
        }


def placements(kubelet: Kubelet, uid: str, *, is_exact: bool) -> dict[str, Placed]:
    """Placements by container, without init containers that end before the app containers start."""
    return {
        name: _of(kubelet, placed, is_exact=is_exact)
        for name, placed in kubelet.placements(uid).items()
        if placed.kind != "init"
    }


def in_words(places: Mapping[str, Placed]) -> str:
    """ "1" if all containers are there, else each container with its NUMA nodes; "-" without exclusive resources."""
    pinned = {name: place for name, place in places.items() if place.numa}
    if not pinned:
        return "-"
    if len({place.numa for place in pinned.values()}) == 1 and len(pinned) == len(places):
        return _nodes(next(iter(pinned.values())))
    return ", ".join(f"{name}: {_nodes(place)}" for name, place in pinned.items())


def _nodes(place: Placed) -> str:
    return "+".join(map(str, place.numa)) + ("" if place.aligned else " (not aligned)")


def _of(kubelet: Kubelet, placed: Placement, *, is_exact: bool) -> Placed:
    mask = nodes_of_cpus(kubelet, placed.cpus or 0)
    for resource, ids in placed.devices.items():
        table = kubelet.devices.tables[resource]
        mask |= nodes_of_devices(table, table.select(ids))
    numa = {kubelet.node_ids[position] for position in members(mask)}
    numa.update(node for block in placed.memory if block.size for node in block.numa)
    return Placed(
        numa=tuple(sorted(numa)),
        aligned=placed.numa is None or placed.preferred or not numa,
        cpus=cpuset.to_text(members(placed.cpus or 0)) if is_exact else "",
        memory=tuple((block.type, block.numa, block.size) for block in placed.memory if block.size),
        devices={name: ids for name, ids in placed.devices.items() if ids} if is_exact else {},
    )
