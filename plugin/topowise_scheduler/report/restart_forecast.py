"""Forecasts what a restart of its kubelet does to a reported node.

Limits: a container of a running pod counts as running, except an init container that has to end. Device plugins count
as registering after the kubelet has admitted its pods again, as most do. A pod that the report does not list yet has
the allocations that the model predicts.

The kubelet starts from its files. A report lacks ended init containers and the owners of some allocations, which the
files have, so the gaps must not look like invalid files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from topowise import pods
from topowise.errors import TopowiseError
from topowise_scheduler.kubelet import Kubelet, KubeletStartError, KubeletVersion
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.masks import lowest
from topowise_scheduler.kubelet.memory_tables import MemoryTables
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.restart import memory_problem, restart
from topowise_scheduler.report.exact import ExactSource
from topowise_scheduler.report.kubelet_state import kubelet_of
from topowise_scheduler.report.nrt_report import PodName, Report


def stored_state(node: Kubelet, pods: Iterable[PodView]) -> Kubelet:
    """Returns a copy of the node in which all unavailable CPUs and all accounted memory have an owner."""
    copy = node.fork()
    if copy.cpu is not None:
        for pod in pods:
            _add_init_containers(copy.cpu, pod)
        known = copy.cpu.default
        for containers in copy.cpu.allocations.values():
            for cpus in containers.values():
                known |= cpus
        unowned = CpuManager(copy.cpu.policy).default & ~known
        if unowned:
            copy.cpu.hold("", "", unowned)
    if copy.memory is not None and memory_problem(copy, copy) is not None:
        tables = copy.memory.tables = MemoryTables(copy.memory.policy)
        for by_container in copy.memory.allocations.values():
            for blocks in by_container.values():
                for block in blocks:
                    tables.take(block.type, block.mask, block.size)
    return copy


def _add_init_containers(manager: CpuManager, pod: PodView) -> None:
    """Books CPUs of the pod for its init containers: the pod's other containers reuse these CPUs, or they are left."""
    by_container = manager.allocations.get(pod.uid, {})
    cpus = 0
    for of_container in by_container.values():
        cpus |= of_container
    for container in pod.containers:
        if container.kind == "init" and 0 < container.cpus <= cpus.bit_count() and container.name not in by_container:
            manager.hold(pod.uid, container.name, lowest(cpus, container.cpus))


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
