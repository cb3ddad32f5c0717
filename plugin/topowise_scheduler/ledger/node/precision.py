"""Computes how precisely an allocation was predicted.

Invariant: MISSED means that the predicted state of the node was wrong. A choice that the kubelet makes in Go's map
order, or that a device plugin makes (GetPreferredAllocation), is never MISSED.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum

from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.allocated_nodes import nodes_of_cpus
from topowise_scheduler.kubelet.device_table import DeviceTable
from topowise_scheduler.kubelet.masks import Mask, mask_of


class Precision(IntEnum):
    """What a prediction had in common with the allocation, from the least on."""

    MISSED = 0
    HINT = 1
    """CPUs and memory are on the predicted NUMA nodes. Some devices have other NUMA nodes, and satisfy the hint."""
    NUMA_NODES = 2
    """All NUMA nodes are as predicted, and some CPU or device is not."""
    IDS = 3
    """Every CPU, NUMA node of memory, and device is as predicted."""

    @property
    def label(self) -> str:
        """Returns the name in metrics."""
        return self.name.lower()


def precision_of(listed: Placement, predicted: Placement, node: Kubelet) -> Precision:
    """Returns the precision of a container's prediction; what the report does not list is ignored."""
    return min(_precisions(listed, predicted, node), default=Precision.IDS)


def _precisions(listed: Placement, predicted: Placement, node: Kubelet) -> Iterator[Precision]:
    if listed.cpus and listed.cpus != predicted.cpus:
        same = nodes_of_cpus(node, listed.cpus) == nodes_of_cpus(node, predicted.cpus or 0)
        yield Precision.NUMA_NODES if same else Precision.MISSED
    memory, predicted_memory = [
        {block.type: block.numa for block in placement.memory if block.size} for placement in (listed, predicted)
    ]
    if memory and memory != predicted_memory:
        yield Precision.MISSED
    for resource, ids in listed.devices.items():
        table = node.devices.tables.get(resource)
        if ids and table is not None:
            yield _precision_of_devices(table, ids, predicted.devices.get(resource, ()), predicted.numa, node)


def _precision_of_devices(
    table: DeviceTable, listed: Sequence[str], predicted: Sequence[str], hint: Sequence[int] | None, node: Kubelet
) -> Precision:
    if set(listed) == set(predicted):
        return Precision.IDS
    if not table.index.keys() >= {*listed, *predicted}:
        return Precision.MISSED if hint is not None else Precision.HINT
    if _numa_nodes(table, listed) == _numa_nodes(table, predicted):
        return Precision.NUMA_NODES
    if hint is None:
        return Precision.HINT
    # filterByAffinity takes devices near the hint first, so both sets must be near the hint.
    near = table.touching(mask_of(node.node_ids.index(numa) for numa in hint if numa in node.node_ids))
    return Precision.MISSED if table.select([*listed, *predicted]) & ~near else Precision.HINT


def _numa_nodes(table: DeviceTable, devices: Sequence[str]) -> Counter[Mask]:
    """Returns how many of the devices have each set of NUMA nodes."""
    numbers = [table.index[device] for device in devices]
    return Counter(mask_of(at for at, near in enumerate(table.near) if near >> number & 1) for number in numbers)
