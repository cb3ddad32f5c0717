"""The sandbox's kube-scheduler against the embedded API server, an extender with scripted answers, hollow nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from daemons import assert_eventually, plain
from sandbox import machines
from sandbox.apiserver import ApiServer
from sandbox.hollow import Fleet, Reporting
from sandbox.kubescheduler import Attempt, Extender, KubeScheduler
from sandbox.kubescheduler.events import EventWriter
from topowise.kube.api import MERGE_PATCH, Api
from topowise.kubeletconfig import KubeletConfiguration

Json = dict[str, Any]
REFUSAL = "NUMA: no room"


class StandIn:
    """Lets everything pass and binds through the API; a test changes what it says."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.calls: list[tuple[str, Json]] = []
        self.refused: set[str] = set()
        self.bind_error = ""
        self.bind_seconds = 0.0
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        verb, body = request.path[1:], await request.json()
        self.calls.append((verb, body))
        return web.json_response(await getattr(self, verb)(body), status=self.status)

    async def filter(self, body: Json) -> Json:
        node_names = [name for name in body["NodeNames"] if name not in self.refused]
        return {"NodeNames": node_names, "FailedNodes": dict.fromkeys(self.refused & set(body["NodeNames"]), REFUSAL)}

    async def prioritize(self, body: Json) -> list[Json]:
        return [{"Host": name, "Score": 10 if name == "n2" else 0} for name in body["NodeNames"]]

    async def preempt(self, body: Json) -> Json:
        return {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]}

    async def bind(self, body: Json) -> Json:
        await asyncio.sleep(self.bind_seconds)
        if self.bind_error:
            return {"Error": self.bind_error}
        target = {"metadata": {"name": body["PodName"]}, "target": {"kind": "Node", "name": body["Node"]}}
        async with aiohttp.ClientSession() as session:
            url = f"{self._server.url}/api/v1/namespaces/default/pods/{body['PodName']}/binding"
            async with session.post(url, json=target) as response:
                return {"Error": "" if response.status < 300 else await response.text()}

    def verbs(self, pod: str = "") -> list[str]:
        named = ((verb, body.get("PodName") or body["Pod"]["metadata"]["name"]) for verb, body in self.calls)
        return [verb for verb, name in named if name == pod or not pod]


class Cluster:
    def __init__(self, server: ApiServer, stand_in: StandIn, scheduler: KubeScheduler, fleet: Fleet) -> None:
        self.server = server
        self.extender = stand_in
        self.scheduler = scheduler
        self.fleet = fleet
        self.attempts: list[Attempt] = []

    def make(self, name: str, cpu: str = "1", **spec: Any) -> None:
        amounts = {"cpu": cpu, "memory": "1Gi"}
        container = {"name": "c", "image": "i:1", "resources": {"requests": amounts, "limits": amounts}}
        self.server.create(
            "pods", {"metadata": {"name": name}, "spec": {"schedulerName": "s", "containers": [container], **spec}}
        )

    def pod(self, name: str) -> Json:
        return next((pod for pod in self.server.store.objects("pods") if pod["metadata"]["name"] == name), {})

    def condition(self, name: str) -> Json:
        conditions = self.pod(name).get("status", {}).get("conditions", [])
        return next((entry for entry in conditions if entry["type"] == "PodScheduled"), {})

    def is_running(self, name: str) -> bool:
        return bool(self.pod(name).get("status", {}).get("phase") == "Running")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    from daemons import CRD

    async with ApiServer() as api_server:
        api_server.install_crds(CRD)
        yield api_server


