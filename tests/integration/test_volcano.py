"""A Volcano session against the service as a process, over its real HTTP server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api_objects import create_pod, publish
from daemons import Start, assert_eventually
from sandbox.apiserver import ApiServer
from scheduler_process import Service
from scheduling import counts
from scheduling import pod as pod_of
from topowise.kube.api import Api
from topowise_scheduler.verdicts import refusals
from volcano import ALLOCATED, PENDING, node_info, task

pytestmark = pytest.mark.own_time

NODES = ("n1", "n2")
FITS = {"status": "", "code": 0}


@pytest.fixture
async def service(server: ApiServer, api: Api, tmp_path: Path, start: Start) -> Service:
    for name in NODES:
        server.create("nodes", {"metadata": {"name": name}})
        await publish(api, counts(name, ("8", "8"), included=()))
    service = Service(server, tmp_path)
    service.config["volcano"] = {"enabled": True}
    await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    return service


class Session:
    """Volcano's side of the conversation."""

    def __init__(self, service: Service, http: aiohttp.ClientSession) -> None:
        self._service = service
        self._http = http

    async def call(self, verb: str, document: Any) -> Any:
        status, _, text = await self._service.post(f"volcano/{verb}", json.dumps(document).encode(), self._http)
        assert status == 200
        return json.loads(text)

    async def predicate(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The answers for all nodes, requested concurrently as by Volcano's workers."""
        document = task(pod)
        answer = await asyncio.gather(
            *(self.call("predicate", {"task": document, "node": node_info(name)}) for name in NODES)
        )
        return dict(zip(NODES, answer, strict=True))

    async def allocate(self, pod: dict[str, Any], name: str) -> str:
        answer = await self.call("allocateFunc", {"task": task(pod, node=name, status=ALLOCATED)})
        return str(answer["errorMessage"])

    async def deallocate(self, pod: dict[str, Any], name: str) -> None:
        assert await self.call("deallocateFunc", {"task": task(pod, node=name, status=PENDING)}) == {"errorMessage": ""}

    async def metric(self, name: str) -> float:
        # The text of /metrics may be a second old.
        await asyncio.sleep(1.1)
        return (await self._service.metrics(self._http))[name]

    async def has_metric(self, name: str, value: float) -> bool:
        """Returns whether the metric gets the value in time. On a busy machine the text may be older than a second."""
        for _ in range(9):
            if await self.metric(name) == value:
                return True
        return False


async def test_a_gang_is_placed_given_up_placed_again_and_bound(service: Service, server: ApiServer, api: Api) -> None:
    policy = {"volcano.sh/numa-topology-policy": "single-numa-node"}
    gang = [create_pod(server, f"g-{number}", "4", annotations=policy) for number in range(4)]
    late = pod_of("late", "1")
    async with aiohttp.ClientSession() as http:
        volcano = Session(service, http)
        for attempt in range(2):
            assert await volcano.call("onSessionOpen", {"Jobs": {}, "Nodes": {n: node_info(n) for n in NODES}}) == {}
            for pod in gang:
                assert await volcano.predicate(pod) == {"n1": FITS, "n2": FITS}
                scores = await volcano.call("prioritize", {"task": task(pod), "nodes": [node_info(n) for n in NODES]})
                assert scores == {"nodeScore": {"n1": 0.0, "n2": 0.0}, "errorMessage": ""}
                assert await volcano.allocate(pod, "n1") == ""
            assert await volcano.predicate(late) == {"n1": {"status": refusals.NOT_NOW, "code": 2}, "n2": FITS}
            assert "TopologyAffinityError" in await volcano.allocate(late, "n1")
            await volcano.deallocate(late, "n1")
            if attempt == 0:
                # An incomplete gang: Volcano discards its statement.
                for pod in reversed(gang):
                    await volcano.deallocate(pod, "n1")
                assert await volcano.predicate(late) == {"n1": FITS, "n2": FITS}
                assert await volcano.has_metric("open_reservations", 0)
            assert await volcano.call("onSessionClose", {}) == {}
        assert await volcano.has_metric("open_reservations", 4)
        for pod in gang:
            name = pod["metadata"]["name"]
            await api.request(
                "POST",
                f"/api/v1/namespaces/default/pods/{name}/binding",
                body=json.dumps({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}).encode(),
            )

        async def all_seen() -> bool:
            return await volcano.has_metric("open_reservations", 0)

        await assert_eventually(all_seen)
        assert (await volcano.predicate(late))["n1"]["code"] == 2
        await api.request("DELETE", "/api/v1/namespaces/default/pods/g-0", query={"gracePeriodSeconds": "0"})

        async def has_room() -> bool:
            return (await volcano.predicate(late))["n1"] == FITS

        await assert_eventually(has_room)


async def test_a_whole_cluster_costs_no_memory(service: Service) -> None:
    part = bytes(1 << 20)

    async def cluster() -> AsyncIterator[bytes]:
        for _ in range(128):
            yield part

    async with aiohttp.ClientSession() as http:
        volcano = Session(service, http)
        before = await volcano.metric("process_resident_memory_bytes")
        url, kind = f"{service.prefix}/volcano/onSessionOpen", {"Content-Type": "application/json"}
        async with http.post(url, data=cluster(), headers=kind) as response:
            assert (response.status, await response.read()) == (200, b"{}")
        assert await volcano.metric("process_resident_memory_bytes") - before < 8 << 20
