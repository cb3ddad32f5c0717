"""The preemptor on an API server: which pods it evicts for a pod that waits only for alignment, and when none."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_objects import PODS, RUNNING, create_budget, create_with_status, running
from daemons import assert_eventually
from sandbox.apiserver import ApiServer
from scheduling import WAITS, Service, exact, kubelet, pod
from topowise import pods
from topowise.kube.api import Api
from topowise_scheduler.configuration import Preemptor as Settings
from topowise_scheduler.controllers.alignment import AlignmentPreemption
from topowise_scheduler.controllers.preemptor import Preemptor
from topowise_scheduler.ledger.budgets import Budgets, decode_budget

pytestmark = pytest.mark.own_time

Json = dict[str, Any]
MERGE = "application/merge-patch+json"


class Cluster:
    """A node with 3 and 4 CPUs for exclusive use on its NUMA nodes, as the API server and the service have it."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server, self.api = server, api
        self.service = Service("TightFit")
        self.budgets = Budgets()
        self.node = kubelet()

    async def create(self, name: str, cpu: str, *, node: str = "", priority: int = 0, **fields: Any) -> Json:
        document = pod(name, cpu, node=node, priority=priority, **fields)
        return await create_with_status(self.api, document, RUNNING if node else {"conditions": WAITS})

    async def fill(self, *running: tuple[str, str, int], aside: str = "0") -> None:
        """Runs pods (name, CPUs, priority) on the node; `aside` CPUs are allocated during their admission."""
        names = {}
        self.node.admit(pods.decode(json.dumps(pod("aside", aside)).encode()))
        documents = []
        for name, cpu, priority in running:
            document = await self.create(name, cpu, node="n1", priority=priority, labels={"app": name})
            assert self.node.admit(pods.decode(json.dumps(document).encode())).admitted
            names[document["metadata"]["uid"]] = ("default", name)
            documents.append(document)
        self.node.remove("uid-aside")
        self.service.report(exact(self.node, name_of=names.__getitem__))
        self.service.put_node("n1")
        for document in documents:
            self.service.put(document, is_news=False)

    async def wait_for_room(self, cpu: str = "4", priority: int = 10, **fields: Any) -> None:
        self.service.put(await self.create("wide", cpu, priority=priority, **fields))

    def budget(self, app: str, allowed: int, *, is_known: bool = True) -> None:
        """A budget; `is_known`: the watch has delivered it."""
        document = create_budget(self.server, app, allowed)
        if is_known:
            self.budgets.apply("ADDED", decode_budget(document))

    @property
    def names(self) -> set[str]:
        """Names of the pods without a deletion timestamp."""
        metadata = [pod["metadata"] for pod in self.server.store.objects("pods")]
        return {item["name"] for item in metadata if not item.get("deletionTimestamp")}

    @property
    def events(self) -> dict[str, str]:
        """Reason by the name of the pod."""
        events = self.server.store.objects("events.events.k8s.io")
        return {event["regarding"]["name"]: event["reason"] for event in events}

    @property
    def nominated(self) -> str:
        pods = {pod["metadata"]["name"]: pod for pod in self.server.store.objects("pods")}
        return str(pods["wide"]["status"].get("nominatedNodeName") or "")

    @contextlib.asynccontextmanager
    async def preempting(self, **settings: Any) -> AsyncIterator[None]:
        service = self.service
        alignment = AlignmentPreemption(service.trial, self.budgets)
        options = Settings(enabled=True, **settings)
        async with running(Preemptor(self.api, service.ledger, alignment, options, patience=0.0).run()):
            yield


@pytest.fixture
def cluster(server: ApiServer, api: Api) -> Cluster:
    return Cluster(server, api)


async def left_alone(cluster: Cluster, **settings: Any) -> bool:
    """Whether the preemptor evicts no pod and nominates no node during two rounds."""
    before = cluster.names
    async with cluster.preempting(**settings):
        await asyncio.sleep(2.3)
    return cluster.names == before and not cluster.nominated


async def test_the_least_important_pod_that_is_in_the_way_is_evicted(cluster: Cluster) -> None:
    # 1 and 2 CPUs are free: enough for 3 in sum, but on no NUMA node.
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    await cluster.wait_for_room("3")
    async with cluster.preempting():
        await assert_eventually(lambda: cluster.names == {"a", "wide"})
        await assert_eventually(lambda: cluster.events == {"wide": "Preempting", "b": "Preempted"})
    assert cluster.nominated == "n1"
    requests = [entry.request for entry in cluster.server.log() if entry.request.method != "GET"]
    written = [(request.method, request.path) for request in requests]
    evictions = [path for method, path in written if path.endswith("/eviction")]
    assert evictions == [f"{PODS}/b/eviction"] * 2, "a dry run, and the eviction"
    status = written.index(("PATCH", f"{PODS}/wide/status"), written.index(("POST", evictions[0])))
    assert written.index(("POST", evictions[1]), status) > status, "the room is kept before anybody goes"
    assert cluster.service.ledger.events["evicted_for_alignment"] == 1


