"""Forecasts what a restart of its kubelet does to a reported node.

Limits: a container of a running pod counts as running, except an init container that has to end. Device plugins count
as registering after the kubelet has admitted its pods again, as most do. A pod that the report does not list yet has
the allocations that the model predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from topowise import pods
from topowise.errors import TopowiseError
from topowise_scheduler.kubelet import Kubelet, KubeletStartError, KubeletVersion
from topowise_scheduler.kubelet.restart import restart
from topowise_scheduler.report.exact import ExactSource
from topowise_scheduler.report.kubelet_state import kubelet_of
from topowise_scheduler.report.nrt_report import PodName, Report
from topowise_scheduler.report.stored_state import stored_state

REFUSES: Final = "refuses pods"
STOPS: Final = "does not start"
_NO_REQUESTS: Final[Mapping[str, int]] = {}


class RefusedPod(msgspec.Struct, frozen=True):
    """A pod that the kubelet refuses after its restart. `is_running`: its containers run until then."""

    pod: str
    reason: str
    message: str
    is_running: bool


class NodeRestart(msgspec.Struct, frozen=True):
    """The restart of a node's kubelet; `error` is why it does not start, "" if it starts. `remark` is why the version
    may restart otherwise (KubeletVersion), "" if its code was run."""

    node: str
    admitted: int = 0
    refused: tuple[RefusedPod, ...] = ()
    error: str = ""
    mend: str = ""
    remark: str = ""

    @property
    def outcome(self) -> str:
        """The result as words."""
        return STOPS if self.error else REFUSES if self.refused else "admits all pods"


class Change(msgspec.Struct, frozen=True):
    """What differs after the restart: the version, None for the present version, and fields of the configuration."""

    version: KubeletVersion | None = None
    fields: Mapping[str, Any] = {}


NO_CHANGE = Change()


def foresee(
    report: Report, node: Kubelet, assigned: Sequence[pods.Pod], change: Change = NO_CHANGE
) -> NodeRestart | None:
    """Returns what a restart does to a node with these pods; None if the report is not exact."""
    forecast = foresee_state(report, node, assigned, change)
    return None if forecast is None else forecast[0]


def foresee_state(
    report: Report, node: Kubelet, assigned: Sequence[pods.Pod], change: Change = NO_CHANGE
) -> tuple[NodeRestart, Kubelet | None] | None:
    """Returns what a restart does to a node with these pods, and the kubelet after it, None if it does not start.

    None if the report is not exact.
    """
    source = report.source
    if not isinstance(source, ExactSource):
        return None
    after, remark = report.empty, (change.version or report.kubelet).remark
    if change != NO_CHANGE:
        try:
            after = source.changed(change.version or report.kubelet, change.fields)
        except KubeletStartError as exc:
            mend = "keep the setting, or correct the configuration first"
            return NodeRestart(report.name, error=str(exc), mend=mend, remark=remark), None
    by_uid = {pod.metadata.uid: pod for pod in sorted(assigned, key=lambda pod: pod.metadata.creationTimestamp or "")}
    before, views = node.fork(), []
    for pod in map(pods.allocated, by_uid.values()):
        if (pod.metadata.namespace, pod.metadata.name) not in report.held:
            before.expect(before.view_of(pod))
        views.append(after.view_of(pod))
    running = {
        view.uid: [container.name for container in view.containers if container.declared != "init"]
        for view in views
        if _is_running(by_uid[view.uid])
    }
    result = restart(stored_state(before, views), after, views, running)
    if result.problem is not None:
        detail = f" ({result.problem.detail})" if result.problem.detail else ""
        mend = f"drain the node, stop the kubelet, delete {result.file}, and then change and start the kubelet"
        error = f"{result.file}: {result.problem.error}{detail}"
        return NodeRestart(report.name, error=error, mend=mend, remark=remark), None
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
    settled = result.node.without(result.stale)
    admitted = len(result.admissions) - len(refused)
    return NodeRestart(report.name, admitted, tuple(refused), mend=mend, remark=remark), settled


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
