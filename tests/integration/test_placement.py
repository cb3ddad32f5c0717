"""Placing gated pods with an API server that refuses, fails and is slow: which writes happen, which bookings stay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_objects import PODS, create_pod, running
from daemons import assert_eventually
from ledger_check import check_ledger
from placing import GATED, Placing
from sandbox.apiserver import ApiServer
from topowise.kube.api import MERGE_PATCH, Api
from topowise.kube.reflector import Reflector
from topowise.placement import GATE, GROUP, GROUP_SIZE, PLACED_ON
from topowise_scheduler.controllers.placement import Placer
from topowise_scheduler.ledger.watch import _Pods
from topowise_scheduler.report.predicted_annotation import numa_nodes

pytestmark = pytest.mark.own_time


class Cluster(Placing):
    """Nodes in the ledger; pods on the API server, and a watch of them."""

    def __init__(self, api: Api, *free: str, **options: Any) -> None:
        super().__init__(*free, **options)
        self.api = api
        watch = _Pods(self.ledger, lambda: iter(()))
        self.reflector = Reflector(api, "/api/v1/pods", self.service.records.decode, watch)
        self.placer = Placer(api, self.ledger, self.decisions, settles=False, not_ready=self._not_ready)

    def _not_ready(self) -> str | None:
        return None if self.reflector.synced else "not yet listed"

    async def read(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(await self.api.request("GET", f"{PODS}/{name}"))
        return document

    async def node_of(self, name: str) -> str | None:
        """The node in the annotation of a pod, None while the pod is gated."""
        pod = await self.read(name)
        return None if "schedulingGates" in pod["spec"] else (pod["metadata"]["annotations"] or {})[PLACED_ON]

    async def are_placed(self, **expected: str) -> bool:
        return {name: await self.node_of(name) for name in expected} == expected


def create(server: ApiServer, name: str, cpu: str = "3", **fields: Any) -> None:
    create_pod(server, name, cpu, **{**GATED, **fields})


@pytest.fixture
async def cluster(api: Api) -> AsyncIterator[Cluster]:
    """Two nodes, and a watch that runs."""
    cluster = Cluster(api, "8", "8")
    async with running(cluster.reflector.run()):
        yield cluster
        check_ledger(cluster.ledger)


@pytest.mark.parametrize("form", ["required", "nominated"])
async def test_pods_are_placed_by_as_few_writes_as_the_form_needs(server: ApiServer, api: Api, form: Any) -> None:
    cluster = Cluster(api, "8", "8", form=form)
    for name in "abc":
        create(server, name)
    async with running(cluster.reflector.run(), cluster.placer.run()):
        await assert_eventually(lambda: cluster.are_placed(a="n1", b="n1", c="n2"))
        await assert_eventually(lambda: all(placement.is_seen for placement in cluster.ledger.placements.placed()))
    writes = [entry.request.path for entry in server.log() if entry.request.method == "PATCH"]
    assert sorted(writes) == sorted(
        f"{PODS}/{name}{part}" for name in "abc" for part in (("",) if form == "required" else ("", "/status"))
    )
    pod = await cluster.read("a")
    assert pod["status"].get("nominatedNodeName") == (None if form == "required" else "n1")
    assert ("affinity" in pod["spec"]) == (form == "required")
    # The pod itself tells where its kubelet is expected to put it, as after a bind by the extender.
    assert numa_nodes(pod["metadata"]["annotations"]) == ((0,) if form == "required" else None)


@pytest.mark.parametrize("status", [403, 429, 500, 503])
async def test_a_server_that_refuses_for_a_while(
    server: ApiServer, cluster: Cluster, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing server may have written the placement; a server that refuses, or says "later", has not."""
    refusal = server.levers.answer(status, method="PATCH", path=f"{PODS}/*", retry_after=1)
    create(server, "a")
    async with running(cluster.placer.run()):
        await assert_eventually(lambda: cluster.ledger.events["placement_failed"] >= 1)
        if status >= 500:
            assert cluster.ledger.placements.placed_count == 1
        server.levers.release(refusal.id)
        # A refused pod has no turn for 30 s, and a write without an answer ends after 15.
        cluster.clock.now += 0 if status == 429 else 31
        cluster.ledger.tick()
        await assert_eventually(lambda: cluster.are_placed(a="n1"), within=20.0)
    assert len([record for record in caplog.records if record.getMessage() == "Cannot place a pod"]) == 1


