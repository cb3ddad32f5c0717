"""A bare HTTP client and sample objects, for tests against this server or a real API server.

Tests of API behaviour must see what is on the wire, status codes and event lines included, so this is aiohttp with
paths spelled out and nothing of a Kubernetes client library.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from sandbox.apiserver.errors import Json

NRT: Final = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
NRT_V1ALPHA1: Final = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/namespaces/default/pods"
CONFIGMAPS: Final = "/api/v1/namespaces/default/configmaps"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/default/leases"

PLAIN: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

# A NodeResourceTopology of eight zones has some kilobytes; a line of the watch must fit the read buffer.
_BUFFER: Final = 1 << 20


class Reply:
    """A whole answer."""

    def __init__(self, status: int, headers: Any, text: str) -> None:
        self.status = status
        self.headers = headers
        self.text = text

    @property
    def body(self) -> Json:
        body: Json = json.loads(self.text)
        return body


class Watching:
    """An open watch, event by event."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self.status = reply.status
        self.headers = reply.headers
        self._reply = reply

    async def next(self, seconds: float = 10.0) -> Json | None:
        """Returns the next event, None at the end of the stream. Raises TimeoutError."""
        line = await asyncio.wait_for(self._reply.content.readline(), seconds)
        event: Json | None = json.loads(line) if line else None
        return event

    async def about(self, name: str) -> tuple[str, Json]:
        """Returns the next event about the named object, as (type, object)."""
        while (event := await self.next()) is not None:
            if (event["object"].get("metadata") or {}).get("name") == name:
                return event["type"], event["object"]
        raise AssertionError(f"the watch ended before an event about {name}")

    async def rest(self) -> list[Json]:
        """Returns every event up to the end of the stream."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


class Client:
    """Requests to a server. Query parameters are keyword arguments; a trailing underscore escapes `continue_`."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session
        self._prefix = f"t{uuid.uuid4().hex[:8]}"
        self._numbers: Iterator[int] = itertools.count()

    def name(self) -> str:
        """A name nothing else on the server has."""
        return f"{self._prefix}-{next(self._numbers)}"

    async def call(
        self, method: str, path: str, body: Any = None, content: str = PLAIN, *, accept: str = PLAIN, **query: Any
    ) -> Reply:
        """Sends a request, and returns the answer whatever its status."""
        headers = {"Accept": accept} | ({"Content-Type": content} if body is not None else {})
        data = None if body is None else json.dumps(body)
        request = self.session.request(method, self.url + path, data=data, headers=headers, params=_spelled(query))
        async with request as reply:
            return Reply(reply.status, reply.headers, await reply.text())

    async def ok(
        self, method: str, path: str, body: Any = None, content: str = PLAIN, *, accept: str = PLAIN, **query: Any
    ) -> Json:
        """Returns the body of a request that must succeed. Raises AssertionError with the server's words."""
        reply = await self.call(method, path, body, content, accept=accept, **query)
        assert reply.status < 300, f"{method} {path}: {reply.status} {reply.text}"
        return reply.body

    async def apply(self, path: str, body: Json, manager: str, **query: Any) -> Reply:
        """Sends a server-side apply."""
        return await self.call("PATCH", path, body, APPLY, fieldManager=manager, **query)

    @asynccontextmanager
    async def watch(self, path: str, *, accept: str = PLAIN, **query: Any) -> AsyncIterator[Watching]:
        """A watch, given up with the block."""
        params = {"watch": "true", **_spelled(query)}
        async with self.session.get(self.url + path, params=params, headers={"Accept": accept}) as reply:
            yield Watching(reply)


@asynccontextmanager
async def connect(url: str, token: str | None = None) -> AsyncIterator[Client]:
    """A client with a session of its own. Certificates are not verified: both kinds of server are on loopback."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(headers=headers, connector=connector, read_bufsize=_BUFFER) as session:
        yield Client(url, session)


def _spelled(query: Json) -> dict[str, str]:
    return {name.rstrip("_"): str(value) for name, value in query.items()}


def nrt(name: str, available: str = "4", **extra: Any) -> Json:
    """Returns a NodeResourceTopology with a zone of eight CPUs."""
    cpu = {"name": "cpu", "capacity": "8", "allocatable": "8", "available": available}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
        **extra,
    }


def pod(name: str, **resources: Json) -> Json:
    """Returns a pod with a container with these `limits` and `requests`."""
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": resources}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def configmap(name: str, *, labels: dict[str, str] | None = None, data: dict[str, str] | None = None) -> Json:
    """Returns a ConfigMap, the simplest built-in object there is."""
    metadata: Json = {"name": name} | ({"labels": labels} if labels else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {}}


def binding(name: str, node: str = "a", **metadata: Any) -> Json:
    """A Binding of a pod to a node."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def lease(name: str, **spec: Any) -> Json:
    """A Lease, as leader election writes it."""
    usual = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.123456Z"}
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    return {**kind, "metadata": {"name": name}, "spec": {**usual, "leaseTransitions": 0, **spec}}
