"""Checks that the nodes of a pool are equal: a pod that fits one node should fit every node of the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from topowise import nrt, quantity
from topowise.errors import ParseError
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.doctor.kubelets import configuration
from topowise_scheduler.kubectl.objects import Reported
from topowise_scheduler.report import Report
from topowise_scheduler.verdicts.kube_scheduler import NodeObject

_POOL_LABELS: Final = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.cluster.x-k8s.io/pool",
    "node.kubernetes.io/instance-type",
)
_FIELDS: Final = (
    "topologyManagerPolicy",
    "topologyManagerScope",
    "topologyManagerPolicyOptions",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "memoryManagerPolicy",
)


def check(nodes: Sequence[NodeObject] | None, reports: Sequence[tuple[Reported, Report]]) -> Iterator[Finding]:
    """Nodes with the same label and hardware, but different kubelet settings."""
    labels = {node.metadata.name: node.metadata.labels or {} for node in nodes or ()}
    pools: dict[tuple[str, ...], list[tuple[Reported, Report]]] = {}
    for raw, report in reports:
        node_labels = labels.get(report.name, {})
        named = next((f"{label}={node_labels[label]}" for label in _POOL_LABELS if label in node_labels), "")
        pools.setdefault((named, *_hardware(raw.topology)), []).append((raw, report))
    for (named, *hardware), pool in pools.items():
        for field in _FIELDS:
            by_value: dict[str, list[str]] = {}
            for raw, report in pool:
                by_value.setdefault(_value(field, raw, report), []).append(report.name)
            by_value.pop("", None)
            if len(by_value) > 1:
                kinds = "; ".join(
                    f"{value} on {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
                    for value, names in sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
                )
                pool_name = named or f"{len(hardware)} NUMA nodes of {hardware[0]}"
                yield Finding(
                    "pools", "warning", "node pool", (pool_name,), f"different {field}: {kinds}",
                    "the nodes have equal hardware, but a pod that fits one node is refused or not aligned by another",
                    "use the same configuration for all kubelets of the pool",
                )  # fmt: skip


def _hardware(topology: nrt.NodeResourceTopology) -> list[str]:
    """The rounded size of each zone: equal machines differ by some bytes."""
    return [_spell(zone) for _, zone in nrt.numa_zones(topology)] or ["no zones"]


def _spell(zone: nrt.Zone) -> str:
    cpus, memory = 0, 0
    for resource in zone.resources or ():
        try:
            if resource.name == "cpu":
                cpus = quantity.value(resource.capacity)
            elif resource.name == "memory":
                memory = round(quantity.value(resource.capacity) / (1 << 32))
        except ParseError:
            continue
    return f"{cpus} CPUs, {4 * memory}Gi"


def _value(field: str, raw: Reported, report: Report) -> str:
    """The text of the field, "" if it is not known."""
    config = configuration(raw)
    if config is None:
        if not report.knows_policy:
            return ""
        scope = report.empty.settings.topology.scope
        return {"topologyManagerPolicy": report.policy, "topologyManagerScope": scope}.get(field, "")
    value = getattr(config, field)
    if isinstance(value, dict) or value is None:
        return ",".join(f"{name}={setting}" for name, setting in sorted((value or {}).items())) or "none"
    return str(value) or "none"
