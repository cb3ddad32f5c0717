"""Steering from the pod to the CPUs: real API server and kube-scheduler, the service, and the marker plug-in's process.

The kubelets' device manager and admission are emulated: markers are devices like any other for them.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from signal import SIGSTOP

import pytest

from real_cluster import ASSETS, MISSING, PODS, Json
from sandbox.controlplane import ControlPlane
from sandbox.kubelet.pace import Startup
from steered_cluster import SteeredCluster, steered
from topowise import steering
from topowise.kube.api import MERGE_PATCH

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver


@pytest.fixture(params=["by the extender", "by the gate"])
async def cluster(plane: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[SteeredCluster]:
    async with SteeredCluster(plane, tmp_path, 2, gated=request.param == "by the gate") as cluster:
        yield cluster


async def placed(cluster: SteeredCluster, name: str, cpus: int, numa: int) -> None:
    """Creates a pod that requires a NUMA node, and compares where its CPUs are."""
    await cluster.create(steered(name, cpus, numa))
    await cluster.until_bound(name)
    assert cluster.numa(name) == {numa}


async def test_pods_are_on_the_numa_nodes_that_they_require(
    cluster: SteeredCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods come in bursts and end in between. Two of three require a NUMA node, the others have a marker alone."""
    draw = random.Random(5)
    required: dict[str, int] = {}
    for turn in range(4):
        names = {f"p{turn}-{number}": draw.choice([0, 1, None]) for number in range(8)}
        for name, numa in names.items():
            await cluster.create(steered(name, 1, numa))
        for name, numa in names.items():
            await cluster.until_bound(name)
            if numa is not None:
                required[name] = numa
                assert cluster.numa(name) == {numa}
            assert len(cluster.numa(name)) == 1
        for name in draw.sample(sorted(names), 5):
            await cluster.delete(name)
            required.pop(name, None)
        await cluster.settle(still=0.5)
    assert {name: cluster.numa(name) for name in required} == {name: {numa} for name, numa in required.items()}
    await cluster.assert_all_well()
    metrics = await cluster.service.metrics(cluster.session)
    results = {result: metrics[f'steering_requests_total{{result="{result}"}}'] for result in ("allocated", "lost")}
    shown = ("predictions_total", "verdicts_total", "steering_label_duration_seconds")
    with capsys.disabled():
        lines = [f"{name} {count:g}" for name, count in metrics.items() if count and name.startswith(shown)]
        print("", *lines, sep="\n  ")  # noqa: T201
    assert results["allocated"] >= 4 * 2
    assert not results["lost"]


async def test_a_plug_in_that_dies_after_a_request_costs_no_pod(plane: ControlPlane, tmp_path: Path) -> None:
    """It dies with the request unanswered. The pod waits for the next plug-in; a pod without a marker does not."""
    async with SteeredCluster(plane, tmp_path, 1) as cluster:
        await placed(cluster, "first", 1, 1)
        first = await cluster.request_of("n0")
        cluster.signal("n0", SIGSTOP)
        await cluster.create(steered("waits", 1, 1))
        async with asyncio.timeout(60):
            while await cluster.request_of("n0") == first:
                await asyncio.sleep(0.02)
        await cluster.plugins["n0"].process.kill()
        plain = steered("plain", 1)
        for amounts in plain["spec"]["containers"][0]["resources"].values():
            del amounts[steering.RESOURCE]
        await cluster.create(plain)
        await cluster.until_bound("plain")
        assert [pod["metadata"]["name"] for pod in await cluster.waiting()] == ["waits"]
        await cluster.plugins["n0"].run()
        await cluster.until_bound("waits", 300)
        assert cluster.numa("waits") == {1}
        assert not cluster.refusals


async def test_the_next_scheduler_goes_on_with_steering(plane: ControlPlane, tmp_path: Path) -> None:
    """Service and kube-scheduler of the leader die together with pods on their way."""
    async with SteeredCluster(plane, tmp_path, 2, pairs=2) as cluster:
        await placed(cluster, "first", 1, 1)
        required = {f"p{number}": number % 2 for number in range(8)}
        for name, numa in required.items():
            await cluster.create(steered(name, 1, numa))
        number = await cluster.leader()
        dead = cluster.services.pop(number)
        await dead.kill()
        await cluster.stop_scheduler(number)
        for name in required:
            await cluster.until_bound(name, 300)
        assert {name: cluster.numa(name) for name in required} == {name: {numa} for name, numa in required.items()}
        assert not cluster.refusals


