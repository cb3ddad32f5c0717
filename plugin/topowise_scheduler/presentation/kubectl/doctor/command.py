"""Reads what the checks need, and prints what they find."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from topowise import documents, nrt
from topowise.errors import SourceError
from topowise.text import Line, escaped
from topowise_scheduler.cluster.pods.records import Records
from topowise_scheduler.presentation.kubectl import console as colours
from topowise_scheduler.presentation.kubectl import objects
from topowise_scheduler.presentation.kubectl.console import Answer, Console
from topowise_scheduler.presentation.kubectl.doctor import (
    definition,
    exporters,
    kube_scheduler,
    kubelets,
    own_pods,
    pods,
    pools,
    reports,
    schedulers,
)
from topowise_scheduler.presentation.kubectl.doctor.finding import SEVERITIES, Finding, Severity, together
from topowise_scheduler.presentation.kubectl.objects import Objects, Reported
from topowise_scheduler.presentation.kubectl.source import ForbiddenError, Kubectl
from topowise_scheduler.presentation.text import plural
from topowise_scheduler.report import Report, read

_COLOURS: Final[dict[Severity, str]] = {"error": colours.BAD, "warning": colours.WARN, "note": colours.DIM}
_LABEL: Final = 9

Read = Sequence[tuple[Reported, Report]]


def run(options: argparse.Namespace, console: Console) -> Answer:
    """The command."""
    found: list[Finding] = []
    # A file that cannot be read is reported before the cluster is asked.
    if options.scheduler_config:
        found += kube_scheduler.check(kube_scheduler.read(options.scheduler_config))
    if options.file:
        there = objects.from_files(options.file)
        found += _saved(there)
    else:
        there = _examine(Kubectl(options.context, options.kubeconfig), found, console, options.patience)
    merged = together(found)
    status = 1 if any(one.severity != "note" for one in merged) else 0
    if options.output in ("json", "yaml"):
        findings = [{**msgspec.to_builtins(one), "thing": one.thing} for one in merged]
        return Answer(documents.spell(findings, options.output), status)
    return Answer(_text(merged, there, console, looked_at_scheduler=bool(options.scheduler_config)), status)


def _saved(there: Objects) -> Iterator[Finding]:
    now = objects.saved_at(there)
    known = _read(there)
    yield from _common(there, known, now)
    yield from reports.unmatched(list(reports.mismatches(there, known, now)))


def _examine(kubectl: Kubectl, found: list[Finding], console: Console, patience: float) -> Objects:
    """The cluster, with what is only found there."""
    group, pods_of_exporters, pods_of_scheduler = kubectl.attempt(definition.PATH, exporters.PATH, schedulers.PATH)
    found += definition.check(group)
    denied: dict[str, ForbiddenError] = {}
    there = objects.from_cluster(kubectl, pods_path=objects.ALL_PODS_PATH, nodes=True, denied=denied)
    found += _not_allowed(denied)
    known = _read(there)
    found += _common(there, known, console.now, are_reports_known=nrt.PATH not in denied)
    ours: list[own_pods.OwnPod] = []
    if not isinstance(pods_of_exporters, SourceError):
        ours = own_pods.listed(pods_of_exporters, exporters.COMPONENT)
        found += exporters.check(ours, there.reports, kubectl, console.now)
    if not isinstance(pods_of_scheduler, SourceError):
        deciding = own_pods.listed(pods_of_scheduler, schedulers.COMPONENT)
        found += schedulers.check(deciding, console.now, is_of_chart=bool(ours))
    first = reports.mismatches(there, known, console.now)
    if first:
        # Pods come and go meanwhile; what is wrong stays wrong.
        time.sleep(patience)
        again = objects.from_cluster(kubectl, pods_path=objects.PODS_PATH)
        second = reports.mismatches(again, _read(again), console.now)
        found += reports.unmatched([name for name, seen in first.items() if second.get(name) == seen])
    return there


def _not_allowed(denied: Mapping[str, ForbiddenError]) -> Iterator[Finding]:
    for path, error in denied.items():
        resource = path.partition("?")[0].rpartition("/")[2]
        yield Finding(
            "rights", "warning", resource, (), f"may not be read: {error}", "what needs them was not looked at",
            f"allow list on {resource} to whoever asks, or ask as somebody who may (--context)",
        )  # fmt: skip


def _read(there: Objects) -> Read:
    versions = there.kubelet_versions
    return [
        (one, read(one.topology, versions.get(one.topology.metadata.name, ""), size=one.size)) for one in there.reports
    ]


def _common(there: Objects, known: Read, now: float, *, are_reports_known: bool = True) -> Iterator[Finding]:
    if are_reports_known:
        yield from reports.check(there, known)
    for raw, report in known:
        yield from kubelets.check(raw, report)
    yield from pools.check(there.nodes, known)
    records = Records()
    yield from schedulers.unserved(there.pods or (), now)
    yield from pods.check(there, [records.record(pod) for pod in there.pods or ()], known, now)


def _text(found: Sequence[Finding], there: Objects, console: Console, *, looked_at_scheduler: bool) -> list[Line]:
    lines: list[Line] = []
    for one in found:
        lines += [
            *_paragraph(one.severity, f"{one.thing}: {one.value}", console, _COLOURS[one.severity]),
            *_paragraph("  why", one.why, console, colours.DIM),
            *_paragraph("  mend", one.mend, console, colours.DIM),
            "",
        ]
    seen = f"{plural(len(there.reports), 'report')}"
    for what, things in (("node", there.nodes), ("pod", there.pods)):
        seen += f", {plural(len(things), what)}" if things is not None else f", no {what}s"
    counts = [(name, sum(one.severity == name for one in found)) for name in SEVERITIES]
    summary = ", ".join(plural(count, name) for name, count in counts if count) or "nothing to mend"
    lines.append(f"Looked at {seen}: {summary}.")
    if not looked_at_scheduler:
        lines.append("Not looked at: kube-scheduler's configuration (--scheduler-config FILE).")
    return lines


def _paragraph(label: str, text: str, console: Console, code: str) -> list[Line]:
    """Text beside a label, in lines of the console's width."""
    room = max(30, console.columns - _LABEL)
    first, *rest = textwrap.wrap(escaped(text), room, break_long_words=False, break_on_hyphens=False)
    return [
        [console.paint(label, code), " " * (_LABEL - len(label)), first],
        *(" " * _LABEL + line for line in rest),
    ]
