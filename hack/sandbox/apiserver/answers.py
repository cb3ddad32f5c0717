"""How objects are shown: JSON, lists, Status bodies, and `as=Table`, the server-side half of `kubectl get`.

kubectl prints what the server tells it to print, so a CRD's additionalPrinterColumns are only as good as their table.
Faithful to apiextensions' tableconvertor down to what surprises: of a path with several results only the *first* is
shown, whatever the type; a string column spells lists and objects as JSON; a value of another type than the column's is
an empty cell; a date column shows an age. The cells of built-in kinds equal those of kubernetes/kubernetes
pkg/printers/internalversion/printers.go for the states that a sandbox has; of other kinds kubectl prints name and age.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec
from aiohttp import web

from sandbox.apiserver import strategy
from sandbox.apiserver.errors import Json, StatusError
from sandbox.apiserver.registry import Page
from sandbox.apiserver.resources import Column, Resource
from sandbox.apiserver.routing import Form
from sandbox.apiserver.store import Revision
from sandbox.apiserver.strategy import Site

META_V1: Final = "meta.k8s.io/v1"
_NAME: Final = Column("Name", format="name", description="Name must be unique within a namespace.")
_NONE: Final = "<none>"
_UNKNOWN: Final = "<unknown>"


def table(
    site: Site, objects: Iterable[Json], metadata: Json, *, include: str = "Metadata", headers: bool = True
) -> Json:
    """Returns a Table of the objects. `include` is the request's includeObject; `headers` are sent once in a watch."""
    now = datetime.datetime.now(datetime.UTC)
    columns, rows = _columns(site), []
    for item in objects:
        obj = strategy.in_version(site, item)
        row: Json = {"cells": _cells(site, obj, now)}
        if include != "None":
            row["object"] = obj if include == "Object" else partial(obj)
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": META_V1,
        "metadata": metadata,
        "columnDefinitions": [column.definition() for column in columns] if headers else None,
        "rows": rows,
    }


def partial(obj: Json) -> Json:
    """Returns the object's metadata as an object of its own."""
    return {"kind": "PartialObjectMetadata", "apiVersion": META_V1, "metadata": obj["metadata"]}


def is_printed(resource: Resource) -> bool:
    """Returns whether a kind has a table; kubectl prints name and age of the others by itself."""
    return resource.is_custom or resource.key in _PRINTERS


def _columns(site: Site) -> tuple[Column, ...]:
    if site.resource.is_custom:
        return (_NAME, *site.resource.version(site.version).columns)
    return _PRINTERS[site.resource.key][0]


def _cells(site: Site, obj: Json, now: datetime.datetime) -> list[Any]:
    if not site.resource.is_custom:
        return _PRINTERS[site.resource.key][1](obj, now)
    columns = site.resource.version(site.version).columns
    return [obj["metadata"]["name"], *(_cell(column, obj, now) for column in columns)]


def _cell(column: Column, obj: Json, now: datetime.datetime) -> Any:
    """Returns a cell of a custom resource's column, None without a value."""
    value: Any = next(iter(_found(column.path, obj)), None)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match column.type:
        case "string" if value is not None:
            return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)
        case "integer" if is_number:
            return int(value)
        case "number" if is_number:
            return float(value)
        case "boolean" if isinstance(value, bool):
            return value
        case "date" if isinstance(value, str):
            return _since(value, now)
    return None


# JSONPath of printer columns: fields, indices, filters by equality. CRDs are held to "simple" paths.

_TOKEN: Final = re.compile(
    r"""\.?(?P<name>(?:[A-Za-z0-9_-]|\\.)+)
      | \.?\[\?\(\s*@\.?(?P<left>[^=!<>\s)]+)\s*==\s*(?P<right>"[^"]*"|'[^']*'|[^)\s]+)\s*\)\]
      | \.?\[(?P<index>\d+)\]
    """,
    re.VERBOSE,
)
_Step = Callable[[list[Any]], list[Any]]


def _found(path: str, obj: Any) -> list[Any]:
    """Returns every value that a path such as `.attributes[?(@.name=="a")].value` leads to."""
    values = [obj]
    for step in _steps(path):
        values = step(values)
    return values


@lru_cache(maxsize=512)
def _steps(path: str) -> tuple[_Step, ...]:
    return tuple(map(_step, _TOKEN.finditer(path)))


def _step(match: re.Match[str]) -> _Step:
    if match["name"]:
        name = re.sub(r"\\(.)", r"\1", match["name"])
        return lambda values: [value[name] for value in values if isinstance(value, dict) and name in value]
    if match["index"]:
        index = int(match["index"])
        return lambda values: [value[index] for value in values if isinstance(value, list) and index < len(value)]
    left, right = match["left"], match["right"]
    expected = right[1:-1] if right[0] in "\"'" else json.loads(right)
    return lambda values: [
        item for value in values if isinstance(value, list) for item in value if _found(left, item)[:1] == [expected]
    ]


