"""A service with a dashboard, two reported nodes, and pods that are decided or come decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp

from api_objects import create_pod, create_with_status, publish
from daemons import Start, assert_eventually
from sandbox.apiserver import ApiServer
from scheduler_process import Service
from scheduling import NODE_STATUS, counts, pod
from topowise.kube.api import Api

NODES = {"metal-1": ("8", "3"), "metal-2": ("1", "0")}


async def started(server: ApiServer, api: Api, directory: Path, start: Start, **ui: Any) -> Service:
    for name, free in NODES.items():
        server.create("nodes", {"metadata": {"name": name}, "status": NODE_STATUS})
        await publish(api, counts(name, free, included=()))
    service = Service(server, directory)
    if ui:
        service.config["ui"] = ui
    await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    return service


async def decide(service: Service, server: ApiServer, name: str, cpu: str) -> None:
    """A pod is created, decided, and bound if it fits."""
    created = create_pod(server, name, cpu)
    async with aiohttp.ClientSession() as session:
        fitting = (await service.ask("filter", created, list(NODES), session))["NodeNames"]
        if fitting:
            meta = created["metadata"]
            sent = {"PodName": name, "PodNamespace": "default", "PodUID": meta["uid"], "Node": fitting[0]}
            await service.post("bind", json.dumps(sent).encode(), session)


def condition(status: str, message: str = "") -> list[dict[str, str]]:
    at = "2026-01-02T03:04:05Z"
    return [{"type": "PodScheduled", "status": status, "lastTransitionTime": at, "message": message}]


async def comes(api: Api, name: str, cpu: str, **fields: Any) -> None:
    """A pod that another scheduler has placed."""
    document = pod(name, cpu, **fields)
    await create_with_status(api, document, document["status"])