@asynccontextmanager
async def serving(stand_in: StandIn) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{verb}", stand_in.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def cluster(server: ApiServer) -> AsyncIterator[Cluster]:
    """Two nodes of 8 CPUs less a reserved core."""
    zones = tuple(machines.Node(zone, 16 << 30, socket=zone, cores=2) for zone in (0, 1))
    machine = machines.Machine(zones, ((10, 21), (21, 10)))
    config = KubeletConfiguration(cpuManagerPolicy="static", reservedSystemCPUs="0,4")
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(Api(plain(server), "test", timeout=5))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        fleet = Fleet(api, reporting=Reporting(wait=(0.01, 0.01)))
        for name in ("n1", "n2"):
            fleet.add(name, machine, config)
        await stack.enter_async_context(fleet)
        stand_in = StandIn(server)
        prefix = await stack.enter_async_context(serving(stand_in))
        attempts: list[Attempt] = []
        tells = {"tried": attempts.append, "profiles": ("other",), "events": EventWriter(api, "s")}
        scheduler = KubeScheduler(api, "s", Extender(session, prefix), **tells)
        cluster = Cluster(server, stand_in, scheduler, fleet)
        cluster.attempts = attempts
        task = asyncio.create_task(scheduler.run())
        yield cluster
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def poke(cluster: Cluster, pod: str, when: str) -> None:
    async with Api(plain(cluster.server), "poke") as api:
        body = json.dumps({"metadata": {"annotations": {"topowise.io/requeued": when}}}).encode()
        await api.request("PATCH", f"/api/v1/namespaces/default/pods/{pod}", body=body, content_type=MERGE_PATCH)


def events_of(cluster: Cluster, pod: str) -> list[tuple[str, str, int]]:
    events = cluster.server.store.objects("events")
    return [
        (event["reason"], event["message"], event["count"])
        for event in events
        if event["involvedObject"]["name"] == pod
    ]


async def test_a_waiting_pod_gets_an_event_and_a_bound_pod_another(cluster: Cluster) -> None:
    cluster.extender.refused = {"n1", "n2"}
    cluster.make("p", schedulerName="other")
    await assert_eventually(lambda: bool(events_of(cluster, "p")))
    await poke(cluster, "p", "1")
    await assert_eventually(lambda: events_of(cluster, "p")[0][2] > 1)
    ((reason, message, _),) = events_of(cluster, "p")
    assert (reason, message) == ("FailedScheduling", cluster.condition("p")["message"])
    cluster.extender.refused = set()
    await poke(cluster, "p", "2")
    await assert_eventually(lambda: len(events_of(cluster, "p")) == 2)
    assert ("Scheduled", "Successfully assigned default/p to n2", 1) in events_of(cluster, "p")


