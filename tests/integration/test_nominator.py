"""Nominating ahead with an API server that refuses, fails and is slow: which writes happen, which bookings stay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_objects import PODS, create_pod, running
from daemons import assert_eventually
from ledger_check import check_ledger
from nominating import NAME, Nominating
from sandbox.apiserver import ApiServer
from scheduling import pod
from topowise.kube.api import Api
from topowise.kube.reflector import Reflector
from topowise_scheduler.controllers.nominator import Nominator
from topowise_scheduler.ledger.pods.records import NOMINATED_ANNOTATION
from topowise_scheduler.ledger.watch import _Pods

pytestmark = pytest.mark.own_time


class Cluster(Nominating):
    """Nodes of eight CPUs in the ledger; pods on the API server, and a watch of them."""

    def __init__(self, api: Api, *free: str) -> None:
        super().__init__(*free)
        self.api = api
        watch = _Pods(self.ledger, lambda: iter(()))
        self.reflector = Reflector(api, "/api/v1/pods", self.service.records.decode, watch)
        self.nominator = Nominator(api, self.ledger, self.decisions, writes=4, not_ready=self._not_ready)

    def _not_ready(self) -> str | None:
        return None if self.reflector.synced else "not yet listed"

    async def read(self, name: str) -> tuple[str, str]:
        """The pod's nominated node and our annotation."""
        pod: dict[str, Any] = json.loads(await self.api.request("GET", f"{PODS}/{name}"))
        annotations = pod["metadata"].get("annotations") or {}
        return pod["status"].get("nominatedNodeName", ""), annotations.get(NOMINATED_ANNOTATION, "")


def create(server: ApiServer, name: str, cpu: str = "3", **fields: Any) -> None:
    create_pod(server, name, cpu, schedulerName=NAME, **fields)


@pytest.fixture
async def cluster(api: Api) -> AsyncIterator[Cluster]:
    """Two nodes, and a watch that runs."""
    cluster = Cluster(api, "8", "8")
    async with running(cluster.reflector.run()):
        yield cluster


async def nominated(cluster: Cluster, **expected: str) -> bool:
    return all([await cluster.read(name) == (node, node) for name, node in expected.items()])


async def test_pods_are_nominated_and_bookings_equal_the_written_nominations(
    server: ApiServer, cluster: Cluster
) -> None:
    for name in "abc":
        create(server, name)
    async with running(cluster.nominator.run()):
        await assert_eventually(lambda: nominated(cluster, a="n1", b="n1", c="n2"))
    check_ledger(cluster.ledger)
    assert len(cluster.ledger.nominations) == 3
    writes = [entry.request.path for entry in server.log() if entry.request.method == "PATCH"]
    assert sorted(writes) == [f"{PODS}/{name}/status" for name in "abc"]


async def test_another_nomination_is_not_overwritten(server: ApiServer, cluster: Cluster) -> None:
    create(server, "a")
    await assert_eventually(lambda: len(cluster.ledger.queue) == 1)
    write = cluster.decisions.next()
    assert write is not None
    body = json.dumps({"status": {"nominatedNodeName": "n2"}}).encode()
    path = f"{PODS}/a/status"
    await cluster.api.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    await cluster.nominator._writers.acquire()
    await cluster.nominator._write(write)
    assert await cluster.read("a") == ("n2", "")
    await assert_eventually(lambda: cluster.ledger.pods.of(write.record.uid).nominated == "n2")
    assert cluster.ledger.events["nomination_conflict"] == 1
    assert not len(cluster.ledger.nominations)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_refuses_for_a_while(server: ApiServer, cluster: Cluster, status: int) -> None:
    refusal = server.levers.answer(status, method="PATCH", path=f"{PODS}/*/status", retry_after=1)
    create(server, "a")
    async with running(cluster.nominator.run()):
        await assert_eventually(lambda: cluster.ledger.events["nomination_failed"] >= 1)
        # A failing server may have written the nomination; a server that answers "later" has not.
        assert len(cluster.ledger.nominations) == (0 if status == 429 else 1)
        server.levers.release(refusal.id)
        if status != 429:
            cluster.clock.now += 16
            cluster.ledger.tick()
        await assert_eventually(lambda: nominated(cluster, a="n1"), within=20.0)
    check_ledger(cluster.ledger)


