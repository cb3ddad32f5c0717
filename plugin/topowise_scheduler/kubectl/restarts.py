"""`kubectl topowise simulate --restart`: what a restart of all kubelets does, also with other settings."""

from __future__ import annotations

import argparse

import msgspec

from topowise.errors import SourceError
from topowise.text import Line, Styled
from topowise_scheduler.explain.text import plural
from topowise_scheduler.kubectl import cluster, json_output, objects
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl.console import Console, Output
from topowise_scheduler.kubectl.table import columns
from topowise_scheduler.kubelet import version_of
from topowise_scheduler.report import read
from topowise_scheduler.report.restart_forecast import REFUSES, STOPS, Change, foresee_all


def change_of(options: argparse.Namespace) -> Change | None:
    """The change that the options name, None if they name no restart. Raises TopowiseError for an unknown version."""
    fields = {"topologyManagerPolicy": options.policy, "topologyManagerScope": options.scope}
    given = {name: value for name, value in fields.items() if value}
    if not (options.restart or options.kubelet_version or given):
        return None
    return Change(version_of(options.kubelet_version) if options.kubelet_version else None, given)


def run(options: argparse.Namespace, console: Console, change: Change) -> Output:
    """The command. Raises SourceError for pods: a restart admits the pods of the nodes."""
    if options.pod or options.file:
        named = f"pod {options.pod}" if options.pod else f"-f {options.file[0]}"
        raise SourceError(named, "a restart places no pods, expected nodes from --nodes-file FILE or the cluster")
    there, _ = cluster.read(options)
    if not there.reports:
        raise objects.no_nodes(options.nodes_file)
    versions = there.kubelet_versions
    notes: list[str] = []
    reports = [
        read(reported.topology, versions.get(reported.topology.metadata.name, ""), size=reported.size)
        for reported in there.reports
    ]
    nodes = list(foresee_all(reports, there.pods or (), notes, change))
    remarks = dict.fromkeys(node.remark for node in nodes if node.remark)
    notes[:0] = [f"warning: {remark}" for remark in remarks]
    stops, refuses = [node for node in nodes if node.error], [node for node in nodes if node.refused]
    status = 1 if stops or refuses else 0
    if len(nodes) < len(reports):
        skipped = plural(len(reports) - len(nodes), "node")
        notes.append(f"note: {skipped} skipped: only an exact report describes the state of a kubelet")
    document = {"nodes": [{**msgspec.to_builtins(node), "outcome": node.outcome} for node in nodes]}
    body = json_output.printed(options.output, document)
    if body is not None:
        return Output(body, status, notes)

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, colours.BAD) if cell in (REFUSES, STOPS) else cell

    rows = [[node.node, node.outcome, str(node.admitted), str(len(node.refused))] for node in nodes]
    lines: list[Line] = [*columns(["NODE", "KUBELET", "ADMITTED", "REFUSED"], rows, width=console.width, paint=paint)]
    for node in [*stops, *refuses]:
        lines += ["", f"{node.node} {node.outcome}{': ' if node.error else ''}{node.error}"]
        pods_of_node = [[pod.pod, pod.reason, pod.message] for pod in node.refused]
        if pods_of_node:
            lines += columns(["POD", "REASON", "MESSAGE"], pods_of_node, indent="  ", width=console.width)
        lines.append(f"  {node.mend}")
    return Output(lines, status, notes)
