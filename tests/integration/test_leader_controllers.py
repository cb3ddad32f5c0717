"""The leader's controllers: start-up taints of reported nodes, and pods that a kubelet has refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api_objects import PODS, create_with_status, running
from daemons import assert_eventually
from sandbox.apiserver import ApiServer
from scheduling import WAITS, Service, exact, kubelet, pod
from topowise import nrt
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise_scheduler.controllers import controller
from topowise_scheduler.controllers.refused_pods import RefusedPods
from topowise_scheduler.controllers.startup_taint import StartupTaint
from topowise_scheduler.controllers.unused_reports import UnusedReports
from topowise_scheduler.controllers.waiting_pods import WaitingPods
from topowise_scheduler.explain.waiting import waiting_pod
from topowise_scheduler.explain.waiting_texts import text
from topowise_scheduler.ledger.nodes import STARTUP_TAINT, Nodes

pytestmark = pytest.mark.own_time

OURS = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
OTHER = {"key": "example.com/other", "value": "x", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


@pytest.fixture
def service() -> Service:
    return Service("TightFit")


def join(server: ApiServer, nodes: Nodes, name: str, *taints: dict[str, str]) -> None:
    """Registers a node, and delivers its watch event."""
    node = server.create("nodes", {"metadata": {"name": name}, "spec": {"taints": list(taints)}})
    nodes.apply("ADDED", nodes.decode(json.dumps(node).encode()))


async def taints(api: Api, name: str) -> list[dict[str, Any]]:
    node: dict[str, Any] = json.loads(await api.request("GET", f"/api/v1/nodes/{name}"))
    return list(node["spec"].get("taints") or [])


async def test_a_start_up_taint_goes_with_the_first_report_and_other_taints_stay(
    server: ApiServer, api: Api, service: Service
) -> None:
    nodes = Nodes()
    join(server, nodes, "n1", OTHER, OURS)
    join(server, nodes, "n2", OURS)
    join(server, nodes, "n3", OTHER)
    async with running(StartupTaint(api, service.ledger, nodes).run()):
        await asyncio.sleep(0.7)
        assert OURS in await taints(api, "n1")
        service.report(exact(kubelet(), name="n1"))
        service.report(exact(kubelet(), name="n3"))
        await assert_eventually(lambda: _has_gone(api, "n1"))
    assert await taints(api, "n1") == [OTHER]
    assert await taints(api, "n2") == [OURS]
    assert await taints(api, "n3") == [OTHER]
    written = {entry.request.path for entry in server.log() if entry.request.method == "PATCH"}
    assert written == {"/api/v1/nodes/n1"}
    assert service.ledger.events["startup_taint_removed"] == 1


async def _has_gone(api: Api, name: str) -> bool:
    return OURS not in await taints(api, name)


async def test_a_taint_that_comes_in_between_is_not_lost(server: ApiServer, api: Api, service: Service) -> None:
    nodes = Nodes()
    join(server, nodes, "n1", OURS)
    service.report(exact(kubelet(), name="n1"))
    conflict = server.levers.answer(409, method="PATCH", path="/api/v1/nodes/n1", count=1)
    async with running(StartupTaint(api, service.ledger, nodes).run()):
        await assert_eventually(lambda: conflict.hits == 1)
        body = json.dumps({"spec": {"taints": [OURS, OTHER]}}).encode()
        await api.request("PATCH", "/api/v1/nodes/n1", body=body, content_type="application/merge-patch+json")
        await assert_eventually(lambda: _has_gone(api, "n1"))
    assert await taints(api, "n1") == [OTHER]


@pytest.mark.usefixtures("server")
async def test_a_node_whose_report_is_not_confirmed_keeps_its_taint(api: Api, service: Service) -> None:
    nodes = Nodes()
    document = {"metadata": {"name": "n1"}, "spec": {"taints": [OURS]}}
    nodes.apply("ADDED", nodes.decode(json.dumps(document).encode()))
    service.report(exact(kubelet(), name="n1"))
    service.ledger.gates.unconfirmed.put("n1", ("cpu-manager",))
    controller = StartupTaint(api, service.ledger, nodes)
    assert not controller.due()
    service.ledger.gates.unconfirmed.put("n1", ())
    assert list(controller.due()) == ["n1"]
    nodes.apply("DELETED", nodes.decode(json.dumps(document).encode()))
    assert not controller.due()


async def refuse(
    api: Api, service: Service, name: str, *, reason: str = "TopologyAffinityError", **metadata: Any
) -> str:
    """A pod that its kubelet has refused, on the API server and in the ledger. Returns its uid."""
    document = pod(name, "2", node="n1")
    document["metadata"] |= metadata
    status = {"phase": "Failed", "reason": reason, "message": "Resources cannot be allocated"}
    failed = await create_with_status(api, document, status)
    service.put(failed)
    return str(failed["metadata"]["uid"])


OWNED = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}]
}


async def test_a_refused_pod_is_deleted_after_an_event_if_a_controller_recreates_it(
    server: ApiServer, api: Api, service: Service
) -> None:
    service.report(exact(kubelet(), name="n1"))
    uid = await refuse(api, service, "owned", **OWNED)
    await refuse(api, service, "bare")
    await refuse(api, service, "other-reason", reason="UnexpectedAdmissionError", **OWNED)
    assert service.ledger.events["refusal_TopologyAffinityError"] == 2
    async with running(RefusedPods(api, service.ledger).run()):
        await assert_eventually(lambda: service.ledger.events["refused_pod_deleted"] == 1)
    assert _names(server) == {"bare", "other-reason"}
    (event,) = server.store.objects("events.events.k8s.io")
    assert event["regarding"]["uid"] == uid
    assert event["note"].startswith("The kubelet of n1 refused the pod (Resources cannot be allocated).")
    order = [(entry.request.method, entry.request.path) for entry in server.log() if entry.request.method != "GET"][-2:]
    assert order == [("POST", "/apis/events.k8s.io/v1/namespaces/default/events"), ("DELETE", f"{PODS}/owned")]


def _names(server: ApiServer) -> set[str]:
    return {pod["metadata"]["name"] for pod in server.store.objects("pods")}


async def test_a_pod_recreated_under_the_name_of_a_refused_pod_is_left_alone(
    server: ApiServer, api: Api, service: Service
) -> None:
    await refuse(api, service, "p", **OWNED)
    await api.request("DELETE", f"{PODS}/p", query={"gracePeriodSeconds": "0"})
    document = pod("p", "2")
    document["metadata"] = {"name": "p", "namespace": "default", **OWNED}
    server.create("pods", document)
    async with running(RefusedPods(api, service.ledger).run()):
        await assert_eventually(lambda: any(entry.request.method == "GET" for entry in server.log()))
        await asyncio.sleep(0.1)
    assert _names(server) == {"p"}
    assert not list(server.store.objects("events.events.k8s.io"))


async def test_a_failed_action_blocks_nothing_else_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[str] = []

    async def do(name: str) -> None:
        tried.append(name)
        if name == "bad":
            raise ApiError(403, "Forbidden", "no", request="PATCH")

    async with running(controller.run("try", lambda: {"bad": "bad", "good": "good"}, do, interval=0.01)):
        await assert_eventually(lambda: tried.count("bad") > 1)
    assert tried[:2] == ["bad", "good"]
    assert tried.count("good") == 1, "it is not due again before the watch has had time"
    assert [record.getMessage() for record in caplog.records] == ["Cannot try"]


async def test_a_server_in_trouble_is_left_alone_by_all_for_a_while() -> None:
    tried: list[str] = []

    async def do(name: str) -> None:
        tried.append(name)
        if len(tried) == 1:
            raise ApiError(500, "InternalError", "no", request="PATCH")

    async with running(controller.run("try", lambda: {"a": "a", "b": "b"}, do, interval=0.01)):
        await asyncio.sleep(0.2)
        assert tried == ["a"]
        await assert_eventually(lambda: set(tried) == {"a", "b"})


async def test_a_pod_that_waits_for_alignment_gets_the_reason_and_every_change_of_it(
    server: ApiServer, api: Api, service: Service
) -> None:
    service.report(exact(kubelet(), name="n1"))
    for name in ("left", "right"):
        service.put(pod(name, "3", node="n1"))
    service.clock.now += 10
    document = pod("wide", "3", priority=5)
    del document["metadata"]["uid"]
    created = json.loads(await api.request("POST", PODS, body=json.dumps(document).encode()))
    service.put({**pod("wide", "3", conditions=WAITS, priority=5), "metadata": created["metadata"]})
    waiting = WaitingPods(api, service.ledger, service.view, service.clock)
    assert not waiting.due(), "it may be placed at once"
    service.clock.now += 11
    first = waiting.due()
    await waiting.post(*first.values())
    (before,) = server.store.objects("events.events.k8s.io")
    assert not waiting.due(), "nothing has changed"
    service.ledger.drop_pod("uid-left")
    service.put(pod("other", "2", node="n1"))
    assert not waiting.due(), "not so soon"
    service.clock.now += 61
    second = waiting.due()
    await waiting.post(*second.values())
    # Both may have the same time, as time stands still while the test runs.
    notes = sorted((event["note"] for event in server.store.objects("events.events.k8s.io")), key=before["note"].__ne__)
    assert notes[0] == (
        "n1 comes nearest: container c needs cpu 3, memory 1Gi together; node 1 has only cpu 1; node 0 has only cpu 0. "
        "In the way: default/right (1 of lower priority). Next step: evicting default/right would make room on n1."
    )
    assert len(set(notes)) == 2
    (shown,) = server.store.objects("pods")
    (condition,) = [row for row in shown["status"]["conditions"] if row["type"] == "topowise.io/Alignable"]
    assert (condition["status"], condition["message"]) == ("False", notes[1])
    service.ledger.stop_waiting(str(created["metadata"]["uid"]))
    assert not waiting.due()


def test_what_is_in_the_way_of_a_pod() -> None:
    service = Service("TightFit")
    service.report(exact(kubelet(), name="n1"))
    service.report(exact(kubelet(), name="n2"))
    record = service.put(pod("wide", "3", conditions=WAITS))
    assert waiting_pod(service.view, record).cause == "retry"
    for name in ("n1", "n2"):
        for number in range(2):
            service.put(pod(f"{name}-{number}", "2" if name == "n2" else "3", node=name, priority=9))
    service.clock.now += 10
    blocked = waiting_pod(service.view, record)
    assert (blocked.nearest, blocked.counts, blocked.lower_priority) == ("n2", {"not now": 2}, 0)
    assert set(blocked.in_the_way) < {"default/n2-0", "default/n2-1"}
    huge = service.put(pod("huge", "5", conditions=WAITS))
    never = waiting_pod(service.view, huge)
    assert text(never) == "Next step: no node can ever take it: cpu 5 on one NUMA node, the largest has 4."


@pytest.mark.usefixtures("server")
async def test_a_token_that_is_revoked_stops_a_controller_at_its_first_request() -> None:
    """The API server would refuse every later request as well."""
    tried: list[str] = []

    async def refuse(name: str) -> None:
        tried.append(name)
        raise ApiError(401, "Unauthorized", "Unauthorized", request="PATCH")

    names = {str(number): str(number) for number in range(200)}
    async with running(controller.run("try", lambda: names, refuse, interval=0.01)):
        await asyncio.sleep(0.3)
    # The shortest back-off is 0.4 s.
    assert tried == ["0"]


async def test_a_refused_pod_with_a_finalizer_gets_one_event_and_one_delete(
    server: ApiServer, api: Api, service: Service
) -> None:
    service.report(exact(kubelet(), name="n1"))
    await refuse(api, service, "kept", finalizers=["example.com/never"], **OWNED)
    controller = RefusedPods(api, service.ledger)
    for _ in range(3):
        for record in controller.due().values():
            await controller._clear_up(record)
    assert len(list(server.store.objects("events.events.k8s.io"))) == 1
    assert sum(entry.request.method == "DELETE" for entry in server.log()) == 1
    assert service.ledger.events["refused_pod_deleted"] == 1


async def test_an_unused_report_causes_one_event_on_its_node(server: ApiServer, api: Api, service: Service) -> None:
    amounts = dict.fromkeys(("capacity", "allocatable", "available"), "1")

    def report(resources: int) -> nrt.NodeResourceTopology:
        listed = [{"name": f"example.com/{number}", **amounts} for number in range(resources)]
        zones = [{"name": "node-0", "type": "Node", "resources": listed}]
        metadata = {"name": "n1", "resourceVersion": str(resources)}
        return nrt.decode(json.dumps({"metadata": metadata, "zones": zones}).encode())

    controller = UnusedReports(api, service.ledger, service.clock)
    service.report(report(1))
    assert not controller.due()
    for resources in (2000, 2001, 1, 2002):
        # Alternately above the bounds and within them.
        service.report(report(resources))
        for item in controller.due().values():
            await controller._post(item)
        service.clock.now += 10.0
    (event,) = server.store.objects("events.events.k8s.io")
    assert event["metadata"]["namespace"] == "default"
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert (event["reason"], event["type"]) == ("ReportNotUsed", "Warning")
    assert "expected at most" in event["note"]
    service.clock.now += 300.0
    assert not controller.due()
    service.report(report(1))
    assert not controller.due()
    service.report(report(2003))
    assert list(controller.due()) == ["n1"]
