"""Reads the objects of the checks, and prints their findings."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from topowise import nrt
from topowise.errors import SourceError
from topowise.text import Line, escaped
from topowise_scheduler.explain.text import plural
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl import json_output, objects
from topowise_scheduler.kubectl.console import Console, Output
from topowise_scheduler.kubectl.doctor import claims, devices, kube_scheduler, kubelets, own_pods, pods, reports
from topowise_scheduler.kubectl.doctor.finding import SEVERITIES, Finding, Severity, together
from topowise_scheduler.kubectl.objects import Objects, Reported
from topowise_scheduler.kubectl.source import ForbiddenError, Kubectl
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.options.registry import READERS
from topowise_scheduler.report import Report, read

_COLOURS: Final[dict[Severity, str]] = {"error": colours.BAD, "warning": colours.WARN, "note": colours.DIM}
_LABEL: Final = 9

Read = Sequence[tuple[Reported, Report]]


def run(options: argparse.Namespace, console: Console) -> Output:
    """The command."""
    findings_: list[Finding] = []
    # An unreadable file is an error before the cluster is read.
    if options.scheduler_config:
        findings_ += kube_scheduler.check(kube_scheduler.read(options.scheduler_config))
    if options.file:
        there = objects.from_files(options.file)
        findings_ += _saved(there)
    else:
        there = _examine(Kubectl(options.kubectl), findings_, console, options.patience)
    merged = together(findings_)
    status = 1 if any(finding.severity != "note" for finding in merged) else 0
    findings = [{**msgspec.to_builtins(finding), "thing": finding.thing} for finding in merged]
    body = json_output.printed(options.output, findings)
    if body is None:
        body = _text(merged, there, console, looked_at_scheduler=bool(options.scheduler_config))
    return Output(body, status)


def _saved(there: Objects) -> Iterator[Finding]:
    now = objects.saved_at(there)
    known = _read(there)
    yield from _common(there, known, now)
    yield from reports.unmatched(list(reports.mismatches(there, known, now)))


def _examine(kubectl: Kubectl, findings: list[Finding], console: Console, patience: float) -> Objects:
    """Examines the cluster, with checks that need more than saved objects."""
    group, pods_of_exporters, pods_of_scheduler = kubectl.attempt(
        reports.GROUP_PATH, own_pods.EXPORTERS_PATH, own_pods.SCHEDULERS_PATH
    )
    findings += reports.check_definition(group)
    denied: dict[str, ForbiddenError] = {}
    there = objects.from_cluster(kubectl, pods_path=objects.ALL_PODS_PATH, nodes=True, denied=denied)
    findings += _not_allowed(denied)
    known = _read(there)
    findings += _common(there, known, console.now, are_reports_known=nrt.PATH not in denied)
    findings += _claims(kubectl, there, known, console.now)
    own_exporters: list[own_pods.OwnPod] = []
    if not isinstance(pods_of_exporters, SourceError):
        own_exporters = own_pods.listed(pods_of_exporters, own_pods.EXPORTER)
        findings += own_pods.check_exporters(own_exporters, there.reports, kubectl, console.now)
    if not isinstance(pods_of_scheduler, SourceError):
        deciding = own_pods.listed(pods_of_scheduler, own_pods.SCHEDULER)
        findings += own_pods.check_schedulers(deciding, console.now, is_of_chart=bool(own_exporters))
    first = reports.mismatches(there, known, console.now)
    if first:
        # Pods may change between reads; only a lasting mismatch is an error.
        time.sleep(patience)
        again = objects.from_cluster(kubectl, pods_path=objects.PODS_PATH)
        second = reports.mismatches(again, _read(again), console.now)
        findings += reports.unmatched([name for name, seen in first.items() if second.get(name) == seen])
    return there


def _claims(kubectl: Kubectl, there: Objects, known: Read, now: float) -> Iterator[Finding]:
    """Checks claims and their devices. A cluster without pods with claims, where topowise allocates nothing, is not
    asked for them."""
    claiming = [pod for pod in there.pods or () if pod.spec.resourceClaims]
    (configured,) = kubectl.attempt(devices.CONFIGURATIONS)
    owned = frozenset[str]() if isinstance(configured, SourceError) else devices.drivers(configured)
    if not owned and not claiming:
        return
    paths_ = (claims.SLICES, claims.CLAIMS, *((devices.CLASSES,) if owned else ()))
    answers = {devices.CONFIGURATIONS: configured, **dict(zip(paths_, kubectl.attempt(*paths_), strict=True))}
    yield from _not_allowed({path: error for path, error in answers.items() if isinstance(error, ForbiddenError)})
    slices, listed, classes = (answers.get(path) for path in (claims.SLICES, claims.CLAIMS, devices.CLASSES))
    if not isinstance(slices, bytes) or not isinstance(listed, bytes):
        return
    by_key = claims.claims(listed)
    records = [Records().record(pod) for pod in claiming if pod.spec.nodeName]
    yield from claims.check(records, [report for _, report in known], by_key, claims.locations(slices))
    yield from devices.check_allocated(by_key, there.pods, now)
    if isinstance(classes, bytes):
        by_name, inventory = devices.classes(classes), devices.Devices(slices, claims.SLICES)
        yield from devices.check(owned, inventory, by_name)
        yield from devices.check_waiting(claiming, by_key, owned, inventory, by_name)


def _not_allowed(denied: Mapping[str, ForbiddenError]) -> Iterator[Finding]:
    for path, error in denied.items():
        resource = path.partition("?")[0].rpartition("/")[2]
        yield Finding(
            "rights", "warning", resource, (), f"may not be read: {error}", "checks that need them were skipped",
            f"allow list on {resource} to the user, or use a context with that right (--context)",
        )  # fmt: skip


def _read(there: Objects) -> Read:
    versions = there.kubelet_versions
    return [
        (reported, read(reported.topology, versions.get(reported.topology.metadata.name, ""), size=reported.size))
        for reported in there.reports
    ]


def _common(there: Objects, known: Read, now: float, *, are_reports_known: bool = True) -> Iterator[Finding]:
    if are_reports_known:
        yield from reports.check(there, known)
    for raw, report in known:
        yield from kubelets.check(raw, report)
    yield from kubelets.check_pools(there.nodes, known)
    records = Records(readers=READERS)
    yield from own_pods.unserved(there.pods or (), now)
    yield from kubelets.check_restarts(known, there.pods or ())
    yield from pods.check(there, [records.record(pod) for pod in there.pods or ()], known, now)


def _text(findings: Sequence[Finding], there: Objects, console: Console, *, looked_at_scheduler: bool) -> list[Line]:
    lines: list[Line] = []
    for finding in findings:
        lines += [
            *_paragraph(finding.severity, f"{finding.thing}: {finding.value}", console, _COLOURS[finding.severity]),
            *_paragraph("  why", finding.why, console, colours.DIM),
            *_paragraph("  fix", finding.mend, console, colours.DIM),
            "",
        ]
    seen = f"{plural(len(there.reports), 'report')}"
    for kind, things in (("node", there.nodes), ("pod", there.pods)):
        seen += f", {plural(len(things), kind)}" if things is not None else f", no {kind}s"
    counts = [(name, sum(finding.severity == name for finding in findings)) for name in SEVERITIES]
    summary = ", ".join(plural(count, name) for name, count in counts if count) or "no problem found"
    lines.append(f"Looked at {seen}: {summary}.")
    if not looked_at_scheduler:
        lines.append("Not checked: kube-scheduler's configuration (--scheduler-config FILE).")
    return lines


def _paragraph(label: str, text: str, console: Console, code: str) -> list[Line]:
    """Text beside a label, in lines of the console's width."""
    room = max(30, console.columns - _LABEL)
    first, *rest = textwrap.wrap(escaped(text), room, break_long_words=False, break_on_hyphens=False)
    return [
        [console.paint(label, code), " " * (_LABEL - len(label)), first],
        *(" " * _LABEL + line for line in rest),
    ]
