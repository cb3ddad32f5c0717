"""Who may be moved: pods that somebody makes anew when they are evicted, and whose new place can be confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.kube_scheduler import MIRROR, Pod, unexamined
from topowise_scheduler.preemption import Budgets

_SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"


class Movable(msgspec.Struct, frozen=True):
    """A pod that may be moved; `pod` is as its controller will make it again, on no node."""

    pod: Pod
    record: PodRecord

    @property
    def uid(self) -> str:
        """The uid of the pod that is evicted; the new one has it on the copies, as the old one is gone there."""
        return self.record.uid

    @property
    def name(self) -> str:
        """Namespace and name of the pod that is evicted."""
        return f"{self.record.namespace}/{self.record.name}"


def sort(pods: Iterable[tuple[Pod, PodRecord]], budgets: Budgets, priority: int) -> tuple[list[Movable], Counter[str]]:
    """Of pods on nodes those that may be moved for one of this priority, and why the others may not, counted."""
    found, others = [], Counter[str]()
    for pod, record in pods:
        hindrance = _hindrance(pod, record, budgets, priority)
        if hindrance:
            others[hindrance] += 1
            continue
        metadata = msgspec.structs.replace(pod.metadata, uid="")
        spec = msgspec.structs.replace(pod.spec, nodeName="")
        found.append(Movable(msgspec.structs.replace(pod, metadata=metadata, spec=spec, status=None), record))
    return found, others


def _hindrance(pod: Pod, record: PodRecord, budgets: Budgets, priority: int) -> str:
    annotations = pod.metadata.annotations or {}
    controller = next((one for one in pod.metadata.ownerReferences or () if one.controller), None)
    if record.needs is None:
        return "with amounts that cannot be read"
    if pod.metadata.deletionTimestamp:
        return "that end already"
    if MIRROR in annotations or (controller is not None and controller.kind == "Node"):
        return "of their node (static pods)"
    if controller is None:
        return "without a controller"
    if controller.kind == "DaemonSet":
        return "of a DaemonSet"
    if record.priority > priority:
        return "of a higher priority"
    if annotations.get(_SAFE_TO_EVICT) == "false":
        return "that say safe-to-evict=false"
    if asked := unexamined(pod.spec):
        return f"with {asked[0]}, so that no new place can be confirmed"
    return _protection(record, budgets)


def _protection(record: PodRecord, budgets: Budgets) -> str:
    """Pods are moved one after the other, each when the one before it is back: one eviction has to be allowed."""
    keys = budgets.matching(record.name, record.namespace, record.labels)
    if len(keys) > 1:
        # The API server's eviction takes no such pod.
        return "with more than one PodDisruptionBudget"
    return "whose PodDisruptionBudget allows no eviction" if any(budgets.allowed(key) < 1 for key in keys) else ""
