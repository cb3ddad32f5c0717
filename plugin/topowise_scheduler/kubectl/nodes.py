"""The table of `kubectl topowise nodes`: a row for each NUMA node, free and allocatable side by side."""

from __future__ import annotations

from collections.abc import Iterable

from topowise import nrt
from topowise_scheduler.engine.node import NodeTopology, Zone, read
from topowise_scheduler.explain import human
from topowise_scheduler.kubectl.columns import columns


def table(topologies: Iterable[nrt.NodeResourceTopology]) -> tuple[str, list[str]]:
    """The table, and a line for each part of an object that could not be used."""
    rows: list[list[str]] = []
    problems: list[str] = []
    for topology in topologies:
        node, unusable = read(topology)
        problems += [f"{node.name}: {problem}" for problem in unusable]
        rows += [_row(node, zone) for zone in node.zones] or [[node.name, node.policy, node.scope, "-", "-", "-", ""]]
    header = ["NODE", "POLICY", "SCOPE", "ZONE", "CPU FREE", "MEMORY FREE", "OTHER FREE"]
    return columns(header, rows), problems


def _row(node: NodeTopology, zone: Zone) -> list[str]:
    others = [resource for resource in sorted(zone.allocatable) if resource not in ("cpu", "memory")]
    return [
        node.name,
        node.policy,
        node.scope,
        str(zone.id),
        _free(zone, "cpu"),
        _free(zone, "memory"),
        " ".join(f"{resource}={_free(zone, resource)}" for resource in others if zone.allocatable[resource]),
    ]


def _free(zone: Zone, resource: str) -> str:
    if resource not in zone.allocatable:
        return "-"
    return f"{human(resource, zone.available[resource])}/{human(resource, zone.allocatable[resource])}"
