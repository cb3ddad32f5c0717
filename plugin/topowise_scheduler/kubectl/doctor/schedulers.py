"""Checks that every pod has a running scheduler, and the service's own pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from topowise_scheduler.explain.text import plural
from topowise_scheduler.kubectl.doctor import own_pods
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.doctor.own_pods import OwnPod
from topowise_scheduler.kubectl.durations import human, seconds_since
from topowise_scheduler.verdicts.kube_scheduler import Pod

COMPONENT: Final = "scheduler"
PATH: Final = own_pods.path(COMPONENT)
_WITHOUT: Final = "while it is down, kube-scheduler schedules no pods, unless the extender is ignorable"
_SILENT_S: Final = 60.0
_MOST_NAMES: Final = 3


def check(schedulers: Sequence[OwnPod], now: float, *, is_of_chart: bool) -> Iterator[Finding]:
    """The pods of the service; `is_of_chart` says that what else there is has the chart's labels."""
    if not schedulers and is_of_chart:
        yield Finding(
            "schedulers", "note", "topowise-scheduler", (), "no pod has the labels of the chart's",
            "as a static pod it has none; otherwise kube-scheduler cannot ask it, and kubelets refuse pods",
            "read the events of kubectl get deployments,replicasets -A",
        )  # fmt: skip
    yield from own_pods.check(schedulers, "schedulers", "topowise-scheduler", _WITHOUT, now)


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
