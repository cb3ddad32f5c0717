"""What a node's managers can still give out, by NUMA nodes."""

from __future__ import annotations

from topowise.pods import Amounts
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.node import Kubelet


def free(node: Kubelet, mask: Mask) -> Amounts:
    """On these NUMA nodes together: whole CPUs, memory and pages in bytes, devices."""
    found: Amounts = {}
    positions = [position for position in range(len(node.node_ids)) if mask >> position & 1]
    if node.cpu is not None:
        found["cpu"] = sum((node.cpu.available & node.topology.numa_cpus[at]).bit_count() for at in positions)
    if node.memory is not None:
        for name, amounts in node.memory.tables.free.items():
            found[name] = sum(max(0, amounts[at]) for at in positions)
    for resource in node.devices.tables:
        found[resource] = near(node, resource, node.devices.free(resource), mask)
    return found


def near(node: Kubelet, resource: str, devices: Mask, mask: Mask) -> int:
    """How many of these devices are there; ids that the plugin does not report may be anywhere."""
    table = node.devices.tables[resource]
    elsewhere = table.with_nodes & ~table.touching(mask)
    return (devices & ~elsewhere).bit_count()
