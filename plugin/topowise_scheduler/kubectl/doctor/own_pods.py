"""Checks the pods of this project, by the chart's labels, and that every pod has a running scheduler.

Of own pods: readiness, recent terminations, and the exporters' metrics where they can be read.

The metric `last_sync` is the heartbeat that an NRT does not have: it changes every second, whether or not the NRT
changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from topowise.errors import SourceError
from topowise.kube import paths
from topowise.pods import Metadata
from topowise_scheduler.explain.text import plural
from topowise_scheduler.kubectl.console import human, seconds_since
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.objects import Reported
from topowise_scheduler.kubectl.source import Kubectl, decoded
from topowise_scheduler.verdicts.kube_scheduler import Pod

_PORT: Final = 9153
_LATELY_S: Final = 24 * 3600.0
_CONTROLLED: Final = ("Error", "OOMKilled", "ContainerCannotRun", "DeadlineExceeded")
EXPORTER: Final = "exporter"
_WITHOUT_EXPORTER: Final = "its node is known as it was when it last wrote"
FIELD_MANAGER: Final = "topowise-exporter"
_AT_ONCE: Final = 16
_MOST_EXPORTERS: Final = 256
_STALE_S: Final = 60.0
_SAMPLE: Final = re.compile(r"topowise_exporter_(\w+?)(?:\{(.*)\})? (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)")
SCHEDULER: Final = "scheduler"
_WITHOUT_SCHEDULER: Final = "while it is down, gated pods wait, and so do all pods of an extender that is not ignorable"
_SILENT_S: Final = 60.0
_MOST_NAMES: Final = 3


class OwnPod(msgspec.Struct, frozen=True):
    """A pod. `problem` is why it is not ready, "" if it is; `ended` has container, reason and time of terminations."""

    namespace: str
    name: str
    node: str
    port: int
    problem: str
    ended: tuple[tuple[str, str, str], ...] = ()


def is_of(pod: Metadata, component: str) -> bool:
    """Whether a pod is of a component of the chart."""
    return _labels(component).items() <= (pod.labels or {}).items()


def path(component: str) -> str:
    """The list path of the pods of a component of the chart."""
    selector = ",".join(f"{key}={value}" for key, value in _labels(component).items())
    return f"/api/v1/pods?labelSelector={quote(selector, safe=',')}"


def _labels(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/part-of": "topowise", "app.kubernetes.io/component": component}


def listed(answer: bytes, component: str) -> list[OwnPod]:
    """The pods of a list. Raises SourceError."""
    return [_pod(item) for item in decoded(answer, path(component)).get("items") or ()]


def check(pods: Sequence[OwnPod], check_: str, kind: str, without: str, now: float) -> Iterator[Finding]:
    """Checks pods that are not ready or have failed lately; `without` is the consequence."""
    for pod in pods:
        name = (f"{pod.namespace}/{pod.name}",)
        if pod.problem:
            yield Finding(
                check_, "error", kind, name, f"on {pod.node} {pod.problem}", without,
                "read kubectl describe pod and kubectl logs",
            )  # fmt: skip
        for container, reason, finished in pod.ended:
            age = seconds_since(finished, now)
            if reason in _CONTROLLED and age is not None and age < _LATELY_S:
                more = "raise its memory limit (resources)" if reason == "OOMKilled" else "look at its last words"
                yield Finding(
                    check_, "warning", kind, name,
                    f"container {container} ended {human(int(max(0, age)))} ago with {reason}", without,
                    f"{more}: kubectl logs --previous",
                )  # fmt: skip


def _pod(item: Mapping[str, Any]) -> OwnPod:
    metadata, spec, status = item.get("metadata") or {}, item.get("spec") or {}, item.get("status") or {}
    ports = [
        port.get("containerPort", _PORT)
        for container in spec.get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("name") == "metrics"
    ]
    is_ready = any(
        entry.get("type") == "Ready" and entry.get("status") == "True" for entry in status.get("conditions") or ()
    )
    containers: list[dict[str, Any]] = status.get("containerStatuses") or []
    waiting = [
        reason for entry in containers if (reason := ((entry.get("state") or {}).get("waiting") or {}).get("reason"))
    ]
    problem = "" if is_ready else f"is not ready: {', '.join(waiting) or status.get('phase') or 'no status'}"
    return OwnPod(
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name") or ""),
        node=str(spec.get("nodeName") or "no node"),
        port=int(ports[0]) if ports else _PORT,
        problem=problem,
        ended=tuple(
            (str(entry.get("name")), str(last.get("reason")), str(last.get("finishedAt") or ""))
            for entry in containers
            if (last := (entry.get("lastState") or {}).get("terminated"))
        ),
    )


EXPORTERS_PATH: Final = path(EXPORTER)


def check_exporters(
    exporters: Sequence[OwnPod], reports: Sequence[Reported], kubectl: Kubectl, now: float
) -> Iterator[Finding]:
    """Checks each pod, its metrics through the API server's proxy, and reported nodes without an exporter."""
    yield from check(exporters, "exporters", "exporter", _WITHOUT_EXPORTER, now)
    there = {exporter.node for exporter in exporters}
    for report in reports if there else ():
        name = report.topology.metadata.name
        if FIELD_MANAGER in report.writers and name not in there:
            yield Finding(
                "exporters", "error", "node", (name,), f"reported by {FIELD_MANAGER}, which has no pod there",
                _WITHOUT_EXPORTER,
                "let the exporter's DaemonSet tolerate the node's taints and select it; kubectl describe daemonset",
            )  # fmt: skip
    ready = [exporter for exporter in exporters if not exporter.problem][:_MOST_EXPORTERS]
    for start in range(0, len(ready), _AT_ONCE):
        batch = ready[start : start + _AT_ONCE]
        answers = kubectl.attempt(
            *(paths.pod(pod.namespace, f"{pod.name}:{pod.port}", "proxy", "metrics") for pod in batch)
        )
        for exporter, answer in zip(batch, answers, strict=True):
            if not isinstance(answer, SourceError):
                yield from _metrics(exporter, answer.decode(errors="replace"), now)
        failed = next((answer for answer in answers if isinstance(answer, SourceError)), None)
        if failed is not None:
            yield Finding(
                "exporters", "note", "exporters", (), f"not all can be asked for their metrics: {failed}",
                "the age of reports is judged only by the pods in them, which shows a dead exporter later",
                "allow get on pods/proxy, or watch topowise_exporter_last_sync_timestamp_seconds by Prometheus",
            )  # fmt: skip
            return