async def test_pods_are_beside_the_pods_that_they_require_and_apart_from_others(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """The kubelet alone would put each pod on NUMA node 0. A pod waits for the pod beside which it has to be."""
    async with SteeredCluster(plane, tmp_path, 2) as cluster:

        def beside(name: str, text: str, **labels: str) -> Json:
            document = steered(name, 2)
            document["metadata"] |= {"annotations": {"topowise.io/numa-affinity": text}, "labels": labels}
            return document

        await cluster.create(beside("early", "require same: app=cache"))
        await cluster.settle(still=1.0)
        assert [pod["metadata"]["name"] for pod in await cluster.waiting()] == ["early"]
        cache = steered("cache", 2, 1)
        cache["metadata"]["labels"] = {"app": "cache"}
        await cluster.create(cache)
        bound = {"cache": await cluster.until_bound("cache"), "early": await cluster.until_bound("early")}
        for number in range(3):
            await cluster.create(beside(f"same-{number}", "require same: pod/cache"))
            await cluster.create(beside(f"apart-{number}", "require apart: app=cache"))
            await cluster.create(beside(f"group-{number}", "require same: app=group", app="group"))
        for number in range(3):
            for name in (f"same-{number}", f"apart-{number}"):
                bound[name] = await cluster.until_bound(name)
        home = bound["cache"]["spec"]["nodeName"]
        for name in ("early", "same-0", "same-1", "same-2"):
            assert (bound[name]["spec"]["nodeName"], cluster.numa(name)) == (home, {1})
        for name in ("apart-0", "apart-1", "apart-2"):
            assert bound[name]["spec"]["nodeName"] != home or cluster.numa(name) == {0}
        by_node: dict[str, set[int]] = {}
        for number in range(3):
            pod = await cluster.until_bound(f"group-{number}")
            by_node.setdefault(pod["spec"]["nodeName"], set()).update(cluster.numa(f"group-{number}"))
        assert all(len(numa) == 1 for numa in by_node.values())
        assert not cluster.refusals


async def test_running_pods_survive_a_restart_of_their_kubelet(plane: ControlPlane, tmp_path: Path) -> None:
    """The plug-in registers with the new kubelet, without a label."""
    async with SteeredCluster(plane, tmp_path, 1) as cluster:
        await placed(cluster, "a", 2, 1)
        await placed(cluster, "b", 2, 0)
        sockets = cluster.plugins["n0"].sockets
        await sockets.stop()
        await cluster.fleet.nodes["n0"].restart(Startup(blind=(0.2, 0.5)))
        await sockets.start()
        await placed(cluster, "c", 2, 1)
        assert (cluster.numa("a"), cluster.numa("b")) == ({1}, {0})
        for name in ("a", "b"):
            await cluster.until_bound(name)
        assert not cluster.refusals


async def test_a_tenant_takes_no_markers_and_no_numa_node_from_others(plane: ControlPlane, tmp_path: Path) -> None:
    """Pods with 1,000 markers, an unreadable annotation, or a NUMA node that does not exist wait alone. A node without
    a plug-in takes pods with markers."""
    async with SteeredCluster(plane, tmp_path, 2, without=["n1"]) as cluster:
        unreadable = steered("unreadable", 1)
        unreadable["metadata"]["annotations"] = {"topowise.io/numa-node": "both"}
        for document in (steered("many", 1, markers=1000), steered("missing", 1, 7), unreadable):
            await cluster.create(document)
        await placed(cluster, "first", 1, 1)
        await cluster.create(steered("elsewhere", 1, nodeSelector={"kubernetes.io/hostname": "n1"}))
        await cluster.until_bound("elsewhere")
        # The annotation of a bound pod moves nothing, also not in the service's state of the node.
        changed = json.dumps({"metadata": {"annotations": {"topowise.io/numa-node": "0"}}}).encode()
        await cluster.api.request("PATCH", f"{PODS}/first", body=changed, content_type=MERGE_PATCH)
        await placed(cluster, "second", 14, 0)
        assert cluster.numa("first") == {1}
        waiting = {pod["metadata"]["name"] for pod in await cluster.waiting()}
        assert waiting == {"missing", "unreadable"} | ({"many"} & waiting)
        assert not cluster.refusals
