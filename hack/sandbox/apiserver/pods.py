"""What the API server does to pods: defaults, binding, and which updates it refuses.

Only what decides placement is here: a limit without a request is a request, a bound pod cannot be bound again.
Quantities stay as they were sent, and no pod has a QoS class.
Sources: kubernetes/kubernetes pkg/apis/core/v1/defaults.go, pkg/registry/core/pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sandbox.apiserver.errors import Json, StatusError, bad_request, cause, conflict, invalid, precondition_failed

# The Priority admission plug-in resolves these two without any PriorityClass object.
_SYSTEM_PRIORITIES: Final = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
_MUTABLE: Final = frozenset({"activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations"})


def with_defaults(pod: Json, now: str) -> Json:
    """Returns a new pod as it is stored: defaulted and pending. Raises StatusError 422 when it has no containers."""
    spec = defaulted_spec(pod)
    status: Json = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        message = "Scheduling is blocked due to non-empty scheduling gates"
        condition = {"status": "False", "reason": "SchedulingGated", "message": message}
        status["conditions"] = [{"type": "PodScheduled", "lastProbeTime": None, "lastTransitionTime": now, **condition}]
    return {**pod, "spec": spec, "status": status}


def with_priority(pod: Json, classes: Iterable[Json]) -> Json:
    """Returns the pod with the values of its PriorityClass (admission plug-in Priority). Raises StatusError 403."""
    spec = pod.get("spec") or {}
    name = spec.get("priorityClassName")
    if not name or name in _SYSTEM_PRIORITIES:
        return pod
    priority_class = next((entry for entry in classes if entry["metadata"]["name"] == name), None)
    if priority_class is None:
        message = f'pods "{pod["metadata"].get("name", "")}" is forbidden: no PriorityClass with name {name} was found'
        raise StatusError(403, "Forbidden", message, {"name": pod["metadata"].get("name", ""), "kind": "pods"})
    policy = priority_class.get("preemptionPolicy", "PreemptLowerPriority")
    return {**pod, "spec": {**spec, "priority": priority_class["value"], "preemptionPolicy": policy}}


def defaulted_spec(pod: Json) -> Json:
    """Returns a pod's spec with its defaults, as every write is decoded. Raises StatusError 422."""
    spec = dict(pod.get("spec") or {})
    name = pod["metadata"].get("name", "")
    if not spec.get("containers"):
        raise invalid("Pod", name, [cause("FieldValueRequired", "Required value", "spec.containers")])
    for group in ("containers", "initContainers"):
        if group in spec:
            spec[group] = [{**container, "resources": _requirements(container)} for container in spec[group]]
    _fill(spec)
    if spec.get("resources"):
        spec["resources"] = _requirements(spec)
    return spec


def _fill(spec: Json) -> None:
    for field, value in (
        ("restartPolicy", "Always"),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("securityContext", {}),
        ("terminationGracePeriodSeconds", 30),
        ("enableServiceLinks", True),
        ("priority", _SYSTEM_PRIORITIES.get(spec.get("priorityClassName", ""), 0)),
        ("preemptionPolicy", "PreemptLowerPriority"),
    ):
        spec.setdefault(field, value)
    tolerations = list(spec.get("tolerations") or ())
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates_no_execute(toleration, key) for toleration in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    spec["tolerations"] = tolerations


def _tolerates_no_execute(toleration: Json, key: str) -> bool:
    return bool(toleration.get("key", key) == key and toleration.get("effect", "NoExecute") == "NoExecute")


def _requirements(holder: Json) -> Json:
    """Returns the `resources` of a container (or pod) with requests defaulted from limits (SetDefaults_Pod)."""
    resources = dict(holder.get("resources") or {})
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    return resources


def check_update(old: Json, new: Json) -> None:
    """Refuses (422) changes of a pod's spec other than the few the API allows; nodeName changes by binding alone."""
    # While a pod is gated, where it may go may become narrower (KEP-3838); whether it does is not looked at here.
    free = ("affinity", "nodeSelector") if old["spec"].get("schedulingGates") else ()
    if _fixed_part(old["spec"], free) != _fixed_part(new.get("spec") or {}, free):
        message = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, ..."
        raise invalid("Pod", old["metadata"]["name"], [cause("FieldValueForbidden", message, "spec")])


def _fixed_part(spec: Json, free: Sequence[str]) -> Json:
    fixed: Json = {name: value for name, value in spec.items() if name not in _MUTABLE and name not in free}
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [{**container, "image": ""} for container in fixed[group]]
    # Gates may only be taken away, which the scheduler's gate controllers do.
    fixed.pop("schedulingGates", None)
    return fixed


def grace_seconds(pod: Json, requested: int | None) -> int:
    """How long a deleted pod is left to its kubelet: not at all before it is bound and after it has ended."""
    spec = pod["spec"]
    if not spec.get("nodeName") or is_terminal(pod):
        return 0
    seconds: int = spec.get("terminationGracePeriodSeconds", 0) if requested is None else requested
    return 1 if seconds < 0 else seconds


def check_binding(binding: Json, namespace: str, name: str) -> None:
    """What is looked at before the pod. Raises StatusError 400, and 500 for a target that is no node."""
    metadata, target = binding.get("metadata") or {}, binding.get("target") or {}
    if metadata.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if metadata.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    if target.get("kind") not in (None, "", "Node") or not target.get("name"):
        raise StatusError(500, "", "target.name: Required value")


def bound(pod: Json, binding: Json, now: str) -> Json:
    """Returns the pod assigned to the target of a binding that was checked. Raises StatusError 409."""
    name, target = pod["metadata"]["name"], binding["target"]
    _check_bindable(pod, binding, name)
    metadata = dict(pod["metadata"])
    for field in ("annotations", "labels"):
        if (binding.get("metadata") or {}).get(field):
            metadata[field] = {**(metadata.get(field) or {}), **binding["metadata"][field]}
    # What a pod was nominated for ends with its binding (ClearingNominatedNodeNameAfterBinding, on since 1.35).
    status = {name: value for name, value in (pod.get("status") or {}).items() if name != "nominatedNodeName"}
    condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    conditions = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
    return {
        **pod,
        "metadata": metadata,
        "spec": {**pod["spec"], "nodeName": target["name"]},
        "status": {**status, "conditions": [*conditions, condition]},
    }


def _check_bindable(pod: Json, binding: Json, name: str) -> None:
    metadata = binding.get("metadata") or {}
    for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        current = pod["metadata"][field]
        if metadata.get(field) and metadata[field] != current:
            key = f"/registry/pods/{pod['metadata']['namespace']}/{name}"
            raise precondition_failed("pods", name, key, word, metadata[field], current)
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    node = pod["spec"].get("nodeName")
    if node:
        raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{node}"')
    if pod["spec"].get("schedulingGates"):
        raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")


def is_terminal(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Json) -> bool:
    conditions: list[dict[str, Any]] = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
