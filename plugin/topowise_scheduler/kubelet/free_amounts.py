"""Computes the amounts that a node's managers can still allocate, by NUMA nodes."""

from __future__ import annotations

from collections.abc import Sequence

from topowise.pods import HUGEPAGES, Amounts
from topowise_scheduler.kubelet.masks import Mask, members
from topowise_scheduler.kubelet.node import Kubelet


def on_masks(node: Kubelet, masks: Sequence[Mask]) -> list[Amounts]:
    """Returns the free amounts on each mask's NUMA nodes: whole CPUs, bytes of memory and of pages, devices."""
    positions = [tuple(members(mask)) for mask in masks]
    amounts_by_mask: list[Amounts] = [{} for _ in masks]
    if node.cpu is not None:
        # Constant over the masks, so computed once.
        available, cpus = node.cpu.available, node.topology.numa_cpus
        for amounts, nodes in zip(amounts_by_mask, positions, strict=True):
            amounts["cpu"] = sum([(available & cpus[at]).bit_count() for at in nodes])
    if node.memory is not None:
        for name, bytes_by_node in node.memory.tables.free.items():
            for amounts, nodes in zip(amounts_by_mask, positions, strict=True):
                amounts[name] = sum([max(0, bytes_by_node[at]) for at in nodes])
    for resource in node.devices.tables:
        devices = node.devices.free(resource)
        for amounts, mask in zip(amounts_by_mask, masks, strict=True):
            amounts[resource] = count_near(node, resource, devices, mask)
    return amounts_by_mask


def by_position(node: Kubelet) -> list[Amounts]:
    """Returns the free amounts of each NUMA node, in the order of their ids."""
    return on_masks(node, [1 << position for position in range(len(node.node_ids))])


def count_near(node: Kubelet, resource: str, devices: Mask, mask: Mask) -> int:
    """Returns how many of these devices are near the mask. Devices that the plugin does not report count as near."""
    table = node.devices.tables[resource]
    elsewhere = table.with_nodes & ~table.touching(mask)
    return (devices & ~elsewhere).bit_count()


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
