"""Finds the NUMA placement of a pod again on a node that was made anew from a report.

Invariant: the result was free, and has as much of each NUMA node as the pod had.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topowise_scheduler.kubelet import Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.masks import lowest


def same_zones(node: Kubelet, placements: Mapping[str, Placement]) -> dict[str, Placement] | None:
    """Returns placements on the same NUMA nodes with IDs that are free on `node`, None if there are none.

    With amounts only, IDs are made up, and only their NUMA nodes mean anything. `node` has the hardware of the
    placements.
    """
    result: dict[str, Placement] = {}
    free_cpus = 0 if node.cpu is None else node.cpu.available
    free_memory = {} if node.memory is None else {name: list(free) for name, free in node.memory.tables.free.items()}
    free_devices = {name: node.devices.free(name) for name in node.devices.tables}
    for name, placement in placements.items():
        if placement.kind == "init":
            # Only an admission tells what the container shares with the containers after it.
            return None
        cpus = _as_many(placement.cpus or 0, node.topology.numa_cpus, free_cpus)
        if cpus is None or not all(_take(block, node, free_memory) for block in placement.memory):
            return None
        free_cpus &= ~cpus
        devices: dict[str, tuple[str, ...]] = {}
        for resource, ids in placement.devices.items():
            table = node.devices.tables.get(resource)
            if table is None or not table.index.keys() >= set(ids):
                # The device plugin has gone, or has not come back yet.
                return None
            chosen = _as_many(table.select(ids), table.near, free_devices[resource])
            if chosen is None:
                return None
            free_devices[resource] &= ~chosen
            devices[resource] = table.names(chosen)
        result[name] = msgspec.structs.replace(
            placement, cpus=None if placement.cpus is None else cpus, devices=devices
        )
    return result


def _as_many(ids: int, by_node: tuple[int, ...], free: int) -> int | None:
    """Returns as many free IDs of each NUMA node as are held there, None if there are too few."""
    chosen = 0
    for zone in by_node:
        count = (ids & zone).bit_count()
        lowest_ids = lowest(free & zone, count)
        if lowest_ids.bit_count() < count:
            return None
        chosen |= lowest_ids
    return chosen


def _take(block: MemoryBlock, node: Kubelet, free: Mapping[str, list[int]]) -> bool:
    # A block over several NUMA nodes does not say how much is on each.
    if len(block.numa) != 1 or block.type not in free:
        return False
    position = node.node_ids.index(block.numa[0])
    free[block.type][position] -= block.size
    return free[block.type][position] >= 0
