"""A real kube-apiserver is suspended, and then killed: both daemons recover by themselves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemons import CRD, Start, assert_eventually
from exporter_setup import FakeKubelet
from faults import assert_said_once
from faults.site import LONG_S, pod
from real_cluster import control_plane
from sandbox.apiserver import ApiServer, documents
from sandbox.apiserver.client import CRDS, NRT, connect
from sandbox.controlplane import ControlPlane
from scheduler_process import Service
from scheduling import NODE_STATUS

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    with control_plane() as plane:
        async with connect(plane.url, plane.token) as client:
            for crd in documents.load_all(CRD):
                assert (await client.call("POST", CRDS, crd)).status in (201, 409)
            while (await client.call("GET", NRT, limit=1)).status != 200:
                await asyncio.sleep(0.05)
        yield plane


def topology(name: str, free: int) -> dict[str, Any]:
    cpu = {"name": "cpu", "capacity": "8", "allocatable": str(free), "available": str(free)}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
    }


async def test_kube_apiserver_stands_still_and_is_killed(
    plane: ControlPlane, server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    kubeconfig = str(plane.kubeconfig(tmp_path / "real"))
    config["client"]["kubeconfig"] = kubeconfig
    service = Service(server, tmp_path)
    service.config["client"]["kubeconfig"] = kubeconfig
    exporter = await start("topowise_exporter", "run", config=config)
    scheduler = await start("topowise_scheduler", "serve", config=service.config)
    async with connect(plane.url, plane.token) as client, aiohttp.ClientSession() as session:

        async def free() -> str:
            answer = await client.call("GET", f"{NRT}/n1")
            zones = {zone["name"]: zone for zone in (answer.body.get("zones") or ())}
            if "node-0" not in zones:
                return ""
            return next(resource["available"] for resource in zones["node-0"]["resources"] if resource["name"] == "cpu")

        async def is_free(count: int) -> bool:
            return await free() == str(count)

        async def takes(node: str, cpus: int) -> bool:
            _, _, text = await service.post(f"explain?node={node}", json.dumps(pod("asked", cpus)).encode(), session)
            explained = json.loads(text)
            return isinstance(explained, list) and [row["verdict"] for row in explained] == ["fits"]

        async def ends_at(node: str, cpus: int) -> bool:
            return await takes(node, cpus) and not await takes(node, cpus + 1)

        async def add(name: str, cpus: int) -> None:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": NODE_STATUS}
            assert (await client.call("POST", "/api/v1/nodes", node)).status == 201
            assert (await client.call("POST", NRT, topology(name, cpus))).status == 201

        await add("n2", 5)
        await assert_eventually(service.is_ready, within=LONG_S)
        await assert_eventually(lambda: is_free(3), within=LONG_S)
        await assert_eventually(lambda: ends_at("n2", 5), within=LONG_S)
        lines = len(exporter.log.splitlines()), len(scheduler.log.splitlines())
        # The suspended server keeps every connection and answers nothing.
        os.kill(plane.apiserver_pid, signal.SIGSTOP)
        kubelet.give("p", 1)
        await asyncio.sleep(15)
        assert await ends_at("n2", 5)
        os.kill(plane.apiserver_pid, signal.SIGCONT)
        await assert_eventually(lambda: is_free(2), within=LONG_S)
        await add("n3", 3)
        await assert_eventually(lambda: ends_at("n3", 3), within=LONG_S)
        os.kill(plane.apiserver_pid, signal.SIGKILL)
        kubelet.give("q", 4)
        await asyncio.sleep(5)
        assert await ends_at("n3", 3)
        await asyncio.to_thread(plane.restart_apiserver)
        await assert_eventually(lambda: is_free(1), within=LONG_S)
        await add("n4", 2)
        await assert_eventually(lambda: ends_at("n4", 2), within=LONG_S)
    for daemon, before in zip((exporter, scheduler), lines, strict=True):
        assert daemon.process.returncode is None
        # Two faults; a starting server causes further lines itself.
        assert_said_once(daemon, before, at_most=3, total=40)
