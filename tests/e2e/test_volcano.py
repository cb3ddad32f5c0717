"""A real volcano-scheduler on a real API server, first with the service as its extender, then with its own plug-in
numa-aware that reads our Numatopologies, then with both. Kubelets decide by the one-node model.

Volcano runs unchanged: its sessions and statements, gangs, pipelining, preemption and binds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from burst.nodes import KINDS, Kind, nodes
from burst.workload import Workload
from real_cluster import PODS
from sandbox.controlplane import ControlPlane
from sandbox.hollow import LIFETIME, Reporting
from volcano_cluster import MISSING, POLICY, QUEUE, VolcanoCluster

if MISSING is not None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

Json = dict[str, Any]

_PREEMPTING = "enqueue, allocate, preempt, backfill"
_REPORTING = Reporting(wait=(0.2, 0.5), lag=(0.0, 0.05), numatopology=True)


async def asked_of(cluster: VolcanoCluster) -> dict[str, int]:
    """The number of requests to the service, by Volcano's verbs."""
    sample = 'extender_request_duration_seconds_count{verb="volcano_'
    metrics = await cluster.service.metrics(cluster.session)
    return {name[len(sample) : -2]: int(count) for name, count in metrics.items() if name.startswith(sample) and count}


async def show(cluster: VolcanoCluster, label: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints a line with the results."""
    calls = await asked_of(cluster)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {label}: {dict(await cluster.phases())}  refused by kubelets {len(cluster.refusals)}  asked {calls}",
            end="",
        )


def spec(cpus: int, *, priority_class: str = "") -> Json:
    """A Guaranteed container."""
    amounts = {"cpu": str(cpus), "memory": f"{cpus}Gi"}
    container = {"name": "app", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {"containers": [container], **({"priorityClassName": priority_class} if priority_class else {})}


def pod(name: str, cpus: int, *, policy: str = "", lifetime: float | None = None, priority_class: str = "") -> Json:
    annotations = {POLICY: policy} if policy else {}
    if lifetime is not None:
        annotations[LIFETIME] = f"{lifetime:.3f}"
    meta = {"name": name, "namespace": "default", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec(cpus, priority_class=priority_class)}


async def fill(cluster: VolcanoCluster, queue: str = "default") -> None:
    """Creates pods until some wait that fit on no node."""
    workload = Workload(3)
    for number in range(1000, 1300):
        document = workload.pod(number, lifetime=None)
        document["metadata"]["annotations"][QUEUE] = queue
        await cluster.create(document)
        if number % 20 == 19:
            await cluster.settle()
            if len(await cluster.waiting()) > 5:
                return
    raise AssertionError("the cluster took everything; the test needs pods that wait")


async def declare_urgent(cluster: VolcanoCluster) -> None:
    """The PriorityClass of that name."""
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
    await cluster.create({**urgent, "value": 1000}, "/apis/scheduling.k8s.io/v1/priorityclasses")


async def running(cluster: VolcanoCluster) -> set[str]:
    """The names of the pods that have a node."""
    return {pod["metadata"]["name"] for pod in await cluster.pods() if pod["spec"].get("nodeName")}


async def assert_no_open_reservations(cluster: VolcanoCluster) -> None:
    """Asserts that no reservation is open."""
    metrics = await cluster.service.metrics(cluster.session)
    assert metrics["open_reservations"] == 0


@pytest.mark.parametrize("numa_aware", [False, True], ids=["the service alone", "numa-aware as well"])
async def test_no_kubelet_refuses_a_pod_of_volcano_and_no_pod_waits_beside_free_capacity(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str], numa_aware: bool
) -> None:
    """With `numa-aware` a node must pass both, so pods may wait beside free capacity."""
    async with VolcanoCluster(plane, tmp_path, nodes(10), numa_aware=numa_aware, reporting=_REPORTING) as cluster:
        seconds = await cluster.feed(200)
        await show(cluster, f"200 pods in {seconds:.1f} s", capsys)
        assert not cluster.refusals
        if not numa_aware:
            await cluster.assert_all_well()
            await fill(cluster)
            await show(cluster, "and until no more fit", capsys)
            await cluster.assert_all_well()
        await assert_no_open_reservations(cluster)
        calls = await asked_of(cluster)
        assert calls["predicate"] and calls["prioritize"] and calls["allocateFunc"]


async def feed_gangs(cluster: VolcanoCluster, count: int) -> None:
    """Creates gangs of all sizes and single pods together, more than the cluster fits; half of the pods end."""
    random, workload = Random(5), Workload(4)
    for number in range(count):
        lifetime = {} if number % 2 else {LIFETIME: f"{random.uniform(2.0, 6.0):.3f}"}
        members, cpus = random.randint(2, 10), random.choice((2, 4, 6))
        await cluster.create_gang(f"gang-{number:02d}", members, spec(cpus), lifetime)
        await cluster.create(workload.pod(number, lifetime=random.uniform(1.0, 4.0)))
    await cluster.settle(240.0)


async def test_gangs_come_whole_or_not_at_all_and_leave_no_reservations(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with VolcanoCluster(plane, tmp_path, nodes(10)) as cluster:
        await feed_gangs(cluster, 60)
        groups = await cluster.groups()
        whole = sum(all(pod["spec"].get("nodeName") for pod in members) for members in groups.values())
        await show(cluster, f"{whole} of {len(groups)} groups whole", capsys)
        await cluster.assert_all_well()
        await assert_no_open_reservations(cluster)
        # Volcano tried some gangs and discarded their statements.
        assert whole < len(groups)
        assert (await asked_of(cluster))["deallocateFunc"]


async def test_volcano_evicts_where_the_kubelet_can_align_the_urgent_pod_and_nowhere_else(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with VolcanoCluster(plane, tmp_path, nodes(10), actions=_PREEMPTING) as cluster:
        await declare_urgent(cluster)
        await fill(cluster)
        before = {pod["metadata"]["name"]: pod for pod in await cluster.pods() if pod["spec"].get("nodeName")}
        names = [f"urgent-{number}" for number in range(8)]
        for name in names:
            await cluster.create(pod(name, 6, priority_class="urgent"))
            await asyncio.sleep(0.5)
        await cluster.settle(180.0)
        after = {pod["metadata"]["name"]: pod for pod in await cluster.pods()}
        evicted = [pod for name, pod in before.items() if name not in after]
        used = {after[name]["spec"].get("nodeName") for name in names}
        # Evicted pods that would still fit beside the urgent pods.
        idle = [pod["metadata"]["name"] for pod in evicted if pod["spec"]["nodeName"] in cluster.takers(pod)]
        await show(cluster, f"{len(evicted)} evicted for {len(names)}, {len(idle)} would fit beside them", capsys)
        assert {name: after[name]["status"]["phase"] for name in names} == dict.fromkeys(names, "Running")
        assert evicted
        assert {pod["spec"]["nodeName"] for pod in evicted} <= used
        await cluster.assert_all_well()
        await assert_no_open_reservations(cluster)
        assert (await asked_of(cluster))["preemptable"]


async def test_an_urgent_gang_evicts_for_all_its_pods_or_for_none(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gang that fits after evictions, and a gang that never fits and causes no eviction."""
    async with VolcanoCluster(plane, tmp_path, nodes(10), actions=_PREEMPTING) as cluster:
        await declare_urgent(cluster)
        await fill(cluster)
        before = await running(cluster)
        await cluster.create_gang("too-many", 100, spec(6, priority_class="urgent"))
        # A session that tries many placements and reverts all takes some seconds.
        await cluster.settle(180.0, still=15.0)
        assert before <= await running(cluster)
        await show(cluster, "a gang of 100 in a full cluster", capsys)
        await cluster.assert_all_well()
        for pod in (await cluster.groups())["too-many"]:
            await cluster.api.request("DELETE", f"{PODS}/{pod['metadata']['name']}", query={"gracePeriodSeconds": "0"})
        await cluster.create_gang("some", 8, spec(6, priority_class="urgent"))
        await cluster.settle(240.0, still=15.0)
        members = (await cluster.groups())["some"]
        evicted = before - await running(cluster)
        await show(cluster, f"{len(evicted)} evicted for a gang of 8", capsys)
        assert [pod["status"]["phase"] for pod in members] == ["Running"] * 8
        assert evicted
        await cluster.assert_all_well()


@pytest.mark.parametrize("reclaims", [False, True], ids=["by sums, and taken back", "of our choice"])
async def test_a_queue_reclaims_its_share_where_the_kubelet_can_align_the_pod(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str], reclaims: bool
) -> None:
    """A queue has filled the cluster, and a second queue requests a part of its share."""
    actions = "enqueue, allocate, reclaim, backfill"
    async with VolcanoCluster(plane, tmp_path, nodes(10), actions=actions, reclaims=reclaims) as cluster:
        for name in ("greedy", "modest"):
            await cluster.open_queue(name, parent="root")
        await fill(cluster, "greedy")
        before = {pod["metadata"]["name"]: pod for pod in await cluster.pods() if pod["spec"].get("nodeName")}
        names = [f"modest-{number}" for number in range(5)]
        for name in names:
            document = pod(name, 6)
            document["metadata"]["annotations"][QUEUE] = "modest"
            await cluster.create(document)
            await asyncio.sleep(0.5)
        await cluster.settle(240.0)
        after = {pod["metadata"]["name"]: pod for pod in await cluster.pods()}
        evicted = [pod for name, pod in before.items() if name not in after]
        states = {name: after[name]["status"]["phase"] for name in names}
        await show(cluster, f"{len(evicted)} evicted for {states}", capsys)
        assert not cluster.refusals
        assert evicted
        used = {after[name]["spec"].get("nodeName") for name in names}
        assert {pod["spec"]["nodeName"] for pod in evicted} <= used
        # The last pod may wait: the first queue is down to its share, and the free capacity is spread over the nodes.
        assert set(states.values()) <= {"Running", "Pending"}
        assert list(states.values()).count("Running") >= 3
        assert ("reclaimable" in await asked_of(cluster)) is reclaims


