"""The server as a whole: its life, its port, and the parts of the API only a controller would do elsewhere."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import aiohttp
import pytest
import yaml

from sandbox.apiserver import ApiServer
from sandbox.apiserver.client import NODES, NRT, PODS, Client, connect, nrt, pod


async def test_stopping_ends_watches_and_leaves_no_task(server: ApiServer, client: Client) -> None:
    before = asyncio.all_tasks()
    async with ApiServer() as second_server, connect(second_server.url) as visitor, visitor.watch(NODES) as watch:
        second_server.levers.stall_watches()
        await second_server.stop()
        assert await watch.next() is None
    assert len(second_server.streams) == 0
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


async def test_a_client_that_goes_leaves_no_watch_behind(server: ApiServer, client: Client) -> None:
    server.levers.stall_watches()
    async with client.watch(NODES):
        assert len(server.streams) == 1
        assert len(server.store.watches()) == 1
    for _ in range(100):
        if not len(server.streams):
            break
        await asyncio.sleep(0.01)
    assert (len(server.streams), server.store.watches()) == (0, [])


async def test_a_token_is_asked_of_everything_but_health() -> None:
    async with ApiServer(token="secret") as server:
        async with connect(server.url) as anonymous:
            reply = await anonymous.call("GET", NODES)
            assert (reply.status, reply.body["reason"]) == (401, "Unauthorized")
            assert (await anonymous.call("GET", "/sandbox/levers")).status == 401
            assert (await anonymous.call("GET", "/readyz")).text == "ok"
        async with connect(server.url, "secret") as friend:
            assert (await friend.call("GET", NODES)).status == 200


async def test_a_kubeconfig_is_never_seen_half_written(tmp_path: Path) -> None:
    """Who waits for the file reads it as soon as it is there, so it comes whole, by a rename."""
    path = tmp_path / "kubeconfig"
    async with ApiServer() as server:
        with server.kubeconfig(path).open() as earlier:
            server.kubeconfig(path)
            assert yaml.safe_load(earlier.read())["kind"] == "Config"
            assert path.stat().st_ino != os.fstat(earlier.fileno()).st_ino
    assert list(tmp_path.iterdir()) == [path]


async def test_owned_objects_go_with_their_last_owner(server: ApiServer, client: Client) -> None:
    first, second = (server.create("nodes", {"metadata": {"name": name}}) for name in ("a", "b"))
    owners = [
        {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
        for node in (first, second)
    ]
    for name, owned in (("one", owners[:1]), ("two", owners)):
        body = nrt(name)
        body["metadata"]["ownerReferences"] = owned
        await client.ok("POST", NRT, body)
    await client.ok("DELETE", f"{NODES}/a")
    assert (await client.call("GET", f"{NRT}/one")).status == 404
    assert (await client.call("GET", f"{NRT}/two")).status == 200
    await client.ok("DELETE", f"{NODES}/b")
    assert (await client.call("GET", f"{NRT}/two")).status == 404


async def test_orphaning_leaves_owned_objects(server: ApiServer, client: Client) -> None:
    node = server.create("nodes", {"metadata": {"name": "a"}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": node["metadata"]["uid"]}
    body = nrt("one")
    body["metadata"]["ownerReferences"] = [owner]
    await client.ok("POST", NRT, body)
    await client.ok("DELETE", f"{NODES}/a", propagationPolicy="Orphan")
    assert (await client.call("GET", f"{NRT}/one")).status == 200


async def test_a_namespace_takes_pods_along_without_their_grace(client: Client) -> None:
    await client.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    path, body = PODS.replace("default", "team"), pod("p")
    body["spec"]["nodeName"] = "n"
    await client.ok("POST", path, body)
    await client.ok("DELETE", "/api/v1/namespaces/team")
    assert (await client.ok("GET", path))["items"] == []


@pytest.mark.parametrize(("allowed", "status"), [(0, 429), (1, 201)])
async def test_an_eviction_asks_the_disruption_budget(
    server: ApiServer, client: Client, allowed: int, status: int
) -> None:
    body = pod("p")
    body["metadata"]["labels"] = {"app": "a"}
    await client.ok("POST", PODS, body)
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await client.ok("PATCH", f"{PODS}/p/status", ready, "application/merge-patch+json")
    budget = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "a"}}}}
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    await client.ok("POST", path, budget)
    disruptions = {"status": {"disruptionsAllowed": allowed}}
    await client.ok("PATCH", f"{path}/b/status", disruptions, "application/merge-patch+json")
    reply = await client.call("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
    assert reply.status == status
    if status == 429:
        assert reply.body["details"]["causes"][0]["reason"] == "DisruptionBudget"
    else:
        assert (await client.ok("GET", f"{path}/b"))["status"]["disruptionsAllowed"] == 0


async def test_the_command_serves_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    crds = Path(__file__).parents[4] / "charts" / "topowise" / "crds"
    kubeconfig = tmp_path / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandbox.apiserver", "--kubeconfig-out", str(kubeconfig), "--crd", str(crds),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), 10)).decode().strip()
        async with aiohttp.ClientSession() as session, session.get(url + NRT) as reply:
            assert reply.status == 200
        assert url in kubeconfig.read_text()
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
