"""The bind of a pod with a marker: request, answer of the node's plug-in, Binding."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from daemons import assert_eventually
from scheduling import NoApi, Service, exact, kubelet, pod
from steering_pods import marked, requiring
from topowise import steering
from topowise.errors import ApiError
from topowise_scheduler.options.steering.gate import SteeringOption
from topowise_scheduler.options.steering.leases import NodeSteering
from topowise_scheduler.options.steering.prebind import SteeringPreBind
from topowise_scheduler.serve.extender.binding import Binder

WAIT_S = 60.0
SHORT_S = 0.05
"""For an answer that does not come."""


class Cluster(NoApi):
    """An API server with Leases and Bindings, and the marker plug-in of the node n1.

    `answer` is the plug-in's answer to a request, None for no answer; `written` and `bound` are in order in `log`.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.answer: Callable[[steering.Request], steering.Status | None] = lambda it: steering.Status(
            it.id, "labelled"
        )
        self.log: list[Any] = []
        self.request_text: str | None = None
        self.status: steering.Status | None = None
        self.version = 1
        self.node_uid = "uid-n1"
        self.refuses: ApiError | None = None
        self.loses_answers = False
        self.refuses_binding: Callable[[], ApiError] | None = None
        self.binding_lasts: asyncio.Event | None = None
        self.steering = NodeSteering(
            self,
            "system",
            wait=WAIT_S,
            expiry=10.0,
            lost=service.ledger.lose_label,
            unadmitted=lambda name: service.ledger.unadmitted(name, steering.RESOURCE),
            clock=service.clock,
        )
        ledger = service.ledger
        step = SteeringPreBind(self.steering, ledger.gates.option(SteeringOption), ledger.reservations.forget)
        self.binder = Binder(self, ledger, service.records, lambda: None, prebinds=[step])

    async def request(self, method: str, path: str, *, body: bytes = b"", **options: Any) -> bytes:  # type: ignore[override]
        await asyncio.sleep(0)
        if path == "/api/v1/nodes/n1":
            return json.dumps({"metadata": {"name": "n1", "uid": self.node_uid}}).encode()
        document = json.loads(body)
        if path.endswith("/binding"):
            if self.refuses_binding is not None:
                raise self.refuses_binding()
            if self.binding_lasts is not None:
                await self.binding_lasts.wait()
            self.log.append("bound")
            return b"{}"
        assert (method, path) == (
            "PATCH",
            "/apis/coordination.k8s.io/v1/namespaces/system/leases/topowise-steering-n1",
        )
        assert options["query"] == {"fieldManager": "topowise-scheduler", "force": "true"}
        if self.refuses is not None:
            raise self.refuses
        (owner,) = document["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "n1", self.node_uid)
        expected = document["metadata"].get("resourceVersion")
        if expected not in (None, str(self.version)):
            raise ApiError(409, "Conflict", "the object has been modified", request=path)
        self.request_text = document["metadata"].get("annotations", {}).get(steering.REQUEST)
        if self.request_text is None:
            self.log.append("withdrawn")
        else:
            request = steering.decode_request(self.request_text)
            self.log.append((request.numa, request.containers))
            if self.loses_answers:
                # The write is done, and its event comes after the service has given up.
                asyncio.get_running_loop().call_later(0.05, self.show)
                raise ApiError(0, "Timeout", "no answer in time", request=path)
            asyncio.get_running_loop().call_later(0.01, self._answer, request)
        self.show()
        return json.dumps(document).encode()

    def _answer(self, request: steering.Request) -> None:
        self.status = self.answer(request) or self.status
        self.show()

    def finish(self, reason: str = steering.ALLOCATED) -> None:
        """The plug-in reports the end of the present request."""
        assert self.status is not None
        self.status = steering.Status(self.status.id, "released", reason)
        self.show()

    def collect(self) -> None:
        """The garbage collector deletes the Lease with its Node."""
        self.request_text = self.status = None
        metadata = {"name": "topowise-steering-n1", "resourceVersion": str(self.version)}
        self.steering.apply("DELETED", self.steering.source._decode(msgspec.json.encode({"metadata": metadata})))

    def show(self) -> None:
        """The watch brings the Lease."""
        self.version += 1
        annotations = {} if self.request_text is None else {steering.REQUEST: self.request_text}
        if self.status is not None:
            annotations[steering.STATUS] = steering.encode(self.status)
        metadata = {"name": "topowise-steering-n1", "resourceVersion": str(self.version), "annotations": annotations}
        document = {"metadata": metadata}
        self.steering.apply("MODIFIED", self.steering.source._decode(msgspec.json.encode(document)))

    async def bind(self, document: dict[str, Any]) -> str:
        """Returns the error of the bind verb, "" if the pod is bound."""
        record = self.service.put(document)
        self.service.ledger.remember(record)
        args = {"PodName": record.name, "PodNamespace": "default", "PodUID": record.uid, "Node": "n1"}
        error: str = json.loads((await self.binder.bind(json.dumps(args).encode())).body)["Error"]
        return error


@pytest.fixture
async def cluster() -> Cluster:
    """Returns a cluster whose only node has three free CPUs on NUMA node 0 and four on NUMA node 1."""
    service = Service()
    service.report(exact(kubelet()))
    return Cluster(service)


async def test_the_pod_is_bound_once_the_kubelet_has_the_label(cluster: Cluster) -> None:
    assert await cluster.bind(requiring("a", 1, "1", "1")) == ""
    assert cluster.log == [(1, 2), "bound"]
    assert cluster.service.free("n1") == [3, 2]


async def test_nothing_is_sent_for_a_pod_without_a_marker_or_with_the_right_prediction(cluster: Cluster) -> None:
    assert await cluster.bind(pod("a", "1")) == ""
    assert await cluster.bind(marked("b", "1")) == ""
    assert cluster.log == ["bound", "bound"]


async def test_the_best_numa_node_is_requested_without_an_annotation(cluster: Cluster) -> None:
    """Two CPUs are free on NUMA node 1; the three on NUMA node 0 stay whole."""
    assert await cluster.bind(requiring("first", 1, "2")) == ""
    cluster.finish()
    assert await cluster.bind(marked("a", "2")) == ""
    assert cluster.log == [(1, 1), "bound", (1, 1), "bound"]
    assert cluster.service.free("n1") == [3, 0]


def beside(name: str, text: str, *cpus: str, **fields: Any) -> dict[str, Any]:
    return marked(name, *cpus, annotations={"topowise.io/numa-affinity": text}, **fields)


async def test_pods_come_beside_each_other_and_apart_without_a_report(cluster: Cluster) -> None:
    """A steered pod has a single possible NUMA node. The kubelet alone would put all pods on NUMA node 0."""
    assert await cluster.bind(requiring("cache", 1, "1", labels={"app": "cache"})) == ""
    cluster.finish()
    assert await cluster.bind(beside("a", "require same: app=cache", "1")) == ""
    cluster.finish()
    assert await cluster.bind(beside("b", "require apart: app=cache", "1")) == ""
    cluster.finish()
    assert await cluster.bind(beside("c", "prefer same: pod/cache", "1")) == ""
    assert cluster.log == [(1, 1), "bound", (1, 1), "bound", (0, 1), "bound", (1, 1), "bound"]
    assert cluster.service.free("n1") == [2, 1]


async def test_the_pods_of_a_group_come_to_the_numa_node_of_the_first_pod(cluster: Cluster) -> None:
    """The first pod gets a label, so that its NUMA node is known at once."""
    for name in ("g0", "g1", "g2"):
        assert await cluster.bind(beside(name, "require same: app=g", "1", labels={"app": "g"})) == ""
        cluster.finish()
    assert cluster.log == [(0, 1), "bound", (0, 1), "bound", (0, 1), "bound"]
    error = await cluster.bind(beside("g3", "require same: app=g", "1", labels={"app": "g"}))
    assert "NUMA node that the pod requires has no room" in error
    assert cluster.service.free("n1") == [0, 4]


async def test_nothing_is_sent_for_a_preference_that_the_kubelet_alone_meets(cluster: Cluster) -> None:
    assert await cluster.bind(requiring("cache", 0, "1", labels={"app": "cache"})) == ""
    cluster.finish()
    cluster.log.clear()
    assert await cluster.bind(beside("a", "prefer same: app=cache", "1")) == ""
    assert cluster.log == ["bound"]


async def test_a_preference_without_an_answer_binds_unsteered_and_a_requirement_waits(cluster: Cluster) -> None:
    assert await cluster.bind(requiring("cache", 1, "1", labels={"app": "cache"})) == ""
    cluster.finish()
    cluster.answer = lambda request: steering.Status(request.id, "rejected", "the kubelet has just started")
    assert "the kubelet has just started" in await cluster.bind(beside("a", "require same: app=cache", "1"))
    assert await cluster.bind(beside("b", "prefer same: app=cache", "1")) == ""
    assert cluster.service.free("n1") == [2, 3]


async def test_pods_that_come_during_the_wait_are_kept_apart(cluster: Cluster) -> None:
    """Another scheduler binds a pod that the term selects while the node labels its markers."""
    answer = cluster.answer

    def overtaken(request: steering.Request) -> steering.Status | None:
        cluster.service.put(pod("cache", "1", node="n1", labels={"app": "cache"}))
        return answer(request)

    assert await cluster.bind(requiring("cache-0", 1, "1", labels={"app": "cache"})) == ""
    cluster.finish()
    cluster.answer = overtaken
    error = await cluster.bind(beside("a", "require apart: app=cache", "1"))
    assert "have no known NUMA node" in error
    assert cluster.log[-1] == "withdrawn"
    assert cluster.service.free("n1") == [2, 3]


async def test_the_next_pod_with_a_marker_waits_for_the_end_of_the_label(cluster: Cluster) -> None:
    assert await cluster.bind(requiring("a", 1, "1")) == ""
    cluster.steering.wait = SHORT_S
    assert await cluster.bind(requiring("b", 0, "1")) == "the markers of n1 are labelled for another pod"
    assert await cluster.bind(pod("c", "1")) == ""
    cluster.steering.wait = WAIT_S
    waiting = asyncio.create_task(cluster.bind(requiring("b", 0, "1")))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    cluster.finish()
    assert await waiting == ""
    assert cluster.log == [(1, 1), "bound", "bound", (0, 1), "bound"]


async def test_no_label_before_earlier_pods_with_a_marker_are_admitted(cluster: Cluster) -> None:
    """The label would move a pod that is on its way to its kubelet."""
    assert await cluster.bind(marked("a", "1")) == ""
    cluster.steering.wait = SHORT_S
    assert await cluster.bind(requiring("b", 1)) == "the kubelet of n1 has yet to admit a pod with a marker"
    assert cluster.log == ["bound"]
    assert await cluster.bind(marked("c", "1")) == ""
    cluster.steering.wait = WAIT_S
    waiting = asyncio.create_task(cluster.bind(requiring("b", 1)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    for name in ("a", "c"):
        cluster.service.put(admitted(marked(name, "1")))
    assert await waiting == ""
    assert cluster.log == ["bound", "bound", (1, 1), "bound"]


async def test_the_request_of_another_replica_is_not_withdrawn(cluster: Cluster) -> None:
    def binding() -> ApiError:
        cluster.request_text = steering.encode(steering.Request("of-another", 1, 1, 10.0))
        cluster.show()
        return ApiError(409, "Conflict", "pod is bound", request="POST")

    cluster.refuses_binding = binding
    assert "binding failed" in await cluster.bind(requiring("a", 1))
    assert cluster.log == [(1, 1)]
    assert cluster.request_text is not None


async def test_requests_are_counted_by_result(cluster: Cluster) -> None:
    seconds: list[float] = []
    cluster.steering.observe = seconds.append
    assert await cluster.bind(requiring("a", 1)) == ""
    cluster.finish()
    assert await cluster.bind(requiring("b", 1)) == ""
    cluster.finish("the request has expired")
    cluster.service.put(admitted(requiring("b", 1)))
    cluster.answer = lambda request: steering.Status(request.id, "rejected", "the kubelet has just started")
    assert await cluster.bind(requiring("c", 1)) != ""
    cluster.answer = lambda request: steering.Status(request.id, "released", "the kubelet has disconnected")
    assert await cluster.bind(requiring("d", 1)) != ""
    assert cluster.steering.results == {"allocated": 1, "lost": 2, "refused": 1}
    assert len(seconds) == 2


async def test_requests_of_another_replica_count(cluster: Cluster) -> None:
    cluster.request_text = steering.encode(steering.Request("of-another", 1, 1, 10.0))
    cluster.show()
    cluster.steering.wait = SHORT_S
    assert await cluster.bind(marked("a", "1")) == "the markers of n1 are labelled for another pod"
    cluster.status = steering.Status("of-another", "released", steering.ALLOCATED)
    cluster.show()
    assert await cluster.bind(marked("a", "1")) == ""


async def test_a_request_of_another_replica_is_not_replaced(cluster: Cluster) -> None:
    """It comes while this replica waits for an admission, so its version is known and there is no conflict."""
    cluster.show()
    steering_of, admission = cluster.steering, cluster.steering.admission

    async def overtaken(name: str) -> str:
        problem = await admission(name)
        cluster.request_text = steering.encode(steering.Request("of-another", 0, 1, 10.0))
        cluster.show()
        return problem

    steering_of.admission = overtaken  # type: ignore[method-assign]
    assert await cluster.bind(requiring("a", 1)) == "the markers of n1 are labelled for another pod"
    assert cluster.log == []
    assert steering.decode_request(cluster.request_text or "").id == "of-another"


async def test_of_two_replicas_one_gets_a_conflict(cluster: Cluster) -> None:
    cluster.show()
    cluster.version += 1
    assert "modified" in await cluster.bind(requiring("a", 1))
    assert cluster.log == []


@pytest.mark.parametrize("state", ["rejected", "released"])
async def test_a_refusal_binds_unsteered_unless_the_numa_node_is_required(cluster: Cluster, state: Any) -> None:
    assert await cluster.bind(requiring("first", 1, "2")) == ""
    cluster.finish()
    cluster.answer = lambda request: steering.Status(request.id, state, "the kubelet has just started")
    error = await cluster.bind(requiring("a", 1, "1"))
    assert error == "the marker plug-in of n1 has refused: the kubelet has just started"
    assert cluster.service.free("n1") == [3, 2]
    assert await cluster.bind(marked("b", "2")) == ""
    assert cluster.service.free("n1") == [1, 2]


async def test_without_an_answer_a_pod_that_requires_no_numa_node_is_bound_unsteered(cluster: Cluster) -> None:
    """Once the request is withdrawn: a plug-in that is silent labels nothing."""
    await silence(cluster)
    cluster.log.clear()
    cluster.service.clock.now += 16.0
    cluster.steering.wait = SHORT_S
    assert await cluster.bind(marked("a", "2")) == ""
    assert cluster.log == [(1, 1), "withdrawn", "bound"]
    assert cluster.service.free("n1") == [1, 2]


async def silence(cluster: Cluster) -> None:
    """The plug-in hangs, and a request has shown it; two CPUs are taken on NUMA node 1."""
    assert await cluster.bind(requiring("first", 1, "2")) == ""
    cluster.finish()
    cluster.answer = lambda request: None
    cluster.steering.wait, wait = SHORT_S, cluster.steering.wait
    assert "has not answered" in await cluster.bind(requiring("unanswered", 1, "1"))
    cluster.steering.wait = wait


async def test_requests_to_a_silent_node_end_at_once(cluster: Cluster) -> None:
    """Also while a pod with a marker that was bound unsteered waits for its admission, which needs the plug-in."""
    await silence(cluster)
    cluster.log.clear()
    assert await cluster.bind(marked("a", "2")) == ""
    error = await cluster.bind(requiring("b", 1, "1"))
    assert error == "the marker plug-in of n1 does not answer"
    assert cluster.log == ["bound"]
    assert cluster.service.free("n1") == [1, 2]


async def test_a_request_that_is_not_withdrawn_yet_may_get_a_label(cluster: Cluster) -> None:
    cluster.loses_answers, cluster.answer = True, lambda request: None
    cluster.steering.wait = SHORT_S
    assert await cluster.bind(requiring("first", 1, "2")) != ""
    cluster.request_text = steering.encode(steering.Request("of-another", 0, 1, 10.0))
    cluster.show()
    assert await cluster.bind(marked("a", "1")) == "the markers of n1 are labelled for another pod"


async def test_a_pod_without_a_marker_waits_for_no_plug_in(cluster: Cluster) -> None:
    """Its Binding overtakes the steered pod, so the kubelet places it first."""
    cluster.answer, answer = lambda request: None, cluster.answer
    steered = asyncio.create_task(cluster.bind(requiring("steered", 1, "2")))
    await assert_eventually(lambda: bool(cluster.log))
    assert await cluster.bind(pod("plain", "1")) == ""
    assert cluster.log == [(1, 1), "bound"]
    assert not steered.done()
    cluster.status = answer(steering.decode_request(cluster.request_text or ""))
    cluster.show()
    assert await steered == ""
    node = cluster.service.ledger.node_states.of("n1")
    assert node is not None
    assert [entry.record.name for entry in node.history.log] == ["plain", "steered"]
    assert cluster.service.free("n1") == [2, 2]


async def test_a_steered_bind_that_is_cancelled_behind_another_bind_is_withdrawn(cluster: Cluster) -> None:
    cluster.binding_lasts = asyncio.Event()
    plain = asyncio.create_task(cluster.bind(pod("plain", "1")))
    steered = asyncio.create_task(cluster.bind(requiring("steered", 1, "2")))
    await assert_eventually(lambda: cluster.status is not None)
    # The label is there, and the Binding waits for the Binding before it.
    await asyncio.sleep(0)
    steered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await steered
    cluster.binding_lasts.set()
    assert await plain == ""
    assert cluster.log == [(1, 1), "withdrawn", "bound"]
    assert cluster.service.free("n1") == [2, 4]


async def test_a_required_numa_node_is_requested_again_after_a_request_without_an_answer(cluster: Cluster) -> None:
    """The plug-in may have been busy once, and without a label the pod cannot be bound."""
    cluster.answer, answer = lambda request: None, cluster.answer
    cluster.steering.wait = SHORT_S
    assert "has not answered" in await cluster.bind(requiring("a", 1))
    cluster.service.clock.now += 16.0
    cluster.answer, cluster.steering.wait = answer, WAIT_S
    assert await cluster.bind(requiring("a", 1)) == ""


async def test_a_late_answer_ends_the_silence(cluster: Cluster) -> None:
    answer = cluster.answer
    await silence(cluster)
    request = next(iter(cluster.steering._nodes["n1"].pending))
    cluster.status = steering.Status(request, "rejected", "withdrawn")
    cluster.show()
    cluster.answer = answer
    assert await cluster.bind(marked("a", "2")) == ""
    assert cluster.log[-2:] == [(1, 1), "bound"]


async def test_a_label_that_ended_too_early_makes_the_pod_uncertain(cluster: Cluster) -> None:
    assert await cluster.bind(requiring("a", 1, "2")) == ""
    node = cluster.service.ledger.node_states.of("n1")
    assert node is not None
    assert not node.uncertain(cluster.service.clock())
    cluster.finish("the request has expired")
    assert cluster.service.free("n1") == [1, 4]
    assert [view.uid for view in node.uncertain(cluster.service.clock())] == ["uid-a"]


async def test_a_refused_request_is_no_label(cluster: Cluster) -> None:
    """As without the right to write Leases."""
    cluster.refuses = ApiError(403, "Forbidden", "leases is forbidden", request="PATCH")
    assert "leases is forbidden" in await cluster.bind(requiring("a", 1))
    assert await cluster.bind(marked("b", "1")) == ""


async def test_a_failed_binding_withdraws_the_request(cluster: Cluster) -> None:
    cluster.refuses_binding = lambda: ApiError(409, "Conflict", "pod is bound", request="POST")
    assert "binding failed" in await cluster.bind(requiring("a", 1))
    assert cluster.log == [(1, 1), "withdrawn"]
    assert cluster.service.free("n1") == [3, 4]


async def test_a_request_whose_write_had_no_answer_is_withdrawn_when_it_shows(cluster: Cluster) -> None:
    """Otherwise the node would take no pod with a marker until the request ends by its time."""
    cluster.loses_answers = True
    assert "no answer in time" in await cluster.bind(requiring("a", 1))
    assert cluster.log == [(1, 1)]
    await assert_eventually(lambda: cluster.log[-1] == "withdrawn")
    assert cluster.steering._nodes["n1"].given_up == ""


async def test_a_withdrawal_that_conflicts_is_tried_again(cluster: Cluster) -> None:
    """The plug-in writes its status at the same time."""

    def refused() -> ApiError:
        cluster.version += 1
        return ApiError(409, "Conflict", "pod is bound", request="POST")

    cluster.refuses_binding = refused
    assert "binding failed" in await cluster.bind(requiring("a", 1))
    assert cluster.log == [(1, 1)]
    cluster.show()
    await assert_eventually(lambda: cluster.log[-1] == "withdrawn")
    cluster.show()
    await asyncio.sleep(0.02)
    assert cluster.log == [(1, 1), "withdrawn"]


async def test_a_request_of_another_replica_is_not_withdrawn(cluster: Cluster) -> None:
    cluster.loses_answers = True
    assert "no answer in time" in await cluster.bind(requiring("a", 1))
    cluster.request_text = steering.encode(steering.Request("of-another", 0, 1, 10.0))
    cluster.show()
    await asyncio.sleep(0.1)
    assert cluster.log == [(1, 1)]


async def test_a_numa_node_that_has_filled_up_is_not_requested(cluster: Cluster) -> None:
    assert await cluster.bind(requiring("first", 1, "4")) == ""
    cluster.finish()
    assert refused_for_room(await cluster.bind(requiring("a", 1)))
    assert cluster.log == [(1, 1), "bound"]


async def test_a_list_without_the_lease_forgets_no_request(cluster: Cluster) -> None:
    """The list may be older than the Lease, and a deleted Lease does not take the label from the kubelet."""
    assert await cluster.bind(requiring("a", 1)) == ""
    cluster.steering.replace([])
    cluster.steering.wait = SHORT_S
    assert await cluster.bind(marked("b", "1")) == "the markers of n1 are labelled for another pod"
    cluster.show()
    cluster.finish("the request has expired")
    assert cluster.steering.results == {"lost": 1}
    cluster.steering.replace([])
    assert not cluster.steering._nodes


async def test_a_node_that_never_gets_a_request_is_not_remembered(cluster: Cluster) -> None:
    """The kubelet does not admit an earlier pod with a marker, so nothing is sent."""
    cluster.steering.wait = SHORT_S
    cluster.service.put(marked("earlier", "1", node="n1"))
    assert "has yet to admit a pod" in await cluster.bind(requiring("a", 1))
    assert not cluster.steering._nodes


@pytest.mark.parametrize(
    "text", ["{", "x" * 200_000, json.dumps({"id": "a", "state": "released", "reason": "r" * 600})]
)
async def test_a_status_that_cannot_be_read_is_logged_once(
    cluster: Cluster, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a writer that changes it all the time. Without a status that can be read the request has no answer."""
    cluster.answer = lambda request: None
    cluster.steering.wait = SHORT_S
    metadata = {"name": "topowise-steering-n1", "annotations": {steering.STATUS: text}}
    for version in range(50):
        document = {"metadata": {**metadata, "resourceVersion": str(version)}}
        cluster.steering.apply("MODIFIED", cluster.steering.source._decode(msgspec.json.encode(document)))
    assert len(caplog.records) == 1
    assert cluster.steering._nodes["n1"].status is None
    assert len(str(vars(caplog.records[0]))) < 2000


async def test_a_new_node_of_the_same_name_gets_a_lease_of_its_own(cluster: Cluster) -> None:
    """An owner that does not exist any more would have the Lease deleted."""
    assert await cluster.bind(requiring("a", 1, "1")) == ""
    cluster.finish()
    cluster.service.put(admitted(requiring("a", 1, "1")))
    cluster.collect()
    assert not cluster.steering._nodes
    cluster.node_uid = "uid-of-the-next"
    assert await cluster.bind(requiring("b", 1, "1")) == ""
    assert cluster.log == [(1, 1), "bound", (1, 1), "bound"]


async def test_requests_that_are_remembered_are_bounded(cluster: Cluster) -> None:
    """A writer of Leases changes the request all the time, and no plug-in answers."""
    for number in range(200):
        cluster.request_text = steering.encode(steering.Request(f"r{number}", 1, 1, 10.0))
        cluster.show()
    assert list(cluster.steering._nodes["n1"].pending) == [f"r{number}" for number in range(136, 200)]


def admitted(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the pod after its admission by n1."""
    status = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}
    return {**document, "spec": {**document["spec"], "nodeName": "n1"}, "status": status}


def refused_for_room(error: str) -> bool:
    return error.startswith("kubelet of n1 would refuse the pod now")
