"""The same place for a pod again, on a node that was made anew from a report.

Invariant: what is found was free, and is as much on each NUMA node as the pod held there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topowise_scheduler.kubelet import Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.masks import lowest


def same_zones(node: Kubelet, placements: Mapping[str, Placement]) -> dict[str, Placement] | None:
    """What the pod holds, on the same NUMA nodes of `node` with ids that are free there, or None if that cannot be.

    Ids are made up with counts, so that only their NUMA nodes mean anything. `node` has the hardware it was placed on.
    """
    found: dict[str, Placement] = {}
    free_cpus = 0 if node.cpu is None else node.cpu.available
    free_memory = {} if node.memory is None else {name: list(free) for name, free in node.memory.tables.free.items()}
    free_devices = {name: node.devices.free(name) for name in node.devices.tables}
    for name, held in placements.items():
        if held.kind == "init":
            # What it shares with the containers after it is for an admission to find out.
            return None
        cpus = _as_many(held.cpus or 0, node.topology.numa_cpus, free_cpus)
        if cpus is None or not all(_take(block, node, free_memory) for block in held.memory):
            return None
        free_cpus &= ~cpus
        devices: dict[str, tuple[str, ...]] = {}
        for resource, ids in held.devices.items():
            table = node.devices.tables.get(resource)
            if table is None or not table.index.keys() >= set(ids):
                # Its plug-in has gone, or has not come back yet.
                return None
            chosen = _as_many(table.select(ids), table.near, free_devices[resource])
            if chosen is None:
                return None
            free_devices[resource] &= ~chosen
            devices[resource] = table.names(chosen)
        found[name] = msgspec.structs.replace(held, cpus=None if held.cpus is None else cpus, devices=devices)
    return found


def _as_many(held: int, by_node: tuple[int, ...], free: int) -> int | None:
    """As many of the free ones as are held of each NUMA node."""
    chosen = 0
    for mine in by_node:
        count = (held & mine).bit_count()
        some = lowest(free & mine, count)
        if some.bit_count() < count:
            return None
        chosen |= some
    return chosen


def _take(block: MemoryBlock, node: Kubelet, free: Mapping[str, list[int]]) -> bool:
    if len(block.numa) != 1 or block.type not in free:
        return False
    position = node.node_ids.index(block.numa[0])
    free[block.type][position] -= block.size
    return free[block.type][position] >= 0