def _since(timestamp: str | None, now: datetime.datetime) -> str:
    """Returns the age of a timestamp: 119s, 10m, 47h, 8d (duration.HumanDuration, without its second figure)."""
    if not timestamp:
        return _UNKNOWN
    try:
        seconds = max(0, int((now - datetime.datetime.fromisoformat(timestamp)).total_seconds()))
    except ValueError:
        return "<invalid>"
    for unit, size, most in (("s", 1, 120), ("m", 60, 180), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def _pod(pod: Json, now: datetime.datetime) -> list[Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    gates = spec.get("readinessGates") or ()
    return [
        pod["metadata"]["name"],
        f"{sum(bool(container.get('ready')) for container in containers)}/{len(spec.get('containers') or ())}",
        _pod_phase(pod),
        str(sum(container.get("restartCount", 0) for container in containers)),
        _since(pod["metadata"].get("creationTimestamp"), now),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        f"0/{len(gates)}" if gates else _NONE,
    ]


def _pod_phase(pod: Json) -> str:
    """The Status column: the pod's reason (TopologyAffinityError, Evicted), else a container's, else the phase."""
    status = pod.get("status") or {}
    reason = status.get("reason") or status.get("phase") or _UNKNOWN
    if any(condition.get("reason") == "SchedulingGated" for condition in status.get("conditions") or ()):
        reason = "SchedulingGated"
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            reason = (state.get(kind) or {}).get("reason") or reason
    return "Terminating" if pod["metadata"].get("deletionTimestamp") else str(reason)


def _node(node: Json, now: datetime.datetime) -> list[Any]:
    status = node.get("status") or {}
    ready = [condition["status"] for condition in status.get("conditions") or () if condition["type"] == "Ready"]
    state = "Unknown" if not ready else "Ready" if ready[-1] == "True" else "NotReady"
    disabled = ",SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else ""
    age = _since(node["metadata"].get("creationTimestamp"), now)
    return [
        node["metadata"]["name"],
        state + disabled,
        _NONE,
        age,
        (status.get("nodeInfo") or {}).get("kubeletVersion"),
    ]


def _event(event: Json, now: datetime.datetime) -> list[Any]:
    involved = event.get("involvedObject") or event.get("regarding") or {}
    seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return [
        _since(seen, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{involved.get('kind', '').lower()}/{involved.get('name', '')}",
        (event.get("message") or event.get("note") or "").strip(),
        event["metadata"]["name"],
    ]


_OF_PODS: Final = (
    _NAME,
    *map(Column, ("Ready", "Status", "Restarts", "Age")),
    *(Column(name, priority=1) for name in ("IP", "Node", "Nominated Node", "Readiness Gates")),
)
_OF_NODES: Final = (_NAME, *map(Column, ("Status", "Roles", "Age", "Version")))
_OF_EVENTS: Final = (
    *map(Column, ("Last Seen", "Type", "Reason", "Object", "Message")),
    Column("Name", format="name", priority=1),
)
_PRINTERS: Final[dict[str, tuple[tuple[Column, ...], Callable[[Json, datetime.datetime], list[Any]]]]] = {
    "pods": (_OF_PODS, _pod),
    "nodes": (_OF_NODES, _node),
    "events": (_OF_EVENTS, _event),
    "events.events.k8s.io": (_OF_EVENTS, _event),
}


_encode = msgspec.json.Encoder().encode


def json_response(body: Any, code: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`body` as JSON; bytes are JSON already."""
    raw = body if isinstance(body, bytes) else _encode(body)
    return web.Response(body=raw, status=code, content_type="application/json", headers=headers)


def refusal(failure: StatusError) -> web.Response:
    headers = {} if failure.retry_after is None else {"Retry-After": str(failure.retry_after)}
    return json_response(failure.status(), failure.code, headers)


def text(body: str, code: int = 200) -> web.Response:
    return web.Response(text=body, status=code, content_type="text/plain")


def of_revision(site: Site, revision: Revision, form: Form, include: str, code: int = 200) -> web.Response:
    """Returns an object in the requested form."""
    if form == "table":
        metadata = {"resourceVersion": revision.metadata.get("resourceVersion", "")}
        return json_response(table(site, [revision.object], metadata, include=include), code)
    return json_response(body_of(site, revision), code)


def body_of(site: Site, revision: Revision) -> bytes:
    """Returns the object's JSON in the site's version."""
    if site.is_preferred:
        return revision.body(site.api_version)
    return _encode(strategy.in_version(site, revision.object))


def of_page(site: Site, page: Page, form: Form, include: str) -> web.Response:
    """Returns a list, or a page of a list, in the requested form."""
    metadata: Json = {"resourceVersion": str(page.number)}
    if page.token:
        metadata["continue"] = page.token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    if form == "table":
        objects = (revision.object for revision in page.revisions)
        return json_response(table(site, objects, metadata, include=include))
    if form == "partial":
        items = [partial(revision.object) for revision in page.revisions]
        return json_response(
            {"kind": "PartialObjectMetadataList", "apiVersion": META_V1, "metadata": metadata, "items": items}
        )
    head = {"kind": site.resource.kind_of_list, "apiVersion": site.api_version, "metadata": metadata}
    return json_response(b'%b,"items":[%b]}' % (_encode(head)[:-1], b",".join(_items(site, page.revisions))))


def _items(site: Site, revisions: Iterable[Revision]) -> Iterable[bytes]:
    """Returns the items of a list. As in Go's typed lists, built-in kinds have neither kind nor apiVersion."""
    if not site.resource.is_custom:
        return (revision.tail() for revision in revisions)
    return (body_of(site, revision) for revision in revisions)
