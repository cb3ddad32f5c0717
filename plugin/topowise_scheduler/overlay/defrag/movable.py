"""Selects movable pods: pods that a controller replaces after an eviction, and whose new node can be checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

import msgspec

from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.preemption import Budgets
from topowise_scheduler.verdicts.kube_scheduler import MIRROR, Pod, Unexamined, unexamined

_SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"


class Hindrance(Enum):
    """Why a pod may not be moved."""

    UNREADABLE = auto()
    ENDS = auto()
    STATIC = auto()
    NO_CONTROLLER = auto()
    DAEMON = auto()
    PRIORITY = auto()
    UNSAFE = auto()
    BUDGETS = auto()
    BUDGET = auto()


class Movable(msgspec.Struct, frozen=True):
    """A pod that may be moved; `pod` is its replacement, without a node."""

    pod: Pod
    record: PodRecord

    @property
    def uid(self) -> str:
        """The UID of the evicted pod, which stands for its replacement on the copies."""
        return self.record.uid

    @property
    def name(self) -> str:
        """Namespace and name of the evicted pod."""
        return f"{self.record.namespace}/{self.record.name}"


def sort(
    pods: Iterable[tuple[Pod, PodRecord]], budgets: Budgets, priority: int
) -> tuple[list[Movable], Counter[Hindrance | Unexamined]]:
    """Returns the pods that may be moved for a pod of this priority, and counts why the remaining pods may not: by a
    requirement that keeps a new place from being confirmed, if nothing else hinders."""
    movable, skipped = [], Counter[Hindrance | Unexamined]()
    for pod, record in pods:
        hindrance = _hindrance(pod, record, budgets, priority) or next(iter(unexamined(pod.spec)), None)
        if hindrance:
            skipped[hindrance] += 1
            continue
        metadata = msgspec.structs.replace(pod.metadata, uid="")
        spec = msgspec.structs.replace(pod.spec, nodeName="")
        movable.append(Movable(msgspec.structs.replace(pod, metadata=metadata, spec=spec, status=None), record))
    return movable, skipped


def _hindrance(pod: Pod, record: PodRecord, budgets: Budgets, priority: int) -> Hindrance | None:
    annotations = pod.metadata.annotations or {}
    controller = next((owner for owner in pod.metadata.ownerReferences or () if owner.controller), None)
    if record.needs is None:
        return Hindrance.UNREADABLE
    if pod.metadata.deletionTimestamp:
        return Hindrance.ENDS
    if MIRROR in annotations or (controller is not None and controller.kind == "Node"):
        return Hindrance.STATIC
    if controller is None:
        return Hindrance.NO_CONTROLLER
    if controller.kind == "DaemonSet":
        return Hindrance.DAEMON
    if record.priority > priority:
        return Hindrance.PRIORITY
    if annotations.get(_SAFE_TO_EVICT) == "false":
        return Hindrance.UNSAFE
    return _protection(record, budgets)


def _protection(record: PodRecord, budgets: Budgets) -> Hindrance | None:
    """Returns why the budgets protect the pod. Moves are sequential, so a single allowed eviction suffices."""
    keys = budgets.matching(record.name, record.namespace, record.labels)
    if len(keys) > 1:
        # The eviction API refuses such a pod.
        return Hindrance.BUDGETS
    return Hindrance.BUDGET if any(budgets.allowed(key) < 1 for key in keys) else None
