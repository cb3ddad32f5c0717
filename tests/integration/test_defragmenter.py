"""The defragmenter on an API server: which pods it evicts for a declared shape, when none, and when it stops."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from api_objects import PODS, RUNNING, create_budget, create_with_status, running
from daemons import assert_eventually
from sandbox.apiserver import ApiServer
from scheduling import Service, exact, kubelet, pod
from topowise import pods
from topowise.kube.api import Api
from topowise_scheduler.configuration import Defragmenter as Settings
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.leader.defragmenter import Defragmenter
from topowise_scheduler.preemption import Budgets, decode_budget

pytestmark = pytest.mark.own_time

OWNER = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}]
SHAPE: dict[str, str | int] = {"cpu": 4, "memory": "1Gi", "count": 2}
STARTED = "2026-01-01T00:00:00Z"
NIGHT = datetime(2026, 11, 22, 3, tzinfo=UTC)


class Cluster:
    """Two nodes of 3 and 4 exclusive CPUs on their NUMA nodes: "small" has 1 of n1's 4 CPUs, so a pod of
    4 CPUs fits on n2 alone, whose NUMA node 0 can also take "small"."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server, self.api = server, api
        self.service = Service("TightFit")
        self.budgets = Budgets()
        self.nodes = {"n1": kubelet(), "n2": kubelet()}
        self.names: dict[str, tuple[str, str]] = {}
        self.now = NIGHT

    async def run(self, name: str, cpu: str, node: str, *, owned: bool = True) -> str:
        document = pod(name, cpu, node=node, labels={"app": name})
        document["metadata"] |= {"ownerReferences": OWNER} if owned else {}
        created = await create_with_status(self.api, document, RUNNING)
        uid = str(created["metadata"]["uid"])
        self.names[uid] = ("default", name)
        assert self.nodes[node].admit(pods.decode(json.dumps(created).encode())).admitted
        self.service.put(created, is_news=False)
        return uid

    def report(self) -> None:
        for name, node in self.nodes.items():
            self.service.report(exact(node, str(self.service.ledger.node_states.changes), name, self.names.__getitem__))
            self.service.put_node(name)
        self.service.ledger.tick()

    async def end(self, uid: str, node: str) -> None:
        await self.api.request("DELETE", f"{PODS}/{self.names[uid][1]}", body=b'{"gracePeriodSeconds": 0}')
        self.nodes[node].remove(uid)
        self.service.ledger.drop_pod(uid)
        self.report()

    def take(self, node: str, cpu: str) -> Kubelet:
        self.nodes[node].admit(pods.decode(json.dumps(pod("aside", cpu)).encode()))
        return self.nodes[node]

    def defragmenter(self, **settings: Any) -> Defragmenter:
        settings = {"enabled": True, "shapes": (SHAPE,), **settings}
        service = self.service
        return Defragmenter(
            self.api,
            service.ledger,
            service.answers,
            service.view,
            self.budgets,
            Settings(**settings),
            service.clock,
            lambda: self.now,
        )

    @property
    def there(self) -> set[str]:
        metadata = [pod["metadata"] for pod in self.server.store.objects("pods")]
        return {item["name"] for item in metadata if not item.get("deletionTimestamp")}

    @property
    def moves(self) -> list[tuple[str, str]]:
        events = self.server.store.objects("events.events.k8s.io")
        return [(event["regarding"]["name"], event["reason"]) for event in events]


@pytest.fixture
async def cluster(server: ApiServer, api: Api) -> Cluster:
    cluster = Cluster(server, api)
    aside = cluster.take("n1", "3")
    await cluster.run("small", "1", "n1")
    aside.remove("uid-aside")
    await cluster.run("other", "2", "n2")
    cluster.report()
    return cluster


async def looked(defragmenter: Defragmenter) -> None:
    """Tries all due shapes once."""
    for shape in list(defragmenter.due().values()):
        await defragmenter._look(shape)


async def test_the_blocking_pod_is_evicted_with_an_event(cluster: Cluster) -> None:
    async with running(cluster.defragmenter().run()):
        await assert_eventually(lambda: cluster.there == {"other"})
        await assert_eventually(lambda: cluster.moves == [("small", "Moved")])
    assert cluster.service.ledger.events["evicted_for_room"] == 1
    (event,) = cluster.server.store.objects("events.events.k8s.io")
    assert event["note"].startswith("The pod was evicted so that n1 has cpu 4, memory 1Gi free in one piece")
    assert event["note"].endswith("The evicted pod fits on n2.")


