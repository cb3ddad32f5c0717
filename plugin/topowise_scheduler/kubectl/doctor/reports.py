"""Checks that the API server serves NodeResourceTopology, and that each node has a report with a single writer that
includes the present pods.

An NRT is written only on a change, so its age shows nothing. The fingerprint shows it: the pods that the exporter has
seen, against the pods on the node. Which reports are outdated follows by the causes of the service
(ledger/gates/unconfirmed.py), without the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from topowise import fingerprint, nrt, pods
from topowise.errors import ParseError, SourceError
from topowise_scheduler.kubectl.console import seconds_since
from topowise_scheduler.kubectl.doctor import own_pods
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.objects import Objects, Reported
from topowise_scheduler.kubectl.source import ForbiddenError, MissingError, decoded
from topowise_scheduler.ledger.node.confirmation import is_exclusive
from topowise_scheduler.report import Report
from topowise_scheduler.verdicts.kube_scheduler import NodeObject

_CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
# A younger pod may not have reached its kubelet.
YOUNG_S: Final = 60.0
GROUP_PATH: Final = f"/apis/{nrt.GROUP}"
_NOT_SERVED: Final = "exporters cannot write and the scheduler cannot read: every pod is scheduled without NUMA nodes"
_OLD_VERSION: Final = "topowise-exporter cannot write; objects of other exporters are read without their attributes"


def check(there: Objects, reports: Sequence[tuple[Reported, Report]]) -> Iterator[Finding]:
    """Checks the objects as they are."""
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
                "an attacker who controls a node may write such an object",
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
    """Mismatches of reports and pods by node, without young pods.

    The value is the fingerprint of the report and that of the pods. If pods are young, it is the time of the report and
    a pod that started a minute before that time: the exporter should have reported it.
    """
    if there.pods is None:
        return {}
    on: dict[str, list[pods.Pod]] = {}
    for pod in there.pods:
        if pod.spec.nodeName and not pod.is_terminal:
            on.setdefault(pod.spec.nodeName, []).append(pod)
    mismatched = {}
    for raw, report in reports:
        node_pods = on.get(report.name, [])
        young = any(
            (seconds_since(_started(pod), now) or 0.0) < YOUNG_S or pod.metadata.deletionTimestamp for pod in node_pods
        )
        if not report.fingerprint:
            continue
        if young:
            # Fingerprints cannot be compared while pods start or end.
            missed = _missed(raw, report, node_pods, now)
            if missed:
                mismatched[report.name] = raw.changed, missed
        elif (expected := _fingerprint(report, node_pods)) and expected != report.fingerprint:
            mismatched[report.name] = report.fingerprint, expected
    return mismatched


def unmatched(names: Sequence[str]) -> Iterator[Finding]:
    """The finding for reports that do not match for good."""
    if names:
        yield Finding(
            "reports", "error", "node", tuple(names), "report with other pods than on the node",
            "the report is of the past: its exporter does not read its node, cannot write, or is gone; the scheduler "
            "books on top of numbers that are not true",
            "read the logs of the exporters on the nodes, and check for another writer of the object",
        )  # fmt: skip


def _nodes(nodes: Sequence[NodeObject], reports: Sequence[tuple[Reported, Report]]) -> Iterator[Finding]:
    reported = {report.name: raw for raw, report in reports}
    for node in nodes:
        name = node.metadata.name
        if name in reported:
            uids = [
                owner.uid for owner in reported[name].topology.metadata.ownerReferences or () if owner.kind == "Node"
            ]
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
            "it was written without an owner, or by hand, and is never removed",
            "kubectl delete noderesourcetopology of that name",
        )  # fmt: skip


def _writers(raw: Reported) -> Iterator[Finding]:
    if len(raw.writers) > 1:
        yield Finding(
            "reports", "error", "NodeResourceTopology", (raw.topology.metadata.name,),
            f"{len(raw.writers)} writers: {', '.join(raw.writers)}",
            "each undoes what the other has written, and readers see now this and now that",
            "run a single exporter on each node: topowise-exporter, RTE, NFD's topology updater or koordlet",
        )  # fmt: skip


def _fingerprint(report: Report, node_pods: Sequence[pods.Pod]) -> str:
    """The fingerprint that a working exporter would publish, "" for pods that cannot be read."""
    try:
        return fingerprint.of(
            (pod.metadata.namespace, pod.metadata.name)
            for pod in node_pods
            if report.fingerprint_method == fingerprint.ALL or is_exclusive(report.empty, pods.needs(pod))
        )
    except ParseError:
        return ""


def _missed(raw: Reported, report: Report, node_pods: Sequence[pods.Pod], now: float) -> str:
    """A pod that the report should include for a minute already, "" if there is none.

    The clocks of the kubelet and of the API server may differ by seconds.
    """
    written = seconds_since(raw.changed, now)
    for pod in node_pods:
        started = seconds_since((pod.status.startTime if pod.status is not None else None) or "", now)
        if written is None or started is None or started < YOUNG_S or written - started < YOUNG_S:
            continue
        alone = _fingerprint(report, [pod])
        if alone and alone != _fingerprint(report, []):
            return f"{pod.metadata.namespace}/{pod.metadata.name}"
    return ""


def _started(pod: pods.Pod) -> str:
    return (pod.status.startTime if pod.status is not None else None) or pod.metadata.creationTimestamp or ""


def check_definition(answer: bytes | SourceError) -> Iterator[Finding]:
    """Checks the discovery document of the group (GROUP_PATH), which needs no rights."""
    kind = f"API group {nrt.GROUP}"
    if isinstance(answer, MissingError):
        yield Finding(
            "definition", "error", kind, (), "is not served", _NOT_SERVED,
            "install the CRD: kubectl apply -f charts/topowise/crds",
        )  # fmt: skip
        return
    if isinstance(answer, ForbiddenError):
        return
    if isinstance(answer, SourceError):
        raise answer
    document: dict[str, Any] = decoded(answer, GROUP_PATH)
    served = [str(version.get("version")) for version in document.get("versions") or ()]
    if nrt.VERSION not in served:
        yield Finding(
            "definition", "error", kind, (),
            f"serves {', '.join(served) or 'no version'}, expected {nrt.VERSION}",
            _OLD_VERSION if nrt.OLD_VERSION in served else _NOT_SERVED,
            "replace the CRD by charts/topowise/crds, which serves v1alpha1 and v1alpha2",
        )  # fmt: skip


def outdated_causes(
    there: Objects, known: Sequence[tuple[Reported, Report]], now: float, *, has_all_pods: bool
) -> dict[str, list[str]]:
    """The causes by node. A single look cannot show for how long an exporter has been not Ready.

    Without all pods of the cluster no report is compared with the pods of its node.
    """
    mismatched = mismatches(there, known, now) if has_all_pods else {}
    pods = [pod for pod in there.pods or () if own_pods.is_of(pod.metadata, own_pods.EXPORTER)]
    ready = {pod.spec.nodeName for pod in pods if pod.is_ready}
    covered = {pod.spec.nodeName for pod in pods}
    by_node = {}
    for raw, report in known:
        is_expected = report.name in covered or (covered and own_pods.FIELD_MANAGER in raw.writers)
        applies = {
            "kubelet": bool(report.unconfirmed),
            "exporter-down": is_expected and report.name not in ready,
            "pods-unreported": report.name in mismatched,
        }
        if named := [cause for cause, is_cause in applies.items() if is_cause]:
            by_node[report.name] = named
    return by_node