async def test_no_more_pods_are_evicted_while_the_victims_end(cluster: Cluster) -> None:
    await cluster.fill(("a", "2", 0), ("b", "2", 0))
    await cluster.wait_for_room("3")
    async with cluster.preempting():
        await assert_eventually(lambda: len(cluster.names) == 2)
        # No watch delivers the deletion: to the service the pod still exists.
        await asyncio.sleep(2.3)
    assert len(cluster.names) == 2


async def test_a_dry_run_only_writes_an_event(cluster: Cluster) -> None:
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    await cluster.wait_for_room("3")
    assert await left_alone(cluster, dry_run=True)
    assert cluster.events == {"wide": "WouldPreempt", "b": "WouldPreempt"}
    assert len(list(cluster.server.store.objects("events.events.k8s.io"))) == 2, "once"


async def test_a_budget_is_never_violated(cluster: Cluster) -> None:
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    await cluster.wait_for_room("3")
    cluster.budget("b", 0)
    async with cluster.preempting():
        await assert_eventually(lambda: cluster.names == {"b", "wide"})


async def test_a_budget_that_the_watch_has_not_brought_yet_is_found_by_the_dry_run(cluster: Cluster) -> None:
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    await cluster.wait_for_room("3")
    cluster.budget("b", 0, is_known=False)
    assert await left_alone(cluster)
    assert cluster.events == {}


@pytest.mark.parametrize(
    ("cpu", "fields"),
    [
        ("3", {"preemptionPolicy": "Never"}),
        ("3", {"priority": 1}),
        ("2", {}),
        ("5", {}),
        ("3", {"nodeSelector": {"pool": "x"}}),
        ("3", {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]}),
    ],
    ids=["may not preempt", "no pod is less important", "it fits", "the sums do not do", "another pool", "a volume"],
)
async def test_no_pod_is_evicted(cluster: Cluster, cpu: str, fields: Json) -> None:
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    await cluster.wait_for_room(cpu, **fields)
    assert await left_alone(cluster)


async def test_a_pod_nominated_by_another_writer_is_left_alone(cluster: Cluster) -> None:
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    await cluster.wait_for_room("3")
    body = json.dumps({"status": {"nominatedNodeName": "elsewhere"}}).encode()
    await cluster.api.request("PATCH", f"{PODS}/wide/status", body=body, content_type=MERGE)
    async with cluster.preempting():
        await asyncio.sleep(1.3)
    assert cluster.names == {"a", "b", "wide"}


async def test_either_every_needed_victim_is_evicted_or_none(cluster: Cluster) -> None:
    # 3 CPUs are free on the first NUMA node and 2 on the second, where two pods have 1 CPU each.
    await cluster.fill(("a", "1", 0), ("b", "1", 3), aside="3")
    assert cluster.service.free("n1") == [3, 2]
    await cluster.wait_for_room("4")
    assert await left_alone(cluster, per_minute=1)
    async with cluster.preempting(per_minute=2):
        await assert_eventually(lambda: cluster.names == {"wide"})
    evicted = [entry.request.path for entry in cluster.server.log() if entry.request.path.endswith("/eviction")]
    assert evicted == [f"{PODS}/{name}/eviction" for name in ("b", "a", "b", "a")], "the most important first"


async def test_no_pod_is_evicted_if_the_budget_of_another_victim_is_used_up(cluster: Cluster) -> None:
    await cluster.fill(("a", "1", 0), ("b", "1", 3), aside="3")
    await cluster.wait_for_room("4")
    cluster.budget("a", 0, is_known=False)
    assert await left_alone(cluster)


async def test_a_static_pod_is_left_alone_and_another_victim_is_chosen(cluster: Cluster) -> None:
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    body = json.dumps({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}).encode()
    await cluster.api.request("PATCH", f"{PODS}/b", body=body, content_type=MERGE)
    await cluster.wait_for_room("3")
    async with cluster.preempting():
        await assert_eventually(lambda: cluster.names == {"b", "wide"}, within=20)


async def test_no_pod_is_evicted_while_a_chosen_victim_already_ends(cluster: Cluster) -> None:
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    await cluster.wait_for_room("3")
    await cluster.api.request("DELETE", f"{PODS}/b")
    assert await left_alone(cluster)


