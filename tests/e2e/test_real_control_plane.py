"""The service behind the stock kube-scheduler on a real API server; kubelets decide by the one-node model.

kube-scheduler runs unchanged: its queue and requeueing, its other plug-ins, its
asynchronous binds and their time limits, its preemption. It has the chart's configuration.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from burst.nodes import KINDS, Kind, nodes
from burst.workload import Workload
from daemons import assert_eventually
from real_cluster import ASSETS, MISSING, PODS, SCHEDULER, Cluster, pod
from sandbox.controlplane import ControlPlane
from topowise import nrt
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.ledger.node.history import Precision
from topowise_scheduler.verdicts.refusals import Refusal

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

# The lease of a dead kube-scheduler expires after 4 s, the lease of the requeueing service after 15 s.
_TAKE_OVER = 20.0
_EVENTS = "/api/v1/namespaces/default/events"
_MACHINE = KINDS["snc-restricted"]
_STRICT = Kind(_MACHINE.machine, msgspec.structs.replace(_MACHINE.config, topologyManagerPolicy="single-numa-node"))


@pytest.fixture
async def cluster(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(plane, tmp_path, nodes(10)) as cluster:
        yield cluster


async def show(cluster: Cluster, seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints a line with the results."""
    phases = await cluster.phases()
    metrics = await cluster.service.metrics(cluster.session)
    with capsys.disabled():
        predicted = {known.label: metrics.get(f'predictions_total{{precision="{known.label}"}}') for known in Precision}
        print(f"\n  300 pods in {seconds:.1f}s  {dict(phases)}  predictions {predicted}", end="")  # noqa: T201


async def kill(cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.service.kill()
        await cluster.service.start()
        await asyncio.sleep(cluster.random.uniform(0.0, 1.0))


async def restart_kube_scheduler(cluster: Cluster) -> None:
    await cluster.stop_scheduler()
    await cluster.start_scheduler()


async def delete_reports(cluster: Cluster) -> None:
    """Deletes every second node's; their exporters notice after a while."""
    for name, node in list(cluster.fleet.nodes.items())[::2]:
        await cluster.api.request("DELETE", f"{nrt.PATH}/{name}")
        await node.reporter.check()


@pytest.mark.parametrize(
    "halfway",
    [None, kill, restart_kube_scheduler, delete_reports],
    ids=["plain", "service killed", "kube-scheduler killed", "reports deleted"],
)
async def test_a_burst_of_pods(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str], halfway: Any
) -> None:
    """No kubelet refuses a pod, and no pod waits beside free capacity, whatever happens in the middle."""
    async with Cluster(plane, tmp_path, nodes(10)) as cluster:
        seconds = await cluster.feed(300, halfway=None if halfway is None else partial(halfway, cluster))
        await cluster.assert_all_well()
        await show(cluster, seconds, capsys)


async def test_the_leading_replica_dies_in_the_middle_of_a_burst(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Service and kube-scheduler of a pod die together; the other pair has followed everything by its own watches."""
    async with Cluster(plane, tmp_path, nodes(10), pairs=2) as cluster:

        async def lose() -> None:
            number = await cluster.leader()
            dead = cluster.services.pop(number)
            await dead.kill()
            await cluster.stop_scheduler(number)

        seconds = await cluster.feed(300, halfway=lose, still=_TAKE_OVER)
        assert len(cluster.services) == 1
        await cluster.assert_all_well()
        await show(cluster, seconds, capsys)


async def test_a_refused_pod_is_requeued_when_its_zone_is_free_again(cluster: Cluster) -> None:
    """Half of the pods of a full cluster end; all waiting pods that fit are placed."""
    waiting = await fill(cluster)
    bound = [pod["metadata"]["name"] for pod in await cluster.pods() if pod["spec"].get("nodeName")]
    for name in bound[: len(bound) // 2]:
        await cluster.api.request("DELETE", f"{PODS}/{name}", query={"gracePeriodSeconds": "1"})
    await cluster.settle()
    await cluster.assert_all_well()
    assert len(await cluster.waiting()) < waiting


async def test_urgent_pods_evict_where_the_kubelet_can_align_them(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a full cluster every urgent pod runs in the end, no kubelet refuses a pod, and other pods are evicted."""
    await cluster.create(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        },
        "/apis/scheduling.k8s.io/v1/priorityclasses",
    )
    await fill(cluster)
    before = {pod["metadata"]["name"] for pod in await cluster.pods() if pod["spec"].get("nodeName")}
    urgent = [urgent_pod(number) for number in range(8)]
    for document in urgent:
        await cluster.create(document)
        await asyncio.sleep(0.2)
    await cluster.settle()
    after = {pod["metadata"]["name"]: pod for pod in await cluster.pods()}
    names = {pod["metadata"]["name"] for pod in urgent}
    states = {name: after[name]["status"]["phase"] for name in names}
    evicted = before - after.keys()
    with capsys.disabled():
        print(f"\n  {len(evicted)} pods evicted for {len(urgent)} urgent ones", end="")  # noqa: T201
    assert set(states.values()) == {"Running"}, states
    assert evicted
    await cluster.assert_all_well()


async def fill(cluster: Cluster) -> int:
    """Creates pods until some wait that fit on no node; returns their number."""
    workload = Workload(3)
    for number in range(300):
        await cluster.create(workload.pod(number, scheduler=SCHEDULER, lifetime=None))
        if number % 20 == 19:
            await cluster.settle()
            waiting = len(await cluster.waiting())
            if waiting > 5:
                return waiting
    raise AssertionError("the cluster took everything; the test needs pods that wait")


def urgent_pod(number: int) -> dict[str, Any]:
    """A pod of 6 CPUs, which most nodes must align, and which no zone of a full cluster has free."""
    amounts = {"cpu": "6", "memory": "2Gi"}
    container = {"name": "app", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"urgent-{number}", "namespace": "default"},
        "spec": {"schedulerName": SCHEDULER, "priorityClassName": "urgent", "containers": [container]},
    }


async def test_the_first_event_of_a_pod_that_fits_nowhere_has_the_reason(plane: ControlPlane, tmp_path: Path) -> None:
    async with Cluster(plane, tmp_path, [(f"metal-{number}", _STRICT) for number in range(2)]) as cluster:
        # More than a NUMA node has, and less than the node.
        await cluster.create(pod("wide", "10"))
        query = {"fieldSelector": "involvedObject.name=wide,reason=FailedScheduling"}
        events: list[dict[str, Any]] = []

        async def is_reported_twice() -> bool:
            events[:] = json.loads(await cluster.api.request("GET", _EVENTS, query=query))["items"]
            return len(events) > 1

        # kube-scheduler tries the pod again after the pod's condition has changed, and a changed reason changes it.
        await assert_eventually(is_reported_twice, within=60)
        expected = f"0/2 nodes are available: 2 {TEXTS[Refusal.NEVER]}."
        assert [event["message"][: len(expected)] for event in events] == [expected] * 2
