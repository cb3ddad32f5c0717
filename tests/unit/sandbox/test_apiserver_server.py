"""The server as a whole: its life, its port, and the parts of the API only a controller would do elsewhere."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path

import aiohttp
import pytest
import yaml

from sandbox.apiserver import ApiServer
from sandbox.apiserver.client import CONFIGMAPS, CRDS, NODES, NRT, PODS, Client, configmap, connect, nrt, pod
from sandbox.apiserver.errors import StatusError


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


async def test_the_kubeconfig_is_private_and_names_the_server(tmp_path: Path) -> None:
    async with ApiServer(token="secret") as server:
        path = server.kubeconfig(tmp_path / "kubeconfig")
        config = yaml.safe_load(path.read_text())
    assert config["clusters"][0]["cluster"] == {"server": server.url}
    assert config["users"][0]["user"] == {"token": "secret"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_kubeconfig_is_never_seen_half_written(tmp_path: Path) -> None:
    """Who waits for the file reads it as soon as it is there, so it comes whole, by a rename."""
    path = tmp_path / "kubeconfig"
    async with ApiServer() as server:
        with server.kubeconfig(path).open() as earlier:
            server.kubeconfig(path)
            assert yaml.safe_load(earlier.read())["kind"] == "Config"
            assert path.stat().st_ino != os.fstat(earlier.fileno()).st_ino
    assert list(tmp_path.iterdir()) == [path]


async def test_openapi_has_the_schemas_of_custom_resources(client: Client) -> None:
    group = "apis/topology.node.k8s.io/v1alpha2"
    document = await client.ok("GET", f"/openapi/v3/{group}")
    (schema,) = document["components"]["schemas"].values()
    kind = {"group": "topology.node.k8s.io", "version": "v1alpha2", "kind": "NodeResourceTopology"}
    assert schema["x-kubernetes-group-version-kind"] == [kind]
    assert {"apiVersion", "metadata", "zones"} <= set(schema["properties"])
    listing = document["paths"][f"/{group}/noderesourcetopologies"]["get"]
    assert listing["x-kubernetes-group-version-kind"] == kind


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


async def test_a_secret_in_protobuf_is_taken_as_helm_sends_it(server: ApiServer) -> None:
    metadata = _field(1, b"release") + _field(3, b"") + _field(11, _field(1, b"owner") + _field(2, b"helm"))
    secret = _field(1, metadata) + _field(2, _field(1, b"release") + _field(2, b"H4s")) + _field(3, b"helm.sh/v1")
    body = b"k8s\0" + _field(1, _field(1, b"v1") + _field(2, b"Secret")) + _field(2, secret)
    url, headers = f"{server.url}/api/v1/namespaces/ns/secrets", {"Content-Type": "application/vnd.kubernetes.protobuf"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(url, data=body) as response:
            stored = await response.json()
        async with session.post(url, data=body[:-3]) as damaged:
            assert damaged.status == 400
        async with session.post(url, data=body.replace(b"Secret", b"Widget")) as unknown:
            assert unknown.status == 415
    assert (stored["metadata"]["labels"], stored["data"]) == ({"owner": "helm"}, {"release": "SDRz"})
    assert (stored["type"], stored["metadata"]["namespace"]) == ("helm.sh/v1", "ns")


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


async def test_a_namespace_takes_its_contents_along(server: ApiServer, client: Client) -> None:
    await client.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    await client.ok("POST", CONFIGMAPS.replace("default", "team"), configmap("a"))
    await client.ok("POST", CONFIGMAPS, configmap("a"))
    await client.ok("DELETE", "/api/v1/namespaces/team")
    left = await client.ok("GET", "/api/v1/configmaps")
    assert [item["metadata"]["namespace"] for item in left["items"]] == ["default"]


async def test_namespaces_need_not_exist(client: Client) -> None:
    assert (await client.call("POST", CONFIGMAPS.replace("default", "nowhere"), configmap("a"))).status == 201


async def test_deleting_a_definition_deletes_its_objects_and_ends_its_watches(client: Client) -> None:
    await client.ok("POST", NRT, nrt("a"))
    async with client.watch(NRT, resourceVersion=0) as watch:
        assert (await watch.about("a"))[0] == "ADDED"
        await client.ok("DELETE", f"{CRDS}/noderesourcetopologies.topology.node.k8s.io")
        assert (await watch.about("a"))[0] == "DELETED"
        assert await watch.next() is None
    assert (await client.call("GET", NRT)).text == "404 page not found\n"


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


async def test_pod_level_resources_decide_the_quality_of_service(client: Client) -> None:
    body = pod("p")
    body["spec"]["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    created = await client.ok("POST", PODS, body)
    assert created["status"]["qosClass"] == "Guaranteed"
    assert created["spec"]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


async def test_a_body_no_rule_foresaw_is_an_internal_error(client: Client) -> None:
    reply = await client.call("POST", PODS, {"metadata": {"name": "p"}, "spec": {"containers": "none"}})
    assert (reply.status, reply.body["reason"]) == (500, "InternalError")


async def test_a_body_over_the_limit_is_refused(client: Client) -> None:
    reply = await client.call("POST", CONFIGMAPS, configmap("a", data={"a": "x" * 4_000_000}))
    assert (reply.status, reply.body["reason"]) == (413, "RequestEntityTooLarge")


async def test_a_list_can_be_of_an_exact_version(server: ApiServer, client: Client) -> None:
    server.create("nodes", {"metadata": {"name": "a"}})
    version = (await client.ok("GET", NODES, limit=500))["metadata"]["resourceVersion"]
    server.create("nodes", {"metadata": {"name": "b"}})
    then = await client.ok("GET", NODES, resourceVersion=version, resourceVersionMatch="Exact")
    assert [item["metadata"]["name"] for item in then["items"]] == ["a"]
    reply = await client.call("GET", NODES, resourceVersion=1, resourceVersionMatch="Exact")
    assert reply.status == 410


async def test_objects_are_created_without_http_by_the_same_rules(server: ApiServer) -> None:
    created = server.create("noderesourcetopologies.topology.node.k8s.io", {"metadata": {"name": "a"}, "zones": []})
    assert created["metadata"]["generation"] == 1
    with pytest.raises(StatusError) as refused:
        server.create("noderesourcetopologies.topology.node.k8s.io", {"metadata": {"name": "b"}})
    assert refused.value.code == 422


async def test_the_command_serves_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    crds = Path(__file__).parents[3] / "charts" / "topowise" / "crds"
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
