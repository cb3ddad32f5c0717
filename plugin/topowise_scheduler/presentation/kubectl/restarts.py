"""What a restart of kubelets does: `kubectl topowise simulate --restart`, and the check of doctor.

Limits: a container of a running pod counts as running, except an init container that has to end. Device plugins count
as registering after the kubelet has admitted its pods again, as most do.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from topowise import documents, pods
from topowise.errors import TopowiseError
from topowise.text import Line, Styled
from topowise_scheduler.kubelet import Kubelet, KubeletStartError, KubeletVersion, version_of
from topowise_scheduler.kubelet.restart import restart
from topowise_scheduler.presentation.kubectl import cluster, objects
from topowise_scheduler.presentation.kubectl import console as colours
from topowise_scheduler.presentation.kubectl.console import Answer, Console
from topowise_scheduler.presentation.kubectl.table import columns
from topowise_scheduler.presentation.text import plural
from topowise_scheduler.report import PodName, Report, kubelet_of, read
from topowise_scheduler.report.exact import Source
from topowise_scheduler.report.stored_state import stored_state

_REFUSED = "refuses pods"
_STOPS = "does not start"
_NO_REQUESTS: Final[Mapping[str, int]] = {}


class RefusedPod(msgspec.Struct, frozen=True):
    """A pod that the kubelet refuses after its restart. `is_running`: its containers run until then."""

    pod: str
    reason: str
    message: str
    is_running: bool


class NodeRestart(msgspec.Struct, frozen=True):
    """The restart of a node's kubelet; `error` is why it does not start, "" if it starts."""

    node: str
    admitted: int = 0
    refused: tuple[RefusedPod, ...] = ()
    error: str = ""
    mend: str = ""

    @property
    def outcome(self) -> str:
        """The result as words."""
        return _STOPS if self.error else _REFUSED if self.refused else "admits all pods"


class Change(msgspec.Struct, frozen=True):
    """What differs after the restart: the version, None for the present version, and fields of the configuration."""

    version: KubeletVersion | None = None
    fields: Mapping[str, str] = {}


NO_CHANGE = Change()


def change_of(options: argparse.Namespace) -> Change | None:
    """The change that the options name, None if they name no restart. Raises TopowiseError for an unknown version."""
    fields = {"topologyManagerPolicy": options.policy, "topologyManagerScope": options.scope}
    given = {name: value for name, value in fields.items() if value}
    if not (options.restart or options.kubelet_version or given):
        return None
    return Change(version_of(options.kubelet_version) if options.kubelet_version else None, given)


def foresee(
    report: Report, node: Kubelet, assigned: Sequence[pods.Pod], change: Change = NO_CHANGE
) -> NodeRestart | None:
    """Returns what a restart does to a node with these pods; None if the report is not exact."""
    source = report.source
    if not isinstance(source, Source):
        return None
    after = report.empty
    if change != NO_CHANGE:
        try:
            after = source.changed(change.version or report.kubelet, change.fields)
        except KubeletStartError as exc:
            return NodeRestart(report.name, error=str(exc), mend="keep the setting, or correct the configuration first")
    by_uid = {pod.metadata.uid: pod for pod in sorted(assigned, key=lambda pod: pod.metadata.creationTimestamp or "")}
    views = [after.view_of(pods.allocated(pod)) for pod in by_uid.values()]
    running = {
        view.uid: [container.name for container in view.containers if container.declared != "init"]
        for view in views
        if _is_running(by_uid[view.uid])
    }
    result = restart(stored_state(node, views), after, views, running)
    if result.problem is not None:
        detail = f" ({result.problem.detail})" if result.problem.detail else ""
        return NodeRestart(
            report.name,
            error=f"{result.file}: {result.problem.error}{detail}",
            mend=f"drain the node, stop the kubelet, delete {result.file}, and then change and start the kubelet",
        )
    refused = [
        RefusedPod(
            f"{by_uid[admission.uid].metadata.namespace}/{by_uid[admission.uid].metadata.name}",
            admission.reason,
            admission.message,
            _is_running(by_uid[admission.uid]),
        )
        for admission in result.refused
    ]
    mend = "drain the node before its kubelet restarts, or expect these pods to fail" if refused else ""
    return NodeRestart(report.name, len(result.admissions) - len(refused), tuple(refused), mend=mend)


def _is_running(pod: pods.Pod) -> bool:
    return pod.status is not None and pod.status.phase == "Running"


def foresee_all(
    reports: Iterable[Report], all_pods: Iterable[pods.Pod], notes: list[str], change: Change = NO_CHANGE
) -> Iterator[NodeRestart]:
    """Yields the restart of each node that is reported exactly. A node whose pods cannot be read gets a note."""
    assigned: dict[str, dict[PodName, pods.Pod]] = {}
    for pod in all_pods:
        if pod.spec.nodeName and not pod.is_terminal:
            assigned.setdefault(pod.spec.nodeName, {})[pod.metadata.namespace, pod.metadata.name] = pod
    for report in reports:
        by_name = assigned.get(report.name, {})
        uids = {name: (pod.metadata.uid, _NO_REQUESTS) for name, pod in by_name.items()}
        try:
            foreseen = foresee(report, kubelet_of(report, uids.get), [*by_name.values()], change)
        except (TopowiseError, ValueError) as exc:
            notes.append(f"warning: node {report.name} is skipped: {exc}")
            continue
        if foreseen is not None:
            yield foreseen


def run(options: argparse.Namespace, console: Console, change: Change) -> Answer:
    """The command."""
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
    stops, refuses = [node for node in nodes if node.error], [node for node in nodes if node.refused]
    status = 1 if stops or refuses else 0
    if len(nodes) < len(reports):
        skipped = plural(len(reports) - len(nodes), "node")
        notes.append(f"note: {skipped} skipped: only an exact report describes the state of a kubelet")
    if options.output in ("json", "yaml"):
        document = {"nodes": [{**msgspec.to_builtins(node), "outcome": node.outcome} for node in nodes]}
        return Answer(documents.to_text(document, options.output), status, notes)

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, colours.BAD) if cell in (_REFUSED, _STOPS) else cell

    rows = [[node.node, node.outcome, str(node.admitted), str(len(node.refused))] for node in nodes]
    lines: list[Line] = [*columns(["NODE", "KUBELET", "ADMITTED", "REFUSED"], rows, width=console.width, paint=paint)]
    for node in [*stops, *refuses]:
        lines += ["", f"{node.node} {node.outcome}{': ' if node.error else ''}{node.error}"]
        pods_of_node = [[pod.pod, pod.reason, pod.message] for pod in node.refused]
        if pods_of_node:
            lines += columns(["POD", "REASON", "MESSAGE"], pods_of_node, indent="  ", width=console.width)
        lines.append(f"  {node.mend}")
    return Answer(lines, status, notes)
