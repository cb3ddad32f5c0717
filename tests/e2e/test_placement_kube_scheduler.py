"""A stock kube-scheduler that is down, refuses the chosen node, or binds volumes, while gated pods are placed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from daemons import assert_eventually
from gated_cluster import CONTROLLERS, REPLICA_SETS, SOON_S, GatedCluster, nodes_of, workload
from real_cluster import ASSETS, MISSING
from sandbox.controlplane import ControlPlane

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

Json = dict[str, Any]
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
OF_VOLUMES = (
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
)


async def test_kube_scheduler_is_down_for_more_than_a_minute(plane: ControlPlane, tmp_path: Path) -> None:
    """Pods that were placed before keep their nodes, 16 more are placed ahead, and all are bound where they were placed
    once it is back."""
    async with GatedCluster(plane, tmp_path, 12) as cluster:
        for number in range(4):
            await cluster.add(f"bound-{number}", "2")
        before = await cluster.bound(4)
        await cluster.stop_scheduler()
        for number in range(10):
            await cluster.add(f"placed-{number}", "2")
        placed = await cluster.placed(14)
        # Then the ten pods count as left behind.
        await asyncio.sleep(62.0)
        for number in range(40):
            await cluster.add(f"late-{number}", "2")
        ahead = await cluster.placed(30)
        await asyncio.sleep(3.0)
        assert await cluster.placed(30) == ahead
        assert placed.items() <= ahead.items()
        assert nodes_of(await cluster.pods()) == before
        await cluster.start_scheduler()
        assert ahead.items() <= (await cluster.bound(54)).items()
        outcomes = await cluster.outcomes()
        assert not outcomes["remade"]
        assert not outcomes["elsewhere"]
        await cluster.assert_nothing_left()


@asynccontextmanager
async def refusing() -> AsyncIterator[tuple[Json, set[str]]]:
    """An extender that refuses to pods with the label `picky` the node that it is asked about first, for ever: as a
    plug-in would for a reason that nobody else knows. Its entry in kube-scheduler's configuration, and that node."""
    refused: set[str] = set()

    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        names = next(value for key, value in asked.items() if key.lower() == "nodenames")
        pod = next(value for key, value in asked.items() if key.lower() == "pod")
        failed = {}
        if "picky" in pod["metadata"].get("labels", {}):
            if not refused:
                refused.add(names[0])
            failed = {name: "not this one" for name in names if name in refused}
        passing = [name for name in names if name not in failed]
        return web.json_response({"NodeNames": passing, "FailedNodes": failed})

    application = web.Application(client_max_size=64 << 20)
    application.router.add_post("/filter", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        entry = {"urlPrefix": f"http://{host}:{port}", "filterVerb": "filter", "nodeCacheCapable": True}
        yield entry, refused
    finally:
        await runner.cleanup()


async def test_a_node_that_kube_scheduler_refuses_for_an_unknown_reason(plane: ControlPlane, tmp_path: Path) -> None:
    """The pod is made anew once and goes elsewhere, as do the other pods of its controller; pods that are not refused
    still get the node."""
    async with (
        refusing() as (extender, refused),
        GatedCluster(plane, tmp_path, 2, controllers=CONTROLLERS, extenders=[extender]) as cluster,
    ):
        replica_set = workload("ReplicaSet", "picky", "4")
        replica_set["spec"]["template"]["metadata"]["labels"]["picky"] = "yes"
        await cluster.create(replica_set, REPLICA_SETS)
        bound = await cluster.bound(1)
        assert refused
        assert refused.isdisjoint(bound.values())
        assert (await cluster.outcomes())["remade"] == 1
        await cluster.patch(f"{REPLICA_SETS}/picky", {"spec": {"replicas": 2}})
        assert refused.isdisjoint((await cluster.bound(2, 20.0)).values())
        await cluster.add("other", "6")
        await cluster.add("another", "6")
        assert not refused.isdisjoint((await cluster.bound(4)).values())
        await cluster.assert_nothing_left()


def volume(name: str, node: str, mode: str) -> Json:
    named = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": mode,
            "local": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": named}},
        },
    }


def claim(name: str, mode: str) -> Json:
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": mode, "resources": resources}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


async def test_pods_go_to_their_volumes(plane: ControlPlane, tmp_path: Path) -> None:
    """Volumes on a single node, bound before and bound by kube-scheduler: it may take another node than was chosen."""
    async with GatedCluster(plane, tmp_path, 4, controllers=(*CONTROLLERS, *OF_VOLUMES)) as cluster:
        for mode in ("Immediate", "WaitForFirstConsumer"):
            storage = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": mode.lower()}}
            binding = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}
            await cluster.create({**storage, **binding}, CLASSES)
        nodes = {"bound": "n3", "unbound": "n2"}
        modes = {"bound": "immediate", "unbound": "waitforfirstconsumer"}
        for name, mode in modes.items():
            await cluster.create(volume(name, nodes[name], mode), VOLUMES)
            await cluster.create(claim(name, mode), CLAIMS)
        await assert_eventually(lambda: is_bound(cluster, "bound"), within=SOON_S)
        assert not await is_bound(cluster, "unbound")
        for name in modes:
            await cluster.add(name, "4", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": name}}])
        assert await cluster.bound(2) == nodes
        assert await is_bound(cluster, "unbound")
        for document in await cluster.pods():
            assert "nodeAffinity" not in document["spec"].get("affinity", {})
        await cluster.settle()
        await cluster.assert_all_well()
        await cluster.assert_counts(gated=0)
        for name in modes:
            await cluster.delete(name)
            await cluster.api.request("DELETE", f"{CLAIMS}/{name}")
            await cluster.api.request("DELETE", f"{VOLUMES}/{name}")


async def is_bound(cluster: GatedCluster, name: str) -> bool:
    return json.loads(await cluster.api.request("GET", f"{CLAIMS}/{name}"))["status"].get("phase") == "Bound"
