"""What `kubectl get` shows for built-in kinds: columns and cells.

The cells equal kubernetes/kubernetes pkg/printers/internalversion/printers.go for the states that a sandbox has;
kinds without an entry get a name and their creation time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final

from sandbox.apiserver.errors import Json
from sandbox.apiserver.resources import Column

Cells = list[Any]
Printer = tuple[tuple[Column, ...], Callable[[Json, datetime.datetime], Cells]]

NAME: Final = Column("Name", format="name", description="Name must be unique within a namespace.")
_UNKNOWN: Final = "<unknown>"
_NONE: Final = "<none>"


def human_duration(seconds: int) -> str:
    """Two or three significant figures: 119s, 2m, 2m1s, 10m, 3h, 7h59m, 47h, 2d, 2d1h, 8d (duration.HumanDuration)."""
    if seconds < -1:
        return "<invalid>"
    if seconds < 120:
        return f"{max(seconds, 0)}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return _pair(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _pair(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    return _pair(days // 365, "y", days % 365, "d") if days < 8 * 365 else f"{days // 365}y"


def _pair(first: int, first_unit: str, second: int, second_unit: str) -> str:
    return f"{first}{first_unit}{second}{second_unit}" if second else f"{first}{first_unit}"


def since(timestamp: str | None, now: datetime.datetime) -> str:
    """Returns the age of a timestamp, as an Age cell says it."""
    if not timestamp:
        return _UNKNOWN
    try:
        then = datetime.datetime.fromisoformat(timestamp)
    except ValueError:
        return "<invalid>"
    return human_duration(int((now - then).total_seconds()))


def _age(obj: Json, now: datetime.datetime) -> str:
    return since(obj["metadata"].get("creationTimestamp"), now)


def _pod(pod: Json, now: datetime.datetime) -> Cells:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    ready = sum(bool(container.get("ready")) for container in containers)
    restarts = sum(container.get("restartCount", 0) for container in containers)
    gates = [gate["name"] for gate in spec.get("readinessGates") or ()]
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(spec.get('containers') or ())}",
        _pod_phase(pod),
        str(restarts),
        _age(pod, now),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        f"0/{len(gates)}" if gates else _NONE,
    ]


def _pod_phase(pod: Json) -> str:
    """The Status column: the pod's reason (TopologyAffinityError, Evicted), else a container's, else the phase."""
    status = pod.get("status") or {}
    reason = status.get("reason") or status.get("phase") or _UNKNOWN
    if any(
        c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in status.get("conditions") or ()
    ):
        reason = "SchedulingGated"
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            reason = (state.get(kind) or {}).get("reason") or reason
    return "Terminating" if pod["metadata"].get("deletionTimestamp") else str(reason)


def _node(node: Json, now: datetime.datetime) -> Cells:
    status = node.get("status") or {}
    info = status.get("nodeInfo") or {}
    addresses = {address["type"]: address["address"] for address in status.get("addresses") or ()}
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    roles = sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix) and label != prefix)
    return [
        node["metadata"]["name"],
        _node_state(node),
        ",".join(roles) or _NONE,
        _age(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", _NONE),
        addresses.get("ExternalIP", _NONE),
        info.get("osImage") or _UNKNOWN,
        info.get("kernelVersion") or _UNKNOWN,
        info.get("containerRuntimeVersion") or _UNKNOWN,
    ]


def _node_state(node: Json) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = [c.get("status") for c in conditions if c.get("type") == "Ready"]
    words = [("Ready" if ready[-1] == "True" else "NotReady") if ready else "Unknown"]
    if (node.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _event(event: Json, now: datetime.datetime) -> Cells:
    involved = event.get("involvedObject") or event.get("regarding") or {}
    seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return [
        since(seen, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{involved.get('kind', '').lower()}/{involved.get('name', '')}",
        (event.get("message") or event.get("note") or "").strip(),
        event["metadata"]["name"],
    ]


def _replicas(obj: Json, now: datetime.datetime) -> Cells:
    status, desired = obj.get("status") or {}, (obj.get("spec") or {}).get("replicas", 1)
    return [
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{desired}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _age(obj, now),
    ]


def _numbers(*fields: str) -> Callable[[Json, datetime.datetime], Cells]:
    """Returns the cells name, `spec.X` and `status.X` as numbers, age."""

    def cells(obj: Json, now: datetime.datetime) -> Cells:
        parts = [field.split(".") for field in fields]
        return [obj["metadata"]["name"], *((obj.get(part) or {}).get(name, 0) for part, name in parts), _age(obj, now)]

    return cells


def _stateful_set(obj: Json, now: datetime.datetime) -> Cells:
    name, ready, _, _, age = _replicas(obj, now)
    return [name, ready, age]


def _job(obj: Json, now: datetime.datetime) -> Cells:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    state = next((entry["type"] for entry in status.get("conditions") or ()), "Running")
    return [
        obj["metadata"]["name"],
        state,
        f"{status.get('succeeded', 0)}/{spec.get('completions', 1)}",
        _age(obj, now),
    ]


def _budget(obj: Json, now: datetime.datetime) -> Cells:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    bounds = [str(spec.get(name, "N/A")) for name in ("minAvailable", "maxUnavailable")]
    return [obj["metadata"]["name"], *bounds, status.get("disruptionsAllowed", 0), _age(obj, now)]


def _service(obj: Json, now: datetime.datetime) -> Cells:
    spec = obj.get("spec") or {}
    ports = ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in spec.get("ports") or ())
    addresses = (spec.get("clusterIP") or _NONE, _NONE)
    return [obj["metadata"]["name"], spec.get("type", "ClusterIP"), *addresses, ports or _NONE, _age(obj, now)]


def _field(*path: str) -> Callable[[Json, datetime.datetime], Cells]:
    """Returns the cells name, a field, age."""

    def cells(obj: Json, now: datetime.datetime) -> Cells:
        value: Any = obj
        for step in path:
            value = (value or {}).get(step)
        return [obj["metadata"]["name"], value if value is not None else "", _age(obj, now)]

    return cells


def _data(obj: Json, now: datetime.datetime) -> Cells:
    return [obj["metadata"]["name"], len(obj.get("data") or {}) + len(obj.get("binaryData") or {}), _age(obj, now)]


def _secret(obj: Json, now: datetime.datetime) -> Cells:
    name, data, age = _data(obj, now)
    return [name, obj.get("type", "Opaque"), data, age]


def _name_and_created(obj: Json, now: datetime.datetime) -> Cells:
    return [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")]


_AGE = Column("Age")


def _wide(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, priority=1) for name in names)


_PRINTERS: Final[dict[str, Printer]] = {
    "pods": (
        (
            NAME, Column("Ready"), Column("Status"), Column("Restarts"), _AGE,
            *_wide("IP", "Node", "Nominated Node", "Readiness Gates"),
        ),
        _pod,
    ),
    "nodes": (
        (
            NAME, Column("Status"), Column("Roles"), _AGE, Column("Version"),
            *_wide("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
        ),
        _node,
    ),
    "events": (
        (
            Column("Last Seen"), Column("Type"), Column("Reason"), Column("Object"), Column("Message"),
            Column("Name", format="name", priority=1),
        ),
        _event,
    ),
    "deployments.apps": (
        (NAME, Column("Ready"), Column("Up-to-date", "integer"), Column("Available", "integer"), _AGE),
        _replicas,
    ),
    "replicasets.apps": (
        (NAME, Column("Desired", "integer"), Column("Current", "integer"), Column("Ready", "integer"), _AGE),
        _numbers("spec.replicas", "status.replicas", "status.readyReplicas"),
    ),
    "statefulsets.apps": ((NAME, Column("Ready"), _AGE), _stateful_set),
    "daemonsets.apps": (
        (NAME, *(Column(name, "integer") for name in ("Desired", "Current", "Ready", "Up-to-date", "Available")), _AGE),
        _numbers(
            "status.desiredNumberScheduled", "status.currentNumberScheduled", "status.numberReady",
            "status.updatedNumberScheduled", "status.numberAvailable",
        ),
    ),
    "jobs.batch": ((NAME, Column("Status"), Column("Completions"), _AGE), _job),
    "poddisruptionbudgets.policy": (
        (NAME, Column("Min Available"), Column("Max Unavailable"), Column("Allowed Disruptions", "integer"), _AGE),
        _budget,
    ),
    "services": (
        (NAME, Column("Type"), Column("Cluster-IP"), Column("External-IP"), Column("Port(s)"), _AGE),
        _service,
    ),
    "namespaces": ((NAME, Column("Status"), _AGE), _field("status", "phase")),
    "leases.coordination.k8s.io": ((NAME, Column("Holder"), _AGE), _field("spec", "holderIdentity")),
    "configmaps": ((NAME, Column("Data", "integer"), _AGE), _data),
    "secrets": ((NAME, Column("Type"), Column("Data", "integer"), _AGE), _secret),
}  # fmt: skip
_PRINTERS["events.events.k8s.io"] = _PRINTERS["events"]

# Kinds without a printer of their own, as the default table convertor has it.
_DEFAULT: Final[Printer] = ((NAME, Column("Created At", "date")), _name_and_created)


def printer_of(resource_key: str) -> Printer:
    """Returns the columns of a built-in kind and the function that fills them."""
    return _PRINTERS.get(resource_key, _DEFAULT)
