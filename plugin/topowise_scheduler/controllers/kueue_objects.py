"""Kueue's Workloads as an admission check needs them: the pods of a Workload, and the state that the check writes.

Kueue admits jobs by sums. An AdmissionCheck with our controller name is decided once the quota is reserved, and before
the pods exist. Upstream: apis/kueue/v1beta1 of Kueue 0.14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from topowise.pods import Condition
from topowise_scheduler.report import timestamps
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Pod, Toleration

GROUP: Final = "/apis/kueue.x-k8s.io"
CONTROLLER: Final = "topowise.io/alignment"
"""`spec.controllerName` of the AdmissionChecks that this service decides."""
State = Literal["Pending", "Ready", "Retry", "Rejected"]
# The first pause before Kueue tries a Workload again, and the longest; it doubles with each attempt.
_FIRST_PAUSE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 600.0
_MOST_MESSAGE: Final = 1024


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    creationTimestamp: str = ""
    generation: int = 0


class _Template(msgspec.Struct, frozen=True):
    spec: kube_scheduler.Spec
    metadata: kube_scheduler.Metadata = kube_scheduler.Metadata()


class PodSet(msgspec.Struct, frozen=True):
    """A pod set: `count` pods of a template."""

    name: str
    template: _Template
    count: int = 1


class Assignment(msgspec.Struct, frozen=True):
    """What Kueue has reserved for a pod set: the flavor by resource, and fewer pods for a partial admission."""

    name: str
    flavors: dict[str, str] = {}
    count: int | None = None


class _Admission(msgspec.Struct, frozen=True):
    podSetAssignments: tuple[Assignment, ...] = ()


class _RequeueState(msgspec.Struct, frozen=True):
    count: int | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: _Admission | None = None
    # Entries of other controllers are written back as they are.
    admissionChecks: tuple[dict[str, Any], ...] = ()
    requeueState: _RequeueState | None = None


class _WorkloadSpec(msgspec.Struct, frozen=True):
    podSets: tuple[PodSet, ...] = ()
    priority: int | None = None


class Workload(msgspec.Struct, frozen=True):
    """The fields of a Workload that are read."""

    metadata: _Metadata
    spec: _WorkloadSpec = _WorkloadSpec()
    status: _Status = _Status()

    def is_true(self, condition: str) -> bool:
        """Returns whether a condition is True."""
        return any(item.type == condition and item.status == "True" for item in self.status.conditions)

    def pending(self, checks: frozenset[str]) -> str:
        """Returns the name of a check of ours that waits for an answer, "" if none does."""
        if not self.is_current:
            return ""
        return next((check["name"] for check in self._of(checks) if check.get("state") == "Pending"), "")

    def ready_since(self, checks: frozenset[str]) -> float | None:
        """Returns since when a check of ours is Ready (seconds since 1970), None if none is."""
        times = [_seconds(check) for check in self._of(checks) if check.get("state") == "Ready"]
        return max(times) if times and self.is_current else None

    @property
    def is_current(self) -> bool:
        """Whether the quota is reserved, and the Workload neither evicted nor finished."""
        return self.is_true("QuotaReserved") and not self.is_true("Finished") and not self.is_true("Evicted")

    @property
    def changed_at(self) -> float:
        """When the state of a check changed last (seconds since 1970), 0 without checks."""
        return max(map(_seconds, self.status.admissionChecks), default=0.0)

    def _of(self, checks: frozenset[str]) -> Iterator[dict[str, Any]]:
        return (check for check in self.status.admissionChecks if check.get("name") in checks)

    def message(self, check: str) -> str:
        """Returns the message of a check."""
        return next((str(item.get("message")) for item in self.status.admissionChecks if item.get("name") == check), "")

    def retries(self, check: str) -> int:
        """Returns how often the check was Retry, as far as Kueue has counted it."""
        of_all = (self.status.requeueState.count if self.status.requeueState is not None else None) or 0
        counts = [item.get("retryCount") for item in self.status.admissionChecks if item.get("name") == check]
        return max([of_all, *(count for count in counts if isinstance(count, int))])

    @property
    def assignments(self) -> Sequence[Assignment]:
        """What Kueue has reserved."""
        return () if self.status.admission is None else self.status.admission.podSetAssignments


class _CheckSpec(msgspec.Struct, frozen=True):
    controllerName: str = ""


class _CheckStatus(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class AdmissionCheck(msgspec.Struct, frozen=True):
    """The fields of an AdmissionCheck that are read."""

    metadata: _Metadata
    spec: _CheckSpec = _CheckSpec()
    status: _CheckStatus = _CheckStatus()

    @property
    def is_ours(self) -> bool:
        """Whether this service decides the check."""
        return self.spec.controllerName == CONTROLLER

    @property
    def is_active(self) -> bool:
        """Whether Kueue uses the check."""
        return any(item.type == "Active" and item.status == "True" for item in self.status.conditions)


class FlavorSpec(msgspec.Struct, frozen=True):
    """What a flavor adds to the pods: labels of its nodes, and tolerations."""

    nodeLabels: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


class Flavor(msgspec.Struct, frozen=True):
    """The fields of a ResourceFlavor that are read."""

    metadata: _Metadata
    spec: FlavorSpec = FlavorSpec()


def pods_of(workload: Workload, flavors: Mapping[str, FlavorSpec]) -> Iterator[Pod]:
    """Yields the pods of a Workload as Kueue will start them: with the node labels and tolerations of their flavors."""
    assigned = {assignment.name: assignment for assignment in workload.assignments}
    for pod_set in workload.spec.podSets:
        assignment = assigned.get(pod_set.name, Assignment(pod_set.name))
        used = [flavors[name] for name in dict.fromkeys(assignment.flavors.values()) if name in flavors]
        spec = pod_set.template.spec
        selector, tolerations = dict(spec.nodeSelector or {}), tuple(spec.tolerations or ())
        for flavor in used:
            selector |= flavor.nodeLabels
            tolerations += flavor.tolerations
        spec = msgspec.structs.replace(
            spec, nodeSelector=selector or None, tolerations=tolerations, schedulingGates=None
        )
        for number in range(pod_set.count if assignment.count is None else assignment.count):
            metadata = msgspec.structs.replace(
                pod_set.template.metadata,
                name=f"{workload.metadata.name}-{pod_set.name}-{number}",
                namespace=workload.metadata.namespace,
                uid="",
            )
            yield Pod(metadata, spec)


def patch(workload: Workload, check: str, state: State, message: str, now: float) -> dict[str, Any]:
    """Returns the status patch for the state of a check; it fails if the Workload has changed since.

    A retry has a pause, where Kueue's own provisioning check has it (`requeueState`) and where its API has it for all
    checks (`requeueAfterSeconds`): without a pause Kueue reserves the quota again at once.
    """
    entry: dict[str, Any] = {"state": state, "message": message[:_MOST_MESSAGE]}
    if state != "Pending":
        entry["lastTransitionTime"] = timestamps.text(now)
    status: dict[str, Any] = {}
    if state == "Retry":
        count = workload.retries(check) + 1
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(count - 1, 16))
        status["requeueState"] = {"count": count, "requeueAt": timestamps.text(now + pause)}
        # An API server whose definition lacks the field drops it.
        entry["requeueAfterSeconds"] = int(pause)
    states = workload.status.admissionChecks
    status["admissionChecks"] = [{**item, **entry} if item.get("name") == check else item for item in states]
    version = workload.metadata.resourceVersion
    return {"metadata": {"uid": workload.metadata.uid, "resourceVersion": version}, "status": status}


def active_patch(check: AdmissionCheck, now: float) -> dict[str, Any]:
    """Returns the status patch by which Kueue uses the check."""
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "The admission check is decided by topowise",
        "observedGeneration": check.metadata.generation,
        "lastTransitionTime": timestamps.text(now),
    }
    others = [msgspec.to_builtins(item) for item in check.status.conditions if item.type != "Active"]
    version = check.metadata.resourceVersion
    return {"metadata": {"resourceVersion": version}, "status": {"conditions": [*others, active]}}


def _seconds(check: Mapping[str, Any]) -> float:
    return timestamps.seconds(str(check.get("lastTransitionTime", "")))
