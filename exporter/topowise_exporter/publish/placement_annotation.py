"""Where each pod lies, as an annotation on the pod itself, for KAI's NUMA plugin. The text is a pure function.

KAI reads what its own numa-placement-exporter writes (pkg/npe/placement of KAI-Scheduler, August 2026), and this is the
same: amounts by zone of what lies on one NUMA node for certain. CPUs count by their ids; a device or a block of memory
with several nodes, or with none, is left out, and so is a pod with nothing else.

A pod is known here by its name alone, and another one of that name may be on another node by now. So the patch says on
which node the pod has to be: the API server refuses to move a pod, and it takes the patch only if there is nothing to
move. It is a no-op where the annotation is the same, which costs no write.
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
    """One zone of the annotation."""

    zone: str
    amount: dict[str, str]


def placement(pod: PodAllocation, node_of_cpu: Mapping[int, int]) -> str | None:
    """The annotation's text; None if nothing of the pod lies on a NUMA node for certain."""
    amounts: dict[int, dict[str, int]] = {}

    def add(node: int, resource: str, amount: int) -> None:
        of_zone = amounts.setdefault(node, {})
        of_zone[resource] = of_zone.get(resource, 0) + amount

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
        Zone(nrt.zone_name(node), {resource: str(amount) for resource, amount in sorted(of_zone.items())})
        for node, of_zone in amounts.items()
    ]
    return escaped_json(msgspec.json.encode(sorted(zones, key=lambda zone: zone.zone)).decode())


def patch(node_name: str, text: str) -> bytes:
    """The merge patch that annotates a pod if it is on the node."""
    return msgspec.json.encode({"metadata": {"annotations": {ANNOTATION: text}}, "spec": {"nodeName": node_name}})