async def test_a_pod_is_filtered_scored_bound_and_runs(cluster: Cluster) -> None:
    cluster.make("p")
    await assert_eventually(lambda: cluster.is_running("p"))
    assert cluster.pod("p")["spec"]["nodeName"] == "n2"
    assert cluster.extender.verbs() == ["filter", "prioritize", "bind"]
    _, request = cluster.extender.calls[0]
    assert request["Nodes"] is None
    assert sorted(request["NodeNames"]) == ["n1", "n2"]
    assert request["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1"


async def test_one_node_left_is_not_scored_and_none_left_is_not_asked_about(cluster: Cluster) -> None:
    cluster.extender.refused = {"n1"}
    cluster.make("p")
    cluster.make("giant", cpu="64")
    await assert_eventually(lambda: cluster.is_running("p") and cluster.condition("giant"))
    assert cluster.extender.verbs("p") == ["filter", "bind"]
    assert cluster.extender.verbs("giant") == []
    assert cluster.condition("giant")["message"] == (
        "0/2 nodes are available: 2 Insufficient cpu. "
        "no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )


async def test_a_constant_refusal_costs_one_extra_attempt_then_sleeps_until_an_event(cluster: Cluster) -> None:
    cluster.extender.refused = {"n1", "n2"}
    cluster.make("p")
    await assert_eventually(lambda: cluster.condition("p").get("reason") == "Unschedulable")
    await asyncio.sleep(0.5)
    assert cluster.condition("p")["message"].startswith(
        f"0/2 nodes are available: 2 {REFUSAL}. no new claims to deallocate, preemption: "
    )
    assert cluster.extender.verbs("p") == ["filter", "filter"]
    cluster.extender.refused = set()
    await poke(cluster, "p", "now")
    await assert_eventually(lambda: cluster.is_running("p"))


async def test_later_pods_are_decided_while_a_bind_is_under_way(cluster: Cluster) -> None:
    cluster.extender.bind_seconds = 0.3
    for number in range(3):
        cluster.make(f"p{number}", cpu="2")
    await assert_eventually(lambda: len(cluster.attempts) == 3)
    assert cluster.scheduler.counts["bound"] == 0
    # Assumed pods count: 6 CPUs a node.
    cluster.make("large", cpu="6")
    await assert_eventually(lambda: cluster.is_running("large"))
    assert cluster.pod("large")["spec"]["nodeName"] == "n1"
    assert all(cluster.pod(f"p{number}")["spec"]["nodeName"] == "n2" for number in range(3))


@pytest.mark.parametrize("way", ["error", "status"])
async def test_a_failed_bind_or_filter_is_tried_again_after_a_second(cluster: Cluster, way: str) -> None:
    if way == "error":
        cluster.extender.bind_error = "conflict"
    else:
        cluster.extender.status = 500
    cluster.make("p")
    await assert_eventually(lambda: cluster.condition("p").get("reason") == "SchedulerError")
    if way == "error":
        assert cluster.condition("p")["message"] == "conflict"
    cluster.extender.bind_error, cluster.extender.status = "", 200
    started = asyncio.get_running_loop().time()
    await assert_eventually(lambda: cluster.is_running("p"))
    assert asyncio.get_running_loop().time() - started > 0.5


async def test_victims_are_evicted_and_the_pod_goes_where_it_is_nominated(cluster: Cluster) -> None:
    for number in range(2):
        cluster.make(f"low{number}", cpu="6")
    await assert_eventually(lambda: all(cluster.is_running(f"low{number}") for number in range(2)))
    cluster.make("vip", cpu="6", priority=5)
    await assert_eventually(lambda: cluster.is_running("vip"))
    assert cluster.extender.verbs("vip") == ["preempt", "filter", "bind"]
    survivors = [name for name in ("low0", "low1") if cluster.is_running(name)]
    assert len(survivors) == 1
    assert cluster.pod("vip")["spec"]["nodeName"] != cluster.pod(survivors[0])["spec"]["nodeName"]


async def test_a_deleted_pod_frees_resources_for_a_waiting_pod(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        cluster.make(name, cpu="6")
    await assert_eventually(lambda: sum(cluster.is_running(name) for name in "abc") == 2)
    (waiting,) = [name for name in "abc" if not cluster.is_running(name)]
    async with Api(plain(cluster.server), "user") as api:
        freed = next(name for name in "abc" if name != waiting)
        await api.request("DELETE", f"/api/v1/namespaces/default/pods/{freed}")
    await assert_eventually(lambda: cluster.is_running(waiting))
    assert not cluster.fleet.refusals


async def test_a_cordoned_node_gets_pods_again_after_the_uncordon(cluster: Cluster) -> None:
    async with Api(plain(cluster.server), "user") as api:

        async def cordon(name: str, *, is_cordoned: bool) -> None:
            body = json.dumps({"spec": {"unschedulable": is_cordoned}}).encode()
            await api.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)

        for name in ("n1", "n2"):
            await cordon(name, is_cordoned=True)
        await assert_eventually(
            lambda: all(info.object and info.object.is_cordoned for info in cluster.scheduler._cache.nodes())
        )
        cluster.make("p")
        await assert_eventually(lambda: bool(cluster.condition("p")))
        assert cluster.condition("p")["message"] == (
            "0/2 nodes are available: 2 node(s) were unschedulable. no new claims to deallocate, "
            "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        )
        await cordon("n1", is_cordoned=False)
        await assert_eventually(lambda: cluster.is_running("p"))
    assert cluster.pod("p")["spec"]["nodeName"] == "n1"
    assert cluster.extender.verbs() == ["filter", "bind"]


async def test_the_extender_sees_the_pod_as_the_informer_has_it(cluster: Cluster) -> None:
    cluster.make("p")
    await assert_eventually(lambda: cluster.is_running("p"))
    _, request = cluster.extender.calls[0]
    document = json.loads(json.dumps(cluster.pod("p")))
    assert request["Pod"]["metadata"]["uid"] == document["metadata"]["uid"]
    assert request["Pod"]["status"]["qosClass"] == "Guaranteed"
