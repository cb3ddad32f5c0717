"""Objects on an API server, as kube-scheduler, an exporter and a user write them, and work that runs beside a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec

from sandbox.apiserver import ApiServer
from scheduling import pod
from topowise import nrt
from topowise.kube.api import APPLY_PATCH, MERGE_PATCH, Api

Json = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
RUNNING = {
    "phase": "Running",
    "startTime": "2026-01-01T00:00:00Z",
    # An eviction of a pod that is not Ready does not consult the budget.
    "conditions": [{"type": "Ready", "status": "True"}],
}


async def publish(api: Api, topology: nrt.NodeResourceTopology, manager: str = "test") -> None:
    """Writes a NodeResourceTopology by server-side apply."""
    name = topology.metadata.name
    body = {
        **msgspec.to_builtins(topology),
        "apiVersion": nrt.API_VERSION,
        "kind": nrt.KIND,
        "metadata": {"name": name},
    }
    query = {"fieldManager": manager, "force": "true"}
    path = f"{nrt.PATH}/{name}"
    await api.request("PATCH", path, query=query, body=msgspec.json.encode(body), content_type=APPLY_PATCH)


def create_pod(server: ApiServer, name: str, cpu: str = "2", *amounts: str, **fields: Any) -> Json:
    """Creates a pod (scheduling.pod); the API server gives its uid."""
    document = pod(name, cpu, *amounts, **fields)
    del document["metadata"]["uid"]
    created: Json = server.create("pods", document)
    return created


async def create_with_status(api: Api, document: Json, status: Json) -> Json:
    """Creates a pod, and writes its status. Returns the pod as it is then."""
    meta = {key: text for key, text in document["metadata"].items() if key != "uid"}
    path = f"/api/v1/namespaces/{meta['namespace']}/pods"
    await api.request("POST", path, body=msgspec.json.encode({**document, "metadata": meta}))
    body = msgspec.json.encode({"status": status})
    path = f"{path}/{meta['name']}/status"
    patched: Json = msgspec.json.decode(await api.request("PATCH", path, body=body, content_type=MERGE_PATCH))
    return patched


def create_budget(server: ApiServer, app: str, allowed: int) -> bytes:
    """Creates a PodDisruptionBudget for the pods with a label "app". Returns it, as a watch delivers it."""
    document = {
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed},
    }
    server.create("poddisruptionbudgets.policy", document)
    return msgspec.json.encode(document)


@contextlib.asynccontextmanager
async def running(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Runs work until the block ends; fails if any of it has ended before."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        assert not any(task.done() for task in tasks), tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
