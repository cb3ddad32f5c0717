"""On which NUMA nodes what the containers of a pod hold lies: not the hint they were given, but what came of it.

A hint that is not preferred is a wish. CPUs that its NUMA nodes lack come from others, memory takes the next larger
set, a device is taken wherever one is left; and in scope pod a container mostly needs less than the hint of the pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.device_table import DeviceSet, DeviceTable
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.node import Kubelet


class Located(NamedTuple):
    """The NUMA nodes of one container's CPUs, memory and devices; 0 for what it has none of.

    `preferred` is whether its hint was; on a machine of one NUMA node, where all is aligned, there need be no hint.
    """

    cpus: Mask
    memory: Mask
    devices: Mask
    preferred: bool

    @property
    def mask(self) -> Mask:
        """All of them."""
        return self.cpus | self.memory | self.devices


def located(kubelet: Kubelet, uid: str) -> dict[str, Located]:
    """By container of an active pod. An init container has what it was given, though others have taken it over."""
    active = kubelet.active[uid]
    cpus = kubelet.cpu.allocations.get(uid, {}) if kubelet.cpu is not None else {}
    memory = kubelet.memory.allocations.get(uid, {}) if kubelet.memory is not None else {}
    devices = kubelet.devices.allocations.get(uid, {})
    names = (*active.hints,) or tuple(dict.fromkeys((*cpus, *memory, *devices)))
    return {
        name: Located(
            of_cpus(kubelet, cpus.get(name, 0)),
            _union(block.mask for block in memory.get(name, ())),
            _union(_of_resource(kubelet, held, some) for held, some in devices.get(name, {}).items()),
            len(kubelet.node_ids) == 1 or (name in active.hints and active.hints[name].preferred),
        )
        for name in names
    }


def of_cpus(kubelet: Kubelet, cpus: CpuSet) -> Mask:
    """The NUMA nodes of some CPUs."""
    return _union(1 << at for at, mine in enumerate(kubelet.topology.numa_cpus) if mine & cpus)


def of_devices(table: DeviceTable, devices: DeviceSet) -> Mask:
    """The NUMA nodes of the devices that are near a single one: what is near several is no place."""
    near = table.near
    once = several = 0
    for mine in near:
        several |= once & mine
        once |= mine
    return _union(1 << at for at, mine in enumerate(near) if mine & devices & ~several)


def _of_resource(kubelet: Kubelet, resource: str, devices: DeviceSet) -> Mask:
    table = kubelet.devices.tables[resource]
    if len(kubelet.node_ids) == 1:
        return int(table.has_topology and devices != 0)
    return of_devices(table, devices)


def _union(masks: Iterable[Mask]) -> Mask:
    found = 0
    for mask in masks:
        found |= mask
    return found