async def test_without_the_right_no_pod_is_booked_and_one_line_says_so(
    server: ApiServer, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    server.levers.answer(403, method="PATCH", path=f"{PODS}/*/status")
    create(server, "a")
    create(server, "b")
    async with running(cluster.nominator.run()):
        await assert_eventually(lambda: cluster.ledger.events["nomination_failed"] == 2, within=20.0)
    assert cluster.nominated() == {}
    assert len([record for record in caplog.records if record.getMessage() == "Cannot nominate a pod"]) == 1


async def test_a_pod_that_is_deleted_leaves_nothing(server: ApiServer, cluster: Cluster) -> None:
    create(server, "a", "8")
    async with running(cluster.nominator.run()):
        await assert_eventually(lambda: nominated(cluster, a="n1"))
        await cluster.api.request("DELETE", f"{PODS}/a", query={"gracePeriodSeconds": "0"})
        await assert_eventually(lambda: cluster.nominated() == {})
        create(server, "b", "8")
        await assert_eventually(lambda: nominated(cluster, b="n1"))


async def test_a_new_process_takes_over_the_nominations_of_a_killed_process(
    server: ApiServer, cluster: Cluster
) -> None:
    create(server, "a", "8")
    async with running(cluster.nominator.run()):
        await assert_eventually(lambda: nominated(cluster, a="n1"))
    successor = Cluster(cluster.api, "8", "8")
    successor.node("n1", {"unschedulable": True})
    async with running(successor.reflector.run(), successor.nominator.run()):
        await assert_eventually(lambda: nominated(successor, a="n2"))
        await assert_eventually(lambda: list(cluster.nominated().values()) == ["n2"])
    check_ledger(successor.ledger)
    check_ledger(cluster.ledger)


async def test_a_nomination_without_a_fitting_node_is_withdrawn(server: ApiServer, cluster: Cluster) -> None:
    create(server, "a", "8")
    async with running(cluster.nominator.run()):
        await assert_eventually(lambda: nominated(cluster, a="n1"))
        cluster.node("n2", {"unschedulable": True})
        cluster.node("n1", {"unschedulable": True})
        await assert_eventually(lambda: nominated(cluster, a=""))
    assert cluster.nominated() == {}


async def test_two_replicas_that_both_lead_agree_on_the_written_nominations(
    server: ApiServer, cluster: Cluster
) -> None:
    """A lease that has expired unseen: each write carries a resource version, so the second write is refused."""
    rival = Cluster(cluster.api, "8", "8")
    async with running(rival.reflector.run()):
        names = [f"p{number}" for number in range(10)]
        for name in names:
            create(server, name, "1")
        async with running(cluster.nominator.run(), rival.nominator.run()):
            await assert_eventually(lambda: all_nominated(cluster, names))
            written = {name: (await cluster.read(name))[0] for name in names}
            await assert_eventually(lambda: said(cluster) == said(rival) == written)
    written_times, moved_times = (
        sum(leader.ledger.events[f"nomination_{event}"] for leader in (cluster, rival))
        for event in ("written", "moved")
    )
    # A slow leader may see its rival's write after its own decision for the same capacity: it moves its pod.
    assert written_times - moved_times == len(names)
    check_ledger(cluster.ledger)
    check_ledger(rival.ledger)


async def test_a_replica_that_does_not_lead_books_what_the_leader_nominates(
    server: ApiServer, cluster: Cluster
) -> None:
    """The second replica answers with the same nodes."""
    replica = Cluster(cluster.api, "8", "8")
    create(server, "a", "8")
    async with running(replica.reflector.run(), cluster.nominator.run()):
        await assert_eventually(lambda: nominated(cluster, a="n1"))
        await assert_eventually(lambda: said(replica) == {"a": "n1"})
    assert replica.service.fits(pod("b", "1"), "n1", "n2") == ["n2"]


async def all_nominated(cluster: Cluster, names: list[str]) -> bool:
    return all([(await cluster.read(name))[0] for name in names])


def said(cluster: Cluster) -> dict[str, str]:
    """Where pods are nominated by name, as the ledger believes."""
    held = cluster.ledger.nominations
    return {nomination.record.name: nomination.node for nomination in held._nominations.values()}
