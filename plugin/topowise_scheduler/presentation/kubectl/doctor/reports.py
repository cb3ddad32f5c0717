"""Whether each node has a report, one writer, and a report that tells of the pods that are there.

NRTs are only written when something changes, so that an old one says nothing. What tells is the fingerprint: the pods
the exporter had seen against those that are on the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from topowise import fingerprint, pods
from topowise.errors import ParseError
from topowise_scheduler.cluster.node.confirmation import is_exclusive
from topowise_scheduler.kube_scheduler import NodeObject
from topowise_scheduler.presentation.kubectl.doctor.finding import Finding
from topowise_scheduler.presentation.kubectl.durations import seconds_since
from topowise_scheduler.presentation.kubectl.objects import Objects, Reported
from topowise_scheduler.report import Report

_CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
# Until then a pod may not have reached its kubelet.
YOUNG_S: Final = 60.0


def check(there: Objects, reports: Sequence[tuple[Reported, Report]]) -> Iterator[Finding]:
    """What the objects show as they are."""
    if not reports:
        yield Finding(
            "reports", "error", "cluster", (), "without a NodeResourceTopology",
            "no exporter has written anything: every pod is scheduled without NUMA nodes",
            "run topowise-exporter as a DaemonSet, and look at the logs of its pods",
        )  # fmt: skip
    if there.nodes is not None and reports:
        yield from _nodes(there.nodes, reports)
    for raw, report in reports:
        yield from _writers(raw)
        if report.over_budget:
            yield Finding(
                "reports", "error", "node", (report.name,), f"report that is not used: {report.over_budget}",
                "the scheduler goes on with the last report that it could use, or treats the node as unreported; "
                "whoever has taken a node over may write such an object on purpose",
                "look at what writes the object (managedFields), then delete it: the exporter writes it anew",
            )  # fmt: skip
            continue
        for problem in report.problems:
            yield Finding(
                "reports", "warning", "node", (report.name,), f"report with what cannot be used: {problem}",
                "the scheduler judges the node by less than there is",
                "update the exporter of the node, or report the object as a bug",
            )  # fmt: skip
        if report.remark and not report.version_problem:
            yield Finding(
                "reports", "warning" if report.certainty == "assumed" else "note", "node", (report.name,),
                report.remark,
                "its kubelet may decide otherwise than predicted, and then it refuses pods that were sent to it",
                "update topowise once it knows this version, and watch topowise_scheduler_kubelet_refusals_total",
            )  # fmt: skip
        if report.precision == "counts":
            yield Finding(
                "reports", "note", "node", (report.name,), "known by counts alone",
                "which CPUs and devices are free is not reported, so a prediction can be wrong where that decides",
                "let topowise-exporter report it, with publish.holdings on",
            )  # fmt: skip


def mismatches(there: Objects, reports: Sequence[tuple[Reported, Report]], now: float) -> dict[str, tuple[str, str]]:
    """By node the report's fingerprint and that of the pods, where they differ though no pod is new; or when the report
    was written and a pod that was there a minute later, which would have had it written anew."""
    if there.pods is None:
        return {}
    on: dict[str, list[pods.Pod]] = {}
    for pod in there.pods:
        if pod.spec.nodeName and not pod.is_terminal:
            on.setdefault(pod.spec.nodeName, []).append(pod)
    found = {}
    for raw, report in reports:
        mine = on.get(report.name, [])
        young = any((seconds_since(_started(pod), now) or 0.0) < YOUNG_S or _is_leaving(pod) for pod in mine)
        if not report.fingerprint:
            continue
        if young:
            # Where pods come all the time no fingerprint can be compared.
            missed = _missed(raw, report, mine, now)
            if missed:
                found[report.name] = raw.changed, missed
        elif (expected := _fingerprint(report, mine)) and expected != report.fingerprint:
            found[report.name] = report.fingerprint, expected
    return found


def unmatched(names: Sequence[str]) -> Iterator[Finding]:
    """The finding for nodes whose reports do not match for good."""
    if names:
        yield Finding(
            "reports", "error", "node", tuple(names), "reported with other pods than are there",
            "the report is of the past: its exporter does not read its node, cannot write, or is gone; the scheduler "
            "books on top of numbers that are not true",
            "look at the logs of the exporters there, and whether another one writes the object",
        )  # fmt: skip


def _nodes(nodes: Sequence[NodeObject], reports: Sequence[tuple[Reported, Report]]) -> Iterator[Finding]:
    reported = {report.name: raw for raw, report in reports}
    for node in nodes:
        name = node.metadata.name
        if name in reported:
            uids = [one.uid for one in reported[name].topology.metadata.ownerReferences or () if one.kind == "Node"]
            if uids and node.metadata.uid and node.metadata.uid not in uids:
                yield Finding(
                    "reports", "error", "node", (name,), "with the report of an earlier node of this name",
                    "the node was made anew and its exporter has not written since; what is reported is not there",
                    "look at the logs of the exporter there; deleting the NodeResourceTopology makes it write anew",
                )  # fmt: skip
        elif node.is_ready and not any(taint.key in _CONTROL_PLANE for taint in node.spec.taints or ()):
            yield Finding(
                "reports", "warning", "node", (name,), "ready, without a NodeResourceTopology",
                "nothing is known against it, so the scheduler lets every pod go there, and its kubelet refuses some",
                "let the exporter's DaemonSet tolerate its taints and select it, or look at the logs of its pod there",
            )  # fmt: skip
    for name in reported.keys() - {node.metadata.name for node in nodes}:
        yield Finding(
            "reports", "warning", "NodeResourceTopology", (name,), "of a node that is not there",
            "it was written without an owner, or by hand, and stays for ever",
            "kubectl delete noderesourcetopology of that name",
        )  # fmt: skip


def _writers(raw: Reported) -> Iterator[Finding]:
    if len(raw.writers) > 1:
        yield Finding(
            "reports", "error", "NodeResourceTopology", (raw.topology.metadata.name,),
            f"{len(raw.writers)} writers: {', '.join(raw.writers)}",
            "each undoes what the other has written, and readers see now this and now that",
            "run one exporter on each node: topowise-exporter, or RTE, or NFD's topology updater, or koordlet",
        )  # fmt: skip


def _fingerprint(report: Report, mine: Sequence[pods.Pod]) -> str:
    """What an exporter that is up to date would publish, "" for pods that cannot be read."""
    try:
        return fingerprint.of(
            (pod.metadata.namespace, pod.metadata.name)
            for pod in mine
            if report.fingerprint_method == fingerprint.ALL or is_exclusive(report.empty, pods.needs(pod))
        )
    except ParseError:
        return ""


def _missed(raw: Reported, report: Report, mine: Sequence[pods.Pod], now: float) -> str:
    """A pod that the report should tell of for a minute already, but is older than; "" if there is none.

    The kubelet's clock and the API server's may be seconds apart.
    """
    written = seconds_since(raw.changed, now)
    for pod in mine:
        started = seconds_since((pod.status.startTime if pod.status is not None else None) or "", now)
        if written is None or started is None or started < YOUNG_S or written - started < YOUNG_S:
            continue
        alone = _fingerprint(report, [pod])
        if alone and alone != _fingerprint(report, []):
            return f"{pod.metadata.namespace}/{pod.metadata.name}"
    return ""


def _started(pod: pods.Pod) -> str:
    return (pod.status.startTime if pod.status is not None else None) or pod.metadata.creationTimestamp or ""


def _is_leaving(pod: pods.Pod) -> bool:
    return pod.metadata.deletionTimestamp is not None