def _metrics(exporter: OwnPod, text: str, now: float) -> Iterator[Finding]:
    name = f"{exporter.namespace}/{exporter.name}"
    samples = [
        (match[1], match[2] or "", float(match[3])) for match in map(_SAMPLE.fullmatch, text.splitlines()) if match
    ]
    for metric, failure in (
        ("last_sync_timestamp_seconds", "has not read its node"),
        ("last_publish_timestamp_seconds", "has not got its object to the API server"),
    ):
        for seen, _, value in samples:
            if seen == metric and now - value > _STALE_S:
                yield Finding(
                    "exporters", "error", "exporter", (name,),
                    f"on {exporter.node} {failure} for {human(int(now - value)) if value else 'ever'}",
                    "the node is not what its report says",
                    "read its log: it names the file or the request that fails",
                )  # fmt: skip
    for seen, labels, value in samples:
        if seen == "kubelet_config_source" and value and 'source="defaults"' in labels:
            yield Finding(
                "exporters", "warning", "exporter", (name,),
                f"on {exporter.node} does not know its kubelet's configuration",
                "it reports a kubelet's defaults (policy none), so that nothing is predicted for the node",
                "allow get on nodes/configz (nodes/proxy), or name the file in kubelet.configFile",
            )  # fmt: skip


SCHEDULERS_PATH: Final = path(SCHEDULER)


def check_schedulers(schedulers: Sequence[OwnPod], now: float, *, is_of_chart: bool) -> Iterator[Finding]:
    """The pods of the service; `is_of_chart` says that what else there is has the chart's labels."""
    if not schedulers and is_of_chart:
        yield Finding(
            "schedulers", "note", "topowise-scheduler", (), "no pod has the labels of the chart's",
            "as a static pod it has none; otherwise kube-scheduler cannot ask it, and kubelets refuse pods",
            "read the events of kubectl get deployments,replicasets -A",
        )  # fmt: skip
    yield from check(schedulers, "schedulers", "topowise-scheduler", _WITHOUT_SCHEDULER, now)


def unserved(pods: Sequence[Pod], now: float) -> Iterator[Finding]:
    """Pods that no scheduler has ever looked at: who does sets a condition, or binds.

    Source: pkg/scheduler/schedule_one.go (handleSchedulingFailure); the API server sets it for gated pods.
    """
    by_scheduler: dict[str, list[tuple[float, str]]] = {}
    for pod in pods:
        age = seconds_since(pod.metadata.creationTimestamp or "", now)
        if age is not None and age > _SILENT_S and _is_unseen(pod):
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            by_scheduler.setdefault(pod.spec.schedulerName or "default-scheduler", []).append((age, name))
    for scheduler, waiting in sorted(by_scheduler.items()):
        waiting.sort(reverse=True)
        names = ", ".join(name for _, name in waiting[:_MOST_NAMES])
        yield Finding(
            "schedulers", "error", "scheduler", (scheduler,),
            f"has not looked at {plural(len(waiting), 'pod')}, the first for {human(int(waiting[0][0]))}: "
            f"{names}{' ...' if len(waiting) > _MOST_NAMES else ''}",
            "no scheduler serves that schedulerName, or it does not reach the pods; they wait without an event",
            "correct schedulerName in the pods, or run a scheduler with a profile of that name",
        )  # fmt: skip


def _is_unseen(pod: Pod) -> bool:
    if pod.spec.nodeName or pod.is_terminal or pod.metadata.deletionTimestamp or pod.spec.schedulingGates:
        return False
    status = pod.status
    return status is None or not (
        status.nominatedNodeName or any(condition.type == "PodScheduled" for condition in status.conditions or ())
    )
