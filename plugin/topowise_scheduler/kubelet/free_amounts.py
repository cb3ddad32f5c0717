"""What a node's managers can still give out, by NUMA nodes."""

from __future__ import annotations

from collections.abc import Sequence

from topowise.pods import Amounts
from topowise_scheduler.kubelet.masks import Mask, members
from topowise_scheduler.kubelet.node import Kubelet


def free(node: Kubelet, masks: Sequence[Mask]) -> list[Amounts]:
    """On the NUMA nodes of each mask together: whole CPUs, memory and pages in bytes, devices."""
    positions = [tuple(members(mask)) for mask in masks]
    found: list[Amounts] = [{} for _ in masks]
    if node.cpu is not None:
        # Whatever does not depend on the mask is found once.
        available, cpus = node.cpu.available, node.topology.numa_cpus
        for amounts, mine in zip(found, positions, strict=True):
            amounts["cpu"] = sum([(available & cpus[at]).bit_count() for at in mine])
    if node.memory is not None:
        for name, left in node.memory.tables.free.items():
            for amounts, mine in zip(found, positions, strict=True):
                amounts[name] = sum([max(0, left[at]) for at in mine])
    for resource in node.devices.tables:
        devices = node.devices.free(resource)
        for amounts, mask in zip(found, masks, strict=True):
            amounts[resource] = near(node, resource, devices, mask)
    return found


def by_position(node: Kubelet) -> list[Amounts]:
    """The same of each NUMA node, in the order of their ids."""
    return free(node, [1 << position for position in range(len(node.node_ids))])


def near(node: Kubelet, resource: str, devices: Mask, mask: Mask) -> int:
    """How many of these devices are there; ids that the plugin does not report may be anywhere."""
    table = node.devices.tables[resource]
    elsewhere = table.with_nodes & ~table.touching(mask)
    return (devices & ~elsewhere).bit_count()
