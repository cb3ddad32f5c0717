"""What the server refuses, in a single request: status, reason, and where the fault is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sandbox.apiserver.client import (
    APPLY,
    CONFIGMAPS,
    LEASES,
    MERGE,
    NODES,
    NRT,
    PODS,
    STRATEGIC,
    Client,
    binding,
    configmap,
    lease,
    nrt,
)
from sandbox.apiserver.errors import Json

NRTS = "noderesourcetopologies.topology.node.k8s.io"


class Refused(NamedTuple):
    """A request and its answer. NAME in path and texts is a new name, of which there is an object at `there`."""

    method: str
    path: str
    body: Callable[[str], Any] | None
    status: int
    reason: str | None
    message: str = ""
    """The message; after "..." a part of it."""
    field: str = ""
    """The field of the first cause."""
    content: str = ""
    there: tuple[str, Callable[[str], Json]] | None = None
    query: Json = {}  # noqa: RUF012
    details: Json = {}  # noqa: RUF012
    """A part of the details."""


def of(make: Callable[[str], Json], **metadata: Any) -> Callable[[str], Json]:
    """Returns a maker of objects with other metadata, None for a field that is left out."""

    def changed(name: str) -> Json:
        body = make(name)
        merged = {**body["metadata"], **metadata}
        return {**body, "metadata": {field: text for field, text in merged.items() if text is not None}}

    return changed


def targeting(**target: str) -> Callable[[str], Json]:
    return lambda name: binding(name) | {"target": target}


BINDING = f"{PODS}/NAME/binding"
ANOTHER_NAME = "name in URL does not match name in Binding object"
REFUSED = {
    "a name that exists": Refused(
        "POST", NRT, nrt, 409, "AlreadyExists", f'{NRTS} "NAME" already exists', there=(NRT, nrt),
        details={"name": "NAME", "group": "topology.node.k8s.io", "kind": "noderesourcetopologies"},
    ),
    "a missing object": Refused(
        "GET", f"{NODES}/NAME", None, 404, "NotFound", 'nodes "NAME" not found',
        details={"name": "NAME", "kind": "nodes"},
    ),
    "an unknown resource": Refused(
        "GET", "/api/v1/things", None, 404, "NotFound", "the server could not find the requested resource"
    ),
    "another name than the path's": Refused(
        "PUT", f"{CONFIGMAPS}/NAME", of(configmap, name="other"), 400, "BadRequest",
        "the name of the object (other) does not match the name on the URL (NAME)", there=(CONFIGMAPS, configmap),
    ),
    "a put without a name": Refused(
        "PUT", f"{CONFIGMAPS}/NAME", of(configmap, name=None), 400, "BadRequest",
        "the name of the object (NAME based on URL) was undeterminable: name must be provided",
    ),
    "an apply without a name": Refused(
        "PATCH", f"{CONFIGMAPS}/NAME", of(configmap, name=None), 400, "BadRequest",
        "the name of the object (NAME based on URL) was undeterminable: name must be provided",
        content=APPLY, query={"fieldManager": "test"},
    ),
    "a custom object put without a resource version": Refused(
        "PUT", f"{NRT}/NAME", nrt, 422, "Invalid",
        f'{NRTS} "NAME" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update',
        there=(NRT, nrt),
    ),
    "a lease put without a resource version": Refused(
        "PUT", f"{LEASES}/NAME", lease, 422, "Invalid", there=(LEASES, lease), details={"kind": "leases"}
    ),
    "a second creator of a lease": Refused("POST", LEASES, lease, 409, "AlreadyExists", there=(LEASES, lease)),
    "a put of a missing object": Refused("PUT", f"{CONFIGMAPS}/NAME", configmap, 404, "NotFound"),
    "an unknown body format": Refused("POST", CONFIGMAPS, configmap, 415, "UnsupportedMediaType", content="text/csv"),
    "a method that the place does not take": Refused("PUT", CONFIGMAPS, configmap, 405, "MethodNotAllowed"),
    "no continue token": Refused(
        "GET", CONFIGMAPS, None, 400, "BadRequest", query={"limit": 1, "continue_": "nonsense"}
    ),
    "no selector": Refused("GET", CONFIGMAPS, None, 400, "BadRequest", query={"labelSelector": "a in"}),
    "a field that the kind does not offer": Refused(
        "GET", NODES, None, 400, "BadRequest", "...field label not supported: status.nodeInfo.kubeletVersion",
        query={"fieldSelector": "status.nodeInfo.kubeletVersion=v1"},
    ),
    "a strategic merge patch of a custom object": Refused(
        "PATCH", f"{NRT}/NAME", lambda _: {"zones": []}, 415, "UnsupportedMediaType",
        content=STRATEGIC, there=(NRT, nrt),
    ),
    # Not a conflict: upstream owner-reference code detects a recreated object by exactly this.
    "a patch of another uid": Refused(
        "PATCH", f"{NRT}/NAME", lambda _: {"metadata": {"uid": "1-2-3"}}, 422, "Invalid", "...field is immutable",
        content=MERGE, there=(NRT, nrt),
    ),
    "a patch of a missing object": Refused("PATCH", f"{NRT}/NAME", lambda _: {}, 404, "NotFound", content=MERGE),
    "an apply of another uid": Refused(
        "PATCH", f"{NRT}/NAME", of(nrt, uid="1-2-3"), 409, "Conflict", "...uid mismatch", content=APPLY,
        query={"fieldManager": "first"},
    ),
    "a body of another version": Refused(
        "POST", NRT, lambda name: nrt(name) | {"apiVersion": "topology.node.k8s.io/v1alpha1"}, 400, "BadRequest"
    ),
    "a binding of a missing pod": Refused("POST", BINDING, binding, 404, "NotFound"),
    # The check precedes the lookup of the pod. The status is not 422, unlike for every other wrong field.
    "a binding to no name": Refused("POST", BINDING, targeting(kind="Node"), 500, None, "target.name: Required value"),
    "a binding of another pod": Refused(
        "POST", BINDING, of(binding, name="other"), 400, "BadRequest", ANOTHER_NAME
    ),
    "a binding of no pod": Refused(
        "POST", BINDING, of(binding, name=None), 400, "BadRequest", ANOTHER_NAME
    ),
    "a binding of another namespace": Refused(
        "POST", BINDING, of(binding, name=None, namespace="kube-system"),
        400, "BadRequest", "the namespace of the provided object does not match the namespace sent on the request",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
async def test_it_is_refused(api: Client, case: Refused) -> None:
    name = api.name()
    if case.there is not None:
        collection, make = case.there
        await api.ok("POST", collection, make(name))
    body = None if case.body is None else case.body(name)
    content = (case.content,) if case.content else ()
    reply = await api.call(case.method, case.path.replace("NAME", name), body, *content, **case.query)
    assert (reply.status, reply.body.get("reason")) == (case.status, case.reason), reply.text
    message, said = case.message.replace("NAME", name), reply.body["message"]
    assert message.removeprefix("...") in said if message.startswith("...") else said == (message or said)
    expected = {field: text.replace("NAME", name) for field, text in case.details.items()}
    details = reply.body.get("details", {})
    assert {field: details[field] for field in expected} == expected
    assert not case.field or details["causes"][0]["field"] == case.field
    assert case.status != 500 or not details


@pytest.mark.parametrize("path", ["/apis/nothing.example.com/v1/things", f"{NRT.rpartition('/')[0]}/things"])
async def test_an_unknown_group_or_custom_resource_is_404_in_plain_text(api: Client, path: str) -> None:
    reply = await api.call("GET", path)
    assert (reply.status, reply.text) == (404, "404 page not found\n")
    assert reply.headers["Content-Type"].startswith("text/plain")