async def test_no_pod_is_moved_while_capacity_is_free(cluster: Cluster) -> None:
    await looked(cluster.defragmenter(shapes=({**SHAPE, "count": 1},)))
    assert cluster.there == {"small", "other"}


async def test_nodes_that_kube_scheduler_excludes_do_not_crowd_out_free_capacity(cluster: Cluster) -> None:
    # The evicted pod would fit on n3.
    nearly_full = kubelet()
    for name in ("left", "right"):
        document = pod(name, "3", node="n3", phase="Running", startTime=STARTED)
        assert nearly_full.admit(pods.decode(json.dumps(document).encode())).admitted
        cluster.service.put(document, is_news=False)
    cluster.service.report(exact(nearly_full, "1", "n3"))
    cluster.service.put_node("n3")
    for number in range(200):
        cluster.service.report(exact(kubelet(), "1", f"cordoned-{number}"))
        cluster.service.put_node(f"cordoned-{number}", {"unschedulable": True})
    defragmenter = cluster.defragmenter(shapes=({**SHAPE, "count": 1},))
    defragmenter._random.seed(1)
    await looked(defragmenter)
    assert cluster.there == {"small", "other"}


async def test_dry_run_writes_an_event_once(cluster: Cluster) -> None:
    defragmenter = cluster.defragmenter(dry_run=True)
    for _ in range(3):
        await looked(defragmenter)
        cluster.service.clock.now += 60
    assert cluster.there == {"small", "other"}
    assert cluster.moves == [("small", "WouldMove")]


async def test_outside_of_quiet_hours_no_pod_is_moved(cluster: Cluster) -> None:
    defragmenter = cluster.defragmenter(quiet_hours=("22:00-06:00",))
    cluster.now = NIGHT.replace(hour=12)
    await looked(defragmenter)
    assert cluster.there == {"small", "other"}
    cluster.now = NIGHT
    await looked(defragmenter)
    assert cluster.there == {"other"}


async def test_a_budget_is_respected(cluster: Cluster) -> None:
    document = create_budget(cluster.server, "small", 0)
    # The watch has not delivered the budget: the API server refuses the eviction.
    defragmenter = cluster.defragmenter()
    await looked(defragmenter)
    assert cluster.there == {"small", "other"}
    cluster.budgets.apply("ADDED", decode_budget(document))
    cluster.service.clock.now += 60
    await looked(defragmenter)
    assert cluster.there == {"small", "other"}
    assert cluster.moves == []


async def test_a_pod_without_a_controller_is_not_moved(server: ApiServer, api: Api) -> None:
    cluster = Cluster(server, api)
    aside = cluster.take("n1", "3")
    await cluster.run("small", "1", "n1", owned=False)
    aside.remove("uid-aside")
    await cluster.run("other", "2", "n2")
    cluster.report()
    await looked(cluster.defragmenter())
    assert cluster.there == {"small", "other"}


async def test_evictions_are_bounded_per_hour_and_one_at_a_time(cluster: Cluster) -> None:
    defragmenter = cluster.defragmenter(per_hour=1)
    await looked(defragmenter)
    assert cluster.there == {"other"}
    cluster.service.clock.now += 60
    assert not defragmenter.due()
    cluster.service.clock.now += 3600
    assert defragmenter.due()


async def test_it_stops_where_it_does_not_help(cluster: Cluster) -> None:
    """The controller's new pod is placed where the evicted pod was, again and again."""
    defragmenter = cluster.defragmenter(per_hour=100)
    for _ in range(30):
        await looked(defragmenter)
        cluster.service.clock.now += 60
        if "small" not in cluster.there:
            uid = next(uid for uid, (_, name) in cluster.names.items() if name == "small")
            await cluster.end(uid, "n1")
            del cluster.names[uid]
            aside = cluster.take("n1", "3")
            await cluster.run("small", "1", "n1")
            aside.remove("uid-aside")
            cluster.report()
    assert cluster.service.ledger.events["evicted_for_room"] == 3
