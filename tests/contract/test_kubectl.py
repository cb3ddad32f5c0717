"""Stock kubectl against the server, as people will use it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sandbox.apiserver.client import MERGE, NODES, NRT, PODS, Client, nrt, pod

pytestmark = pytest.mark.nightly


async def test_get_prints_the_columns_of_the_definition(api: Client, kubectl: Any) -> None:
    name = api.name()
    attributes = [{"name": "topologyManagerPolicy", "value": "restricted"}]
    await api.ok("POST", NRT, nrt(name, "5", attributes=attributes))
    head, row = (await kubectl("get", "noderesourcetopologies", name)).splitlines()
    assert head.split() == ["NAME", "POLICY", "SCOPE", "FREE-CPU-0", "FREE-CPU-1", "AGE"]
    assert row.split()[:3] == [name, "restricted", "5"]


async def test_get_wide_has_devices(api: Client, kubectl: Any) -> None:
    name = api.name()
    topology = nrt(name, "5")
    amounts = {"capacity": "2", "allocatable": "2", "available": "1"}
    topology["zones"][0]["resources"].append({"name": "nvidia.com/gpu", **amounts})
    await api.ok("POST", NRT, topology)
    head, row = (await kubectl("get", "noderesourcetopologies", name, "-o", "wide")).splitlines()
    at = head.index("GPU-0")
    assert row[at : head.index("GPU-1")].strip() == "1"
    assert "GPU-1" in head


async def test_a_pod_gets_the_priority_of_its_class(api: Client) -> None:
    name = api.name()
    priority_class = {"metadata": {"name": name}, "value": -1000, "preemptionPolicy": "Never"}
    await api.ok("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority_class)
    document = pod(name)
    document["spec"]["priorityClassName"] = name
    async with asyncio.timeout(60):
        # The admission plug-in of a real server learns of the class by a watch.
        while (reply := await api.call("POST", PODS, document)).status == 403:
            assert reply.body["message"].endswith(f"no PriorityClass with name {name} was found")
            await asyncio.sleep(0.05)
    assert (reply.body["spec"]["priority"], reply.body["spec"]["preemptionPolicy"]) == (-1000, "Never")
    document["spec"]["priorityClassName"] = f"{name}-missing"
    refused = await api.call("POST", PODS, document)
    expected = f'pods "{name}" is forbidden: no PriorityClass with name {name}-missing was found'
    assert (refused.status, refused.body["message"]) == (403, expected)


async def test_get_knows_the_short_name_and_prints_yaml(api: Client, kubectl: Any) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name))
    text = await kubectl("get", "node-res-topo", name, "-o", "yaml")
    assert "kind: NodeResourceTopology" in text
    assert f"name: {name}" in text


async def test_get_prints_pods_and_nodes(api: Client, kubectl: Any) -> None:
    node, name = api.name(), api.name()
    ready = {"type": "Ready", "status": "True"}
    status = {"conditions": [ready], "nodeInfo": _node_info("v1.33.1")}
    await api.ok("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": status})
    body = pod(name)
    body["spec"]["nodeName"] = node
    await api.ok("POST", PODS, body)
    row = (await kubectl("get", "nodes", node, "--no-headers")).split()
    assert row[:3] == [node, "Ready", "<none>"]
    assert row[-1] == "v1.33.1"
    row = (await kubectl("get", "pods", name, "-o", "wide", "--no-headers")).split()
    assert row[:4] == [name, "0/1", "Pending", "0"]
    assert node in row
    await kubectl("delete", "pod", name, "--grace-period=0", "--force")
    await kubectl("delete", "node", node)


def _node_info(kubelet: str) -> dict[str, str]:
    names = ("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "machineID", "operatingSystem")
    more = ("osImage", "systemUUID", "kubeProxyVersion")
    return dict.fromkeys((*names, *more), "x") | {"kubeletVersion": kubelet}


async def test_apply_creates_configures_and_leaves_alone(api: Client, kubectl: Any) -> None:
    name = api.name()
    arguments = ("apply", "--validate=false", "-f", "-")
    assert "created" in await kubectl(*arguments, stdin=json.dumps(nrt(name)))
    assert "unchanged" in await kubectl(*arguments, stdin=json.dumps(nrt(name)))
    assert "configured" in await kubectl(*arguments, stdin=json.dumps(nrt(name, "1")))


async def test_server_side_apply_keeps_the_resource_version(api: Client, kubectl: Any) -> None:
    name = api.name()
    arguments = ("apply", "--server-side", "--validate=false", "-f", "-")
    await kubectl(*arguments, stdin=json.dumps(nrt(name)))
    first = await api.ok("GET", f"{NRT}/{name}")
    assert "serverside-applied" in await kubectl(*arguments, stdin=json.dumps(nrt(name)))
    assert await api.ok("GET", f"{NRT}/{name}") == first


async def test_apply_validates_at_the_server(api: Client, kubectl: Any) -> None:
    name = api.name()
    assert "created" in await kubectl("apply", "-f", "-", stdin=json.dumps(nrt(name)))


async def test_create_label_annotate_patch_and_delete(api: Client, kubectl: Any) -> None:
    name = api.name()
    await kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(nrt(name)))
    await kubectl("label", "node-res-topo", name, "a=b")
    await kubectl("annotate", "node-res-topo", name, "c=d")
    await kubectl("patch", "node-res-topo", name, "--type=merge", "-p", '{"zones":[]}')
    seen = await api.ok("GET", f"{NRT}/{name}")
    assert seen["metadata"]["labels"] == {"a": "b"}
    assert seen["metadata"]["annotations"] == {"c": "d"}
    assert seen["zones"] == []
    assert name in await kubectl("get", "node-res-topo", "-l", "a=b", "-o", "name")
    assert "deleted" in await kubectl("delete", "node-res-topo", name)
    assert (await api.call("GET", f"{NRT}/{name}")).status == 404


async def test_a_watching_get_prints_changes(api: Client, kubectl: Any) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name, "7"))
    # A list is watched from its own version. A single object is watched from 0 and its first event left out, which
    # would be the change itself if that came before the watch was open.
    only = f"--field-selector=metadata.name={name}"
    async with kubectl.lines("get", "node-res-topo", only, "-w", "--no-headers") as line:
        assert (await line()).split()[1] == "7"
        await api.ok("PATCH", f"{NRT}/{name}", nrt(name, "6"), MERGE)
        assert (await line()).split()[1] == "6"
