"""The service behind the stock kube-scheduler on a real API server; kubelets decide by the one-node model.

Everything kube-scheduler does by itself is here as it is: its queue and what wakes it, its other plug-ins, its
asynchronous binds and their time limits.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from burst.nodes import nodes
from burst.service import Service
from burst.workload import Workload
from sandbox import controlplane, stock_scheduler
from sandbox.apiserver import documents
from sandbox.apiserver.client import CRDS, NRT, connect
from sandbox.controlplane import ControlPlane
from sandbox.hollow import Fleet, Pace, Refusal, Reporting
from sandbox.stock_scheduler import StockScheduler
from topowise import pods
from topowise.kube import credentials
from topowise.kube.api import Api

ASSETS = controlplane.assets(stock_scheduler.BINARY)
if ASSETS is None:
    pytest.skip(
        "no etcd, kube-apiserver and kube-scheduler in $KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin",
        allow_module_level=True,
    )
pytestmark = pytest.mark.apiserver

DEFINITIONS = documents.load_all(Path(__file__).parents[2] / "charts" / "topowise" / "crds")
PODS = "/api/v1/namespaces/default/pods"
SCHEDULER = "numa-scheduler"
_AT_ONCE = 10
_WAITING = 40


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    assert ASSETS is not None
    with ControlPlane(ASSETS) as running:
        yield running


class Cluster:
    """Hollow nodes, the service, and the stock kube-scheduler."""

    def __init__(self, plane: ControlPlane, directory: Path, count: int) -> None:
        self._plane = plane
        self._directory = directory
        self._count = count
        self._stack = AsyncExitStack()
        self.refusals: list[Refusal] = []
        self.random = Random(7)

    async def start(self) -> None:
        self.session = await self._stack.enter_async_context(aiohttp.ClientSession())
        kubeconfig = self._plane.kubeconfig(self._directory / "kubeconfig")
        access = await credentials.load(str(kubeconfig))
        self.api = await self._stack.enter_async_context(Api(access, "e2e", timeout=30))
        async with connect(self._plane.url, self._plane.token) as client:
            for crd in DEFINITIONS:
                assert (await client.call("POST", CRDS, crd)).status in (201, 409)
            while (await client.call("GET", NRT, limit=1)).status != 200:
                await asyncio.sleep(0.05)
        self.fleet = Fleet(
            self.api,
            pace=Pace(admission=(0.0, 0.05), start=(0.0, 0.1), stop=(0.02, 0.1)),
            reporting=Reporting(wait=(0.2, 0.5), lag=(0.0, 0.05)),
            refused=self.refusals.append,
            seed=7,
        )
        for name, kind in nodes(self._count):
            self.fleet.add(name, kind.machine, kind.config)
        await self._stack.enter_async_context(self.fleet)
        self.service = Service("service", kubeconfig, self._directory)
        self._stack.push_async_callback(self.service.kill)
        await self.service.start(self.session)
        await self.start_scheduler()

    async def start_scheduler(self) -> None:
        """The stock one, with the extender as our documentation has it."""
        configuration = {
            "percentageOfNodesToScore": 100,
            "profiles": [{"schedulerName": SCHEDULER}],
            "extenders": [stock_scheduler.extender(self.service.prefix)],
            "clientConnection": {"qps": 500, "burst": 1000},
        }
        self._scheduler = StockScheduler(
            self._plane, configuration, self._directory / f"scheduler-{time.monotonic_ns()}"
        )
        await asyncio.to_thread(self._scheduler.__enter__)

    async def stop_scheduler(self) -> None:
        await asyncio.to_thread(self._scheduler.__exit__, None, None, None)

    async def stop(self) -> None:
        await self.stop_scheduler()
        await self._stack.aclose()
        for path in (PODS, "/api/v1/nodes", "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"):
            async with Api(await credentials.load(str(self._directory / "kubeconfig")), "e2e", timeout=30) as api:
                await api.request("DELETE", path, query={"gracePeriodSeconds": "0"})

    async def create(self, document: dict[str, Any]) -> None:
        await self.api.request("POST", PODS, body=json.dumps(document).encode())

    async def pods(self) -> list[Any]:
        return list(json.loads(await self.api.request("GET", PODS))["items"])

    async def phases(self) -> Counter[str]:
        """How many pods run, have ended, wait, and were refused."""
        return Counter(
            "waiting" if not one["spec"].get("nodeName") else one["status"].get("reason") or one["status"]["phase"]
            for one in await self.pods()
        )

    async def settle(self, limit: float = 120.0) -> Counter[str]:
        """Until nothing moves for three seconds: a pod that waits is then one that nothing wakes any more."""
        deadline = time.monotonic() + limit
        since, before = time.monotonic(), Counter[str]()
        while time.monotonic() - since < 3.0:
            self.fleet.check()
            self.service.check()
            now = await self.phases()
            if now != before or not self.fleet.is_quiet:
                since, before = time.monotonic(), now
            assert time.monotonic() < deadline, f"still moving: {now}"
            await asyncio.sleep(0.2)
        return before

    def takers(self, document: Any) -> list[str]:
        """Nodes whose kubelet, in its true state, would admit a pod and has all it names."""
        pod = pods.decode(json.dumps(document).encode())
        named = {name for name, amount in pods.needs(pod).requests.items() if amount > 0}
        return [
            name
            for name, node in self.fleet.nodes.items()
            if named <= node.kubelet.allocatable().keys() and node.kubelet.would_admit(pod).admitted
        ]


@pytest.fixture
async def cluster(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(plane, tmp_path, 10)
    await made.start()
    yield made
    await made.stop()


async def feed(cluster: Cluster, count: int, *, restart_at: int | None = None) -> float:
    """Makes pods as fast as they are taken; the last fifth stays. Seconds until all was quiet."""
    workload = Workload(11)
    started = time.monotonic()
    for first in range(0, count, _AT_ONCE):
        if restart_at is not None and first == restart_at:
            await cluster.service.kill()
            await cluster.service.start(cluster.session)
        stuck = time.monotonic() + 2.0
        while (await cluster.phases())["waiting"] >= _WAITING and time.monotonic() < stuck:
            await asyncio.sleep(0.05)
        lifetimes = [
            None if number >= 0.8 * count else cluster.random.uniform(1.0, 4.0)
            for number in range(first, first + _AT_ONCE)
        ]
        await asyncio.gather(
            *(
                cluster.create(workload.pod(first + at, scheduler=SCHEDULER, lifetime=lifetime))
                for at, lifetime in enumerate(lifetimes)
            )
        )
    await cluster.settle()
    return time.monotonic() - started


async def assert_all_well(cluster: Cluster) -> None:
    assert not cluster.refusals
    waiting = [one for one in await cluster.pods() if not one["spec"].get("nodeName")]
    left_out = {one["metadata"]["name"]: cluster.takers(one) for one in waiting}
    assert not {name: takers for name, takers in left_out.items() if takers}


@pytest.mark.parametrize("restart_at", [None, 100], ids=["undisturbed", "service killed"])
async def test_no_kubelet_refuses_and_nobody_waits_beside_room(
    cluster: Cluster, restart_at: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = await feed(cluster, 300, restart_at=restart_at)
    phases = await cluster.phases()
    await assert_all_well(cluster)
    metrics = await cluster.service.metrics(cluster.session)
    with capsys.disabled():
        told = {name: metrics.get(f'predictions_total{{outcome="{name}"}}') for name in ("hit", "miss")}
        print(f"\n  300 pods in {seconds:.1f}s  {dict(phases)}  predictions {told}", end="")  # noqa: T201


async def test_a_refused_pod_is_woken_when_its_zone_is_free_again(cluster: Cluster) -> None:
    """Half of the pods of a full cluster go; of those that wait, all go where there is room now."""
    workload = Workload(3)
    waiting: list[str] = []
    for number in range(200):
        document = workload.pod(number, scheduler=SCHEDULER, lifetime=None)
        await cluster.create(document)
        if number % 20 == 19:
            await cluster.settle()
            waiting = [one["metadata"]["name"] for one in await cluster.pods() if not one["spec"].get("nodeName")]
            if len(waiting) > 5:
                break
    assert waiting, "the cluster took everything; the test needs pods that wait"
    bound = [one["metadata"]["name"] for one in await cluster.pods() if one["spec"].get("nodeName")]
    for one in bound[: len(bound) // 2]:
        await cluster.api.request("DELETE", f"{PODS}/{one}", query={"gracePeriodSeconds": "1"})
    await cluster.settle()
    await assert_all_well(cluster)
    still = [one["metadata"]["name"] for one in await cluster.pods() if not one["spec"].get("nodeName")]
    assert len(still) < len(waiting)