async def test_an_edit_between_decision_and_write_leads_to_another_decision(
    server: ApiServer, cluster: Cluster
) -> None:
    create(server, "a")
    await assert_eventually(lambda: cluster.ledger.placements.gated_count == 1)
    (write,) = cluster.next()
    body = json.dumps({"metadata": {"labels": {"edited": "meanwhile"}}}).encode()
    await cluster.api.request("PATCH", f"{PODS}/a", body=body, content_type=MERGE_PATCH)
    await cluster.placer._writers.acquire()
    await cluster.placer._write(write)
    assert cluster.ledger.events["placement_conflict"] == 1
    async with running(cluster.placer.run()):
        await assert_eventually(lambda: cluster.are_placed(a="n1"))


async def test_a_gate_that_somebody_removes_leaves_nothing_booked(server: ApiServer, cluster: Cluster) -> None:
    create(server, "a", "9")
    async with running(cluster.placer.run()):
        await assert_eventually(lambda: set(cluster.ledger.waiting) != set())
        body = json.dumps({"spec": {"schedulingGates": None}}).encode()
        await cluster.api.request("PATCH", f"{PODS}/a", body=body, content_type=MERGE_PATCH)
        await assert_eventually(lambda: not cluster.ledger.placements.gated_count)
    assert not dict(cluster.ledger.pods)


async def test_a_placed_pod_that_is_deleted_makes_room(server: ApiServer, cluster: Cluster) -> None:
    for name in "ab":
        create(server, name, "8")
    async with running(cluster.placer.run()):
        await assert_eventually(lambda: cluster.are_placed(a="n1", b="n2"))
        create(server, "c", "8")
        await cluster.api.request("DELETE", f"{PODS}/a", query={"gracePeriodSeconds": "0"})
        await assert_eventually(lambda: cluster.are_placed(c="n1"))


async def test_two_replicas_that_both_lead_place_each_pod_once(server: ApiServer, cluster: Cluster) -> None:
    """A lease that has expired unseen: each write names a version of its pod, so the second write is refused."""
    rival = Cluster(cluster.api, "8", "8")
    names = [f"p{number}" for number in range(8)]
    for name in names:
        create(server, name, "2")
    async with running(rival.reflector.run(), cluster.placer.run(), rival.placer.run()):

        async def are_placed() -> bool:
            return None not in [await cluster.node_of(name) for name in names]

        await assert_eventually(are_placed)
        await assert_eventually(lambda: dict(cluster.ledger.pods) == dict(rival.ledger.pods), within=20.0)
    written = sum(leader.ledger.events["placement_written"] for leader in (cluster, rival))
    assert written == len(names)
    check_ledger(rival.ledger)


async def test_a_pod_whose_other_gate_is_unknown_gets_an_event_and_its_turn_later(
    server: ApiServer, cluster: Cluster
) -> None:
    create(server, "a", schedulingGates=[{"name": GATE}, {"name": "example.com/last"}])
    create(server, "b", schedulingGates=[{"name": GATE}, {"name": "kueue.x-k8s.io/admission"}])

    def told() -> list[str]:
        return [event["regarding"]["name"] for event in server.store.objects("events.events.k8s.io")]

    async with running(cluster.placer.run()):
        await assert_eventually(lambda: len(cluster.ledger.placements.gated_by_others) == 2)
        await asyncio.sleep(0)
        cluster.clock.now += 31
        await assert_eventually(lambda: told() == ["a"])
        body = json.dumps({"spec": {"schedulingGates": [{"name": GATE}]}}).encode()
        await cluster.api.request("PATCH", f"{PODS}/a", body=body, content_type=MERGE_PATCH)
        await assert_eventually(lambda: cluster.are_placed(a="n1"))


async def test_a_group_is_written_member_by_member_with_one_decision(server: ApiServer, cluster: Cluster) -> None:
    fields = {"labels": {GROUP: "g"}, "annotations": {GROUP_SIZE: "4"}}
    for name in "abc":
        create(server, name, "4", **fields)
    async with running(cluster.placer.run()):
        create(server, "single", "8")
        await assert_eventually(lambda: cluster.are_placed(single="n1"))
        create(server, "d", "4", **fields)
        await cluster.api.request("DELETE", f"{PODS}/single", query={"gracePeriodSeconds": "0"})
        await assert_eventually(lambda: cluster.are_placed(a="n1", b="n1", c="n2", d="n2"))
    decisions = {
        (await cluster.read(name))["metadata"]["annotations"]["topowise.io/placement-decision"] for name in "abcd"
    }
    assert len(decisions) == 1