def strict(name: str, **more: Any) -> Kind:
    """A node kind with settings that numa-aware supports: single-numa-node, and no options."""
    kind = KINDS[name]
    changed: Json = {"topologyManagerPolicy": "single-numa-node", "cpuManagerPolicyOptions": {}, **more}
    return Kind(kind.machine, msgspec.structs.replace(kind.config, **changed))


async def test_numa_aware_goes_by_our_numatopologies(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without our service. A node of 24 + 24 CPUs less a core holds 20 on each NUMA node; 6 are free in sum, 4 at most
    on either, so that 6 CPUs do not fit until a pod ends."""
    specs = [("strict", strict("wide-single")), ("loose", KINDS["middle-none"])]
    async with VolcanoCluster(
        plane, tmp_path, specs, extender=False, numa_aware=True, extenders=[], reporting=_REPORTING
    ) as cluster:
        policy = "single-numa-node"
        for name in ("first", "second"):
            await cluster.create(pod(name, 20, policy=policy))
            await cluster.settle()
        await cluster.create(pod("third", 6, policy=policy))
        await cluster.settle()
        where = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in await cluster.pods()}
        assert where == {"first": "strict", "second": "strict", "third": None}
        assert "cannot be assigned by numa" in str(await cluster.conditions())
        # Only the object shows which pod has ended.
        await cluster.api.request("DELETE", f"{PODS}/first", query={"gracePeriodSeconds": "1"})
        await cluster.settle()
        where = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in await cluster.pods()}
        assert where == {"second": "strict", "third": "strict"}
        assert not cluster.refusals
        await show(cluster, "numa-aware alone, one after the other", capsys)
