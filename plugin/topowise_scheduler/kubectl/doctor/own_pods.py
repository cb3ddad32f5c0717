"""The pods of this project, by the chart's labels: checks readiness and recent terminations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from topowise.pods import Metadata
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.durations import human, seconds_since
from topowise_scheduler.kubectl.source import decoded

_PORT: Final = 9153
_LATELY_S: Final = 24 * 3600.0
_CONTROLLED: Final = ("Error", "OOMKilled", "ContainerCannotRun", "DeadlineExceeded")


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
