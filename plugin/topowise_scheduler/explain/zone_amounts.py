"""What each NUMA node of a machine has free of a resource."""

from __future__ import annotations

from topowise.pods import HUGEPAGES
from topowise_scheduler.kubelet import Kubelet


def zone_amounts(kubelet: Kubelet, resource: str) -> list[tuple[int | None, int]]:
    """(free, allocatable) by position: CPUs, bytes or devices; empty if the machine does not have the resource.

    Free is None where no manager accounts for the resource.
    """
    if resource == "cpu":
        if kubelet.cpu is None:
            return [(None, cpus.bit_count()) for cpus in kubelet.topology.numa_cpus]
        reserved, available = kubelet.cpu.policy.reserved, kubelet.cpu.available
        return [((cpus & available).bit_count(), (cpus & ~reserved).bit_count()) for cpus in kubelet.topology.numa_cpus]
    if kubelet.memory is not None and resource in kubelet.memory.tables.free:
        tables = kubelet.memory.tables
        return list(zip(tables.free[resource], tables.policy.allocatable[resource], strict=True))
    table = None if resource == "memory" or resource.startswith(HUGEPAGES) else kubelet.devices.tables.get(resource)
    if table is None:
        return []
    free = kubelet.devices.free(resource)
    return [((near & free).bit_count(), (near & table.healthy).bit_count()) for near in table.near]
