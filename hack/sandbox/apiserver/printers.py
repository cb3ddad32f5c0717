"""What `kubectl get` shows for built-in kinds: columns and cells.

The cells equal kubernetes/kubernetes pkg/printers/internalversion/printers.go for the states that a sandbox has.
kubectl prints name and age of kinds without an entry.
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


_AGE = Column("Age")


def _wide(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, priority=1) for name in names)


PRINTERS: Final[dict[str, Printer]] = {
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
}  # fmt: skip
PRINTERS["events.events.k8s.io"] = PRINTERS["events"]
