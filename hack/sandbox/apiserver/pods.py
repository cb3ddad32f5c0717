"""What the API server does to pods: defaults, quality of service, binding, and which updates it refuses.

Only what decides placement is here, but that exactly: a limit without a request is a request, quantities come back in
canonical spelling, the QoS class is fixed at creation, a bound pod cannot be bound again.
Sources: kubernetes/kubernetes pkg/apis/core/v1/defaults.go, pkg/apis/core/v1/helper/qos, pkg/registry/core/pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sandbox.apiserver.errors import (
    Json,
    StatusError,
    aggregate,
    bad_request,
    cause,
    conflict,
    invalid,
    precondition_failed,
)
from sandbox.apiserver.quantities import canonical_list

# The Priority admission plug-in resolves these two without any PriorityClass object.
_SYSTEM_PRIORITIES: Final = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
_QOS_RESOURCES: Final = ("cpu", "memory")
_MUTABLE: Final = frozenset({"activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations"})


def with_defaults(pod: Json, now: str) -> Json:
    """Returns a new pod as it is stored: defaulted and pending. Raises StatusError 422 when it has no containers."""
    spec = defaulted_spec(pod)
    status: Json = {"phase": "Pending", "qosClass": qos_class(spec)}
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
    """Returns a pod's spec with its defaults, as every write is decoded. Raises StatusError 400 or 422."""
    spec = dict(pod.get("spec") or {})
    name = pod["metadata"].get("name", "")
    if not spec.get("containers"):
        raise invalid("Pod", name, [cause("FieldValueRequired", "Required value", "spec.containers")])
    for group in ("containers", "initContainers"):
        if group in spec:
            spec[group] = [_container(container, f"spec.{group}[{i}]", name) for i, container in enumerate(spec[group])]
    _fill(spec)
    if spec.get("resources"):
        spec["resources"] = _requirements(spec)
    if spec.get("overhead"):
        spec["overhead"] = canonical_list(spec["overhead"])
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


def _container(container: Json, path: str, pod: str) -> Json:
    if not container.get("name"):
        raise invalid("Pod", pod, [cause("FieldValueRequired", "Required value", f"{path}.name")])
    filled = {**container, "resources": _requirements(container)}
    image = filled.get("image", "")
    latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    filled.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    filled.setdefault("terminationMessagePath", "/dev/termination-log")
    filled.setdefault("terminationMessagePolicy", "File")
    return filled


def _requirements(holder: Json) -> Json:
    """Returns the `resources` of a container (or pod) with requests defaulted from limits. Raises StatusError 400."""
    resources = dict(holder.get("resources") or {})
    try:
        limits = canonical_list(resources.get("limits") or {})
        requests = canonical_list(resources.get("requests") or {})
    except ValueError as exc:
        raise bad_request(f'Pod in version "v1" cannot be handled as a Pod: {exc}') from exc
    if limits:
        resources["limits"] = limits
    if limits or requests:
        # SetDefaults_Pod: whatever is limited and not requested is requested in full.
        resources["requests"] = limits | requests
    return resources


def qos_class(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, over canonical quantities. Counts init containers, as ComputePodQOS does."""
    guaranteed, any_amount = True, False
    # Pod-level resources (KEP-2837), where set, take the place of the containers'.
    shares = [spec] if spec.get("resources") else [*spec["containers"], *(spec.get("initContainers") or ())]
    for container in shares:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in _QOS_RESOURCES:
            limit, request = limits.get(name, "0"), requests.get(name, "0")
            any_amount = any_amount or limit != "0" or request != "0"
            guaranteed = guaranteed and limit != "0" and limit == request
    if not any_amount:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def check_update(old: Json, new: Json) -> None:
    """Refuses (422) changes of a pod's spec other than the few the API allows; nodeName changes by binding alone."""
    if _fixed_part(old["spec"]) != _fixed_part(new.get("spec") or {}):
        message = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)"
        )
        raise invalid("Pod", old["metadata"]["name"], [cause("FieldValueForbidden", message, "spec")])


def _fixed_part(spec: Json) -> Json:
    fixed: Json = {name: value for name, value in spec.items() if name not in _MUTABLE}
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
    if binding.get("kind") not in (None, "", "Binding"):
        kind = binding["kind"]
        problem = f"converting (v1.{kind}) to (core.Binding): unknown conversion"
        raise bad_request(f'{kind} in version "v1" cannot be handled as a Binding: {problem}')
    if metadata.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if metadata.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    causes = []
    if target.get("kind") not in (None, "", "Node"):
        message = f'Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        causes.append(cause("FieldValueNotSupported", message, "target.kind"))
    if not target.get("name"):
        causes.append(cause("FieldValueRequired", "Required value", "target.name"))
    if causes:
        raise aggregate(causes)


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
