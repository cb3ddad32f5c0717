"""`kubectl topowise nodes`: a row for each reported node, or with `-o wide` for each NUMA node."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from topowise import nrt
from topowise.kube import paths
from topowise.text import Line, Styled
from topowise_scheduler.kubectl import json_output, objects, reasons, selection, zones
from topowise_scheduler.kubectl.console import Console, Output, Paint, age, columns, width_of
from topowise_scheduler.kubectl.doctor import own_pods
from topowise_scheduler.kubectl.doctor.reports import outdated_causes
from topowise_scheduler.kubectl.source import ForbiddenError, Kubectl
from topowise_scheduler.kubectl.zones import Losses
from topowise_scheduler.report import Report, read

Problems = list[tuple[str, str]]
"""Names of nodes, and the unusable parts of their reports."""
Unconfirmed = Mapping[str, Sequence[str]]
"""Names of nodes, and the causes for which their reports are unconfirmed."""

NOTHING_FOUND: Final = "No NodeResourceTopologies found: is an exporter running?"
_HEADER: Final = (
    "NODE", "POLICY", "SCOPE", "PRECISION", "ZONES", "CPU FREE", "FRAG", "MEMORY FREE", "DEVICES FREE", "CHANGED"
)  # fmt: skip
_WIDE_HEADER: Final = ("NODE", "POLICY", "SCOPE", "PRECISION", "ZONE", "CPU FREE", "MEMORY FREE", "OTHER FREE")
# Columns that a narrow terminal leaves out, in this order.
_SPARED: Final = ("PRECISION", "ZONES", "SCOPE", "CHANGED", "POLICY", "FRAG", "MEMORY FREE", "DEVICES FREE")


def run(options: argparse.Namespace, console: Console) -> Output:
    """The command."""
    there, denied = _read(options)
    losses = Losses(there.pods)
    reports = selection.selected(options, there, losses)
    known = [(report, read(report.topology)) for report in reports]
    now = objects.saved_at(there) if options.file else console.now
    unconfirmed = outdated_causes(there, known, now, has_all_pods=bool(options.file))
    if options.output not in ("table", "wide"):
        rows = _documents(known, losses, unconfirmed)
        names = [report.topology.metadata.name for report in reports]
        return Output(json_output.printed(options.output, rows, names=names) or "", notes=denied)
    if not reports:
        return Output("", notes=("No nodes match." if there.reports else NOTHING_FOUND,))
    lines, notes = _shown(reports, losses, unconfirmed, options, console)
    return Output(lines, notes=(*notes, *denied))


def _read(options: argparse.Namespace) -> tuple[objects.Objects, tuple[str, ...]]:
    """The objects, and a note if the pods, which show outdated reports, may not be read.

    Of a cluster only the waiting pods and the exporters are read: all pods of a large cluster take minutes.
    """
    if options.file:
        return objects.from_files(options.file), ()
    denied: dict[str, ForbiddenError] = {}
    kubectl = Kubectl(options.kubectl)
    there = objects.from_cluster(kubectl, pods_path=objects.WAITING_PATH, nodes=bool(options.selector), denied=denied)
    if there.pods is not None and options.output != "name":
        there = msgspec.structs.replace(there, pods=(*there.pods, *objects.pods(kubectl, own_pods.EXPORTERS_PATH)))
    if options.selector and paths.NODES in denied:
        raise denied[paths.NODES]
    if nrt.PATH in denied:
        raise denied[nrt.PATH]
    return there, tuple([f"note: outdated reports are not marked: {error}" for error in denied.values()])


def _documents(
    known: Sequence[tuple[objects.Reported, Report]], losses: Losses, unconfirmed: Unconfirmed
) -> list[json_output.Json]:
    return [
        {
            **json_output.node(reported, report, zones.fragmentation_fields(losses.of(report))),
            "unconfirmed": list(unconfirmed.get(report.name, ())),
        }
        for reported, report in known
    ]


def _shown(
    reports: Sequence[objects.Reported],
    losses: Losses,
    unconfirmed: Unconfirmed,
    options: argparse.Namespace,
    console: Console,
) -> tuple[list[Line], list[str]]:
    """The table for the console, and notes."""
    topologies = [report.topology for report in reports]
    if options.output == "wide":
        lines, problems = wide_table(topologies)
        left_out: Sequence[str] = ()
    else:
        changed = {report.topology.metadata.name: report.changed for report in reports}
        header, rows, problems = _rows(topologies, changed, losses, console)
        header, rows = _marked(header, rows, unconfirmed)
        if console.width is not None and width_of(header, rows) > console.width:
            header, rows, _ = _rows(topologies, changed, losses, console, is_short=True)
            header, rows = _marked(header, rows, unconfirmed)
        header, rows, left_out = _narrowed(header, rows, console.width)
        lines = columns(header, rows, paint=_paint(header, console))
    if options.no_headers:
        lines = lines[1:]
    notes = reasons.notes(problems)
    for report in reports:
        if causes := unconfirmed.get(report.topology.metadata.name):
            ago = age(report.changed, console.now)
            notes.append(
                f"warning: {report.topology.metadata.name}: its report is not confirmed at present "
                f"({', '.join(causes)}) and has changed {ago} ago; kubectl topowise doctor says more"
            )
    if left_out:
        notes.append(f"note: {console.width} columns are too few for {', '.join(left_out)}; -o wide has a row a zone")
    return lines, notes


def table(topologies: Iterable[nrt.NodeResourceTopology]) -> tuple[list[Line], Problems]:
    """The table of nodes, and the unusable parts of the reports."""
    header, rows, problems = _rows(topologies, {}, Losses(), Console())
    return columns(header, rows), problems


def wide_table(topologies: Iterable[nrt.NodeResourceTopology]) -> tuple[list[Line], Problems]:
    """A table with a row for each NUMA node and all its resources."""
    rows: list[list[str]] = []
    problems: list[tuple[str, str]] = []
    for topology in topologies:
        report = read(topology)
        problems += [(report.name, problem) for problem in report.problems]
        rows += [[*_node(report), *_zone(numa_id, zone)] for numa_id, zone in zones.zones_of(topology)] or [
            [*_node(report), "-", "-", "-", ""]
        ]
    return columns(_WIDE_HEADER, rows), problems


def _rows(
    topologies: Iterable[nrt.NodeResourceTopology],
    changed: Mapping[str, str],
    losses: Losses,
    console: Console,
    *,
    is_short: bool = False,
) -> tuple[Sequence[str], list[list[str]], Problems]:
    rows: list[list[str]] = []
    problems: list[tuple[str, str]] = []
    for topology in topologies:
        report = read(topology)
        problems += [(report.name, problem) for problem in report.problems]
        numa_zones = [amounts for _, amounts in zones.zones_of(topology)]
        rows.append(
            [
                *_node(report),
                str(len(numa_zones)),
                _free(numa_zones, "cpu", console, is_short=is_short),
                losses.cell(report),
                _free(numa_zones, "memory", console, is_short=is_short),
                " ".join(
                    f"{zones.short(name)} {zones.numbers(numa_zones, name, is_short=is_short).replace(' of ', '/')}"
                    for name in zones.resources(numa_zones)
                    if "/" in name
                )
                or "-",
                age(changed.get(report.name, ""), console.now),
            ]
        )
    return _HEADER, rows, problems


def _marked(
    header: Sequence[str], rows: list[list[str]], unconfirmed: Unconfirmed
) -> tuple[Sequence[str], list[list[str]]]:
    """The table with the column REPORT behind the names, if a node of the table is unconfirmed."""
    if not any(row[0] in unconfirmed for row in rows):
        return header, rows
    marked = [[row[0], "stale" if row[0] in unconfirmed else "ok", *row[1:]] for row in rows]
    return [header[0], "REPORT", *header[1:]], marked


def _paint(header: Sequence[str], console: Console) -> Paint:
    """Colours the losses by fragmentation."""

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, zones.colour_of(cell)) if header[column] == "FRAG" else cell

    return paint


def _narrowed(
    header: Sequence[str], rows: list[list[str]], width: int | None
) -> tuple[Sequence[str], list[list[str]], Sequence[str]]:
    """The table without the columns that do not fit, and the names of these columns."""
    left_out: list[str] = []
    for name in _SPARED:
        if width is None or width_of(header, rows) <= width:
            break
        at = header.index(name)
        header = [*header[:at], *header[at + 1 :]]
        rows = [[*row[:at], *row[at + 1 :]] for row in rows]
        left_out.append(name)
    return header, rows, left_out


def _free(numa_zones: zones.Zones, resource: str, console: Console, *, is_short: bool) -> str:
    if not any(resource in zone for zone in numa_zones):
        return "-"
    bars = zones.bars(numa_zones, resource, is_ascii=console.is_ascii)
    return f"{bars} {zones.numbers(numa_zones, resource, is_short=is_short)}"


def _node(report: Report) -> list[str]:
    scope = report.empty.settings.topology.scope
    return [report.name, report.policy, scope, f"{report.precision} {report.exact_for}".strip()]


def _zone(numa_id: int, zone: Mapping[str, zones.Amount]) -> list[str]:
    texts = {name: _of(name, amount) for name, amount in zone.items()}
    devices = " ".join(f"{name}={text}" for name, text in sorted(texts.items()) if name not in ("cpu", "memory"))
    return [str(numa_id), texts.get("cpu", "-"), texts.get("memory", "-"), devices]


def _of(resource: str, amount: zones.Amount) -> str:
    """Available of allocatable, "?" for an invalid amount."""
    if amount.available is None:
        return "?"
    return f"{zones.to_text(resource, amount.available)}/{zones.to_text(resource, amount.allocatable)}"
