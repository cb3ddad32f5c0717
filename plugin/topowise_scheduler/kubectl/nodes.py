"""The table of `kubectl topowise nodes`: a row for each NUMA node, free and allocatable as exporters report it."""

from __future__ import annotations

from collections.abc import Iterable

from topowise import nrt, quantity
from topowise.errors import ParseError
from topowise_scheduler.explain import human
from topowise_scheduler.kubectl.columns import columns
from topowise_scheduler.report import Report, read


def table(topologies: Iterable[nrt.NodeResourceTopology]) -> tuple[str, list[str]]:
    """The table, and a line for each part of an object that could not be used."""
    rows: list[list[str]] = []
    problems: list[str] = []
    for topology in topologies:
        report = read(topology)
        problems += [f"{report.name}: {problem}" for problem in report.problems]
        rows += [_row(report, numa_id, zone) for numa_id, zone in nrt.numa_zones(topology)] or [
            [*_node(report), "-", "-", "-", ""]
        ]
    header = ["NODE", "POLICY", "SCOPE", "PRECISION", "ZONE", "CPU FREE", "MEMORY FREE", "OTHER FREE"]
    return columns(header, rows), problems


def _row(report: Report, numa_id: int, zone: nrt.Zone) -> list[str]:
    amounts = {resource.name: _free(resource) for resource in zone.resources or ()}
    others = " ".join(
        f"{name}={text}" for name, text in sorted(amounts.items()) if text and name not in ("cpu", "memory")
    )
    return [*_node(report), str(numa_id), amounts.get("cpu") or "-", amounts.get("memory") or "-", others]


def _node(report: Report) -> list[str]:
    topology = report.empty.settings.topology
    return [report.name, topology.policy, topology.scope, report.precision]


def _free(resource: nrt.Resource) -> str:
    """Available of allocatable; "" if none can be allocated, "?" for what cannot be read."""
    try:
        may = quantity.for_resource(resource.name, resource.allocatable)
        can = quantity.for_resource(resource.name, resource.available)
    except ParseError:
        return "?"
    return f"{_spell(resource.name, max(0, can))}/{_spell(resource.name, may)}" if may else ""


def _spell(resource: str, amount: int) -> str:
    return quantity.from_milli(amount) if resource == "cpu" else human(resource, amount)
