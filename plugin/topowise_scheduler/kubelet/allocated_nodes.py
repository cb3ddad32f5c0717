"""Computes the NUMA nodes of each container's actual allocation, which may differ from its hint.

A hint that is not preferred does not bind the managers. CPUs that its NUMA nodes lack come from other NUMA nodes.
Memory is extended to a larger set, and a device may come from any NUMA node. Scope pod has a hint for the pod.
"""

from __future__ import annotations

from typing import NamedTuple

from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.device_table import DeviceSet, DeviceTable
from topowise_scheduler.kubelet.masks import Mask, union
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