class Steps:
    """A preemptor whose rounds a test starts, with the service's clock."""

    def __init__(self, cluster: Cluster, **settings: Any) -> None:
        service = self._service = cluster.service
        alignment = AlignmentPreemption(service.trial, cluster.budgets)
        options = Settings(enabled=True, **settings)
        self.preemptor = Preemptor(cluster.api, service.ledger, alignment, options, patience=0.0, clock=service.clock)

    async def tick(self, count: int = 1, seconds: float = 1.0) -> list[str]:
        """Runs `count` rounds; returns the names of the tried pods."""
        looked = []
        for _ in range(count):
            self._service.clock.now += seconds
            for record in list(self.preemptor.due().values()):
                looked.append(f"{record.namespace}/{record.name}")
                await self.preemptor._make_room(record)
        return looked


def reads(cluster: Cluster, name: str) -> int:
    """How often a pod was read."""
    requests = [entry.request for entry in cluster.server.log()]
    return sum(request.method == "GET" and request.path == f"{PODS}/{name}" for request in requests)


async def hold_back_the_end_of(cluster: Cluster, name: str) -> None:
    """A finalizer keeps the pod for ever, once it is deleted."""
    body = json.dumps({"metadata": {"finalizers": ["example.com/never"]}}).encode()
    await cluster.api.request("PATCH", f"{PODS}/{name}", body=body, content_type=MERGE)


async def test_a_victim_that_never_ends_costs_no_other_pod_and_no_work(cluster: Cluster) -> None:
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    await hold_back_the_end_of(cluster, "b")
    await cluster.wait_for_room("3")
    steps = Steps(cluster)
    await steps.tick(3)
    assert cluster.names == {"a", "wide"}
    # The preemptor waits for the victim, then retries seldom.
    await steps.tick(12, 60.0)
    before = reads(cluster, "wide")
    await steps.tick(29)
    assert reads(cluster, "wide") <= before + 1
    assert cluster.names == {"a", "wide"}
    assert cluster.service.ledger.events["evicted_for_alignment"] == 1


async def test_a_pod_that_needs_more_victims_than_are_left_in_a_minute_waits_without_a_trial(cluster: Cluster) -> None:
    await cluster.fill(("a", "1", 0), ("b", "1", 3), aside="3")
    await cluster.wait_for_room("4")
    steps = Steps(cluster, per_minute=2)
    # As after an eviction for another pod.
    steps.preemptor._evicted.append((cluster.service.clock(), "default"))
    await steps.tick(50)
    assert reads(cluster, "wide") == 1
    assert cluster.names == {"a", "b", "wide"}
    await steps.tick(11)
    assert cluster.names == {"wide"}


async def test_a_pod_that_does_not_use_freed_capacity_has_ever_fewer_pods_evicted(cluster: Cluster) -> None:
    """Its controller keeps the pod from binding, and the victim's controller creates a new pod."""
    await cluster.fill(("a", "2", 5), ("b", "2", 1))
    await cluster.wait_for_room("3")
    steps = Steps(cluster)
    evicted = cluster.service.ledger.events
    for number in range(60):
        await steps.tick(1, 60.0)
        victim = next(pod for pod in cluster.server.store.objects("pods") if pod["metadata"]["name"].startswith("b"))
        if victim["metadata"].get("deletionTimestamp"):
            name, uid = victim["metadata"]["name"], victim["metadata"]["uid"]
            await cluster.api.request("DELETE", f"{PODS}/{name}", body=b'{"gracePeriodSeconds": 0}')
            cluster.node.remove(uid)
            cluster.service.ledger.drop_pod(uid)
            again = await cluster.create(f"b{number}", "2", node="n1", priority=1)
            assert cluster.node.admit(pods.decode(json.dumps(again).encode())).admitted
            cluster.service.put(again, is_news=False)
    # At first, then after 1, 2, 4, 8, 16 and 32 minutes.
    assert 3 <= evicted["evicted_for_alignment"] <= 7


async def test_thousands_of_pods_of_one_tenant_do_not_delay_other_tenants(cluster: Cluster) -> None:
    await cluster.fill(("a", "2", 5), ("b", "2", 1))

    def put_waiting(namespace: str, name: str, priority: int) -> None:
        document = pod(name, "3", priority=priority, conditions=WAITS)
        document["metadata"]["namespace"] = namespace
        cluster.service.put(document)

    for number in range(300):
        put_waiting("noisy", f"p{number}", 10)
    put_waiting("quiet", "same", 10)
    put_waiting("quiet", "lesser", 9)
    put_waiting("quiet", "important", 11)
    steps = Steps(cluster)
    first = await steps.tick()
    # The API server has none of these pods, so no pod is evicted.
    assert len(first) <= 16
    assert first[:3] == ["quiet/important", "noisy/p0", "quiet/same"]
    looked = first + await steps.tick(25)
    assert "quiet/lesser" in looked
    assert len(set(looked)) == 303
