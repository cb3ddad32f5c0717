"""Each pod's NUMA placement as an annotation on the pod, for KAI's NUMA plugin. The text is a pure function.

KAI reads the annotation of its own numa-placement-exporter (pkg/npe/placement of KAI-Scheduler, August 2026), and this
is the same: amounts by zone of resources on exactly one NUMA node. CPUs count by their ids. A device or memory block
with several nodes or none is left out, and so is a pod with nothing else.

The exporter knows a pod by name only, and a new pod of that name may be on another node. So the patch contains this
node's name as `spec.nodeName`: the API server refuses to change it, and so accepts the patch for a pod on this node
only. If the annotation is unchanged, the patch is a no-op without a write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from topowise import nrt
from topowise.text import escaped_json
from topowise_exporter.kubelet.allocations import PodAllocation

ANNOTATION: Final = "kai.scheduler/numa-placement-observed"


class Zone(msgspec.Struct, frozen=True):
    """A zone of the annotation."""

    zone: str
    amount: dict[str, str]


def placement(pod: PodAllocation, node_of_cpu: Mapping[int, int]) -> str | None:
    """Returns the annotation's text; None if no resource of the pod is on exactly one NUMA node."""
    amounts: dict[int, dict[str, int]] = {}

    def add(node: int, resource: str, amount: int) -> None:
        amounts_of_zone = amounts.setdefault(node, {})
        amounts_of_zone[resource] = amounts_of_zone.get(resource, 0) + amount

    for cpu in pod.cpus:
        if cpu in node_of_cpu:
            add(node_of_cpu[cpu], "cpu", 1)
    for block in pod.memory:
        if len(block.nodes) == 1 and block.size:
            add(block.nodes[0], block.type, block.size)
    for device in pod.devices:
        if len(device.nodes) == 1:
            add(device.nodes[0], device.resource, 1)
    if not amounts:
        return None
    zones = [
        Zone(nrt.zone_name(node), {resource: str(amount) for resource, amount in sorted(amounts_of_zone.items())})
        for node, amounts_of_zone in amounts.items()
    ]
    return escaped_json(msgspec.json.encode(sorted(zones, key=lambda zone: zone.zone)).decode())


def patch(node_name: str, text: str) -> bytes:
    """Returns the merge patch that annotates a pod if it is on the node."""
    return msgspec.json.encode({"metadata": {"annotations": {ANNOTATION: text}}, "spec": {"nodeName": node_name}})
