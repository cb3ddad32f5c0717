"""Selects movable pods: pods that a controller replaces after an eviction, and whose new node can be checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.pods.scheduling_constraints import constraints_of
from topowise_scheduler.verdicts.kube_scheduler import MIRROR, Pod, Unexamined, unbound, unexamined

_SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"


Hindrance: TypeAlias = (
    Literal["unreadable", "ends", "static", "no controller", "daemon", "priority", "unsafe", "budgets", "budget"]
    | Unexamined
)
"""Why a pod may not be moved, or a requirement that keeps a new place from being confirmed."""


class Movable(msgspec.Struct, frozen=True):
    """A pod that may be moved; `pod` is its replacement, without a node, and `replacement` the record of that."""

    pod: Pod
    record: PodRecord
    replacement: PodRecord

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
) -> tuple[list[Movable], Counter[Hindrance]]:
    """Returns the pods that may be moved for a pod of this priority, and counts why the remaining pods may not."""
    movable, skipped = [], Counter[Hindrance]()
    for pod, record in pods:
        hindrance = _hindrance(pod, record, budgets, priority) or _unexamined(pod)
        if hindrance:
            skipped[hindrance] += 1
            continue
        metadata = msgspec.structs.replace(pod.metadata, uid="")
        as_created = unbound(pod)
        successor = msgspec.structs.replace(as_created, metadata=metadata, status=None)
        replacement = msgspec.structs.replace(
            record,
            uid="",
            node="",
            status=msgspec.structs.replace(record.status, nominated=""),
            steered=None,
            constraints=constraints_of(as_created.spec),
        )
        movable.append(Movable(successor, record, replacement))
    return movable, skipped


def _hindrance(pod: Pod, record: PodRecord, budgets: Budgets, priority: int) -> Hindrance | None:
    annotations = pod.metadata.annotations or {}
    controller = next((owner for owner in pod.metadata.ownerReferences or () if owner.controller), None)
    if record.needs is None:
        return "unreadable"
    if pod.metadata.deletionTimestamp:
        return "ends"
    if MIRROR in annotations or (controller is not None and controller.kind == "Node"):
        return "static"
    if controller is None:
        return "no controller"
    if controller.kind == "DaemonSet":
        return "daemon"
    if record.priority > priority:
        return "priority"
    if annotations.get(_SAFE_TO_EVICT) == "false":
        return "unsafe"
    return _protection(record, budgets)


def _unexamined(pod: Pod) -> Hindrance | None:
    return next(iter(unexamined(pod.spec)), None)


def _protection(record: PodRecord, budgets: Budgets) -> Hindrance | None:
    """Returns why the budgets protect the pod. Moves are sequential, so a single allowed eviction suffices."""
    keys = budgets.matching(record.name, record.namespace, record.labels)
    if len(keys) > 1:
        # The eviction API refuses such a pod.
        return "budgets"
    return "budget" if any(budgets.allowed(key) < 1 for key in keys) else None
