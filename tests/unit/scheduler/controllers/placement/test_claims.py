"""Gated pods with claims: their devices are chosen with the node, allocated before the gate, and taken back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from claim_objects import (
    DRIVER,
    ClaimService,
    FilledService,
    claim,
    claiming,
    device_slice,
    from_templates,
    put_class,
    sized_claim,
    sized_slice,
)
from placing import GATED
from scheduling import NoApi
from topowise.errors import ApiError
from topowise.placement import ALLOCATED_FOR, PLACED_ON
from topowise_scheduler.controllers.alignment import AlignmentPreemption
from topowise_scheduler.controllers.placement import Decisions, Placer
from topowise_scheduler.controllers.unused_claims import UnusedClaims
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.claims.allocation import FINALIZER, ClaimAllocation
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import RESOURCE_CLAIMS

pytestmark = pytest.mark.own_time


class Server(NoApi):
    """The API server of `service`: claims are objects with versions; a pod's gate is opened as asked. `refuses` returns
    the status of a request that it refuses, -1 for a request that it takes without an answer."""

    def __init__(self, service: ClaimService) -> None:
        self.service = service
        self.refuses: Callable[[str, str], int] = lambda method, path: 0
        self.claims: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 10
        option = service.ledger.gates.option(ClaimOption)
        self.decisions = Decisions(service.trial, service.clock)
        self.placer = Placer(
            self,
            service.ledger,
            self.decisions,
            settles=False,
            prebinds=[ClaimAllocation(self, option)],
            clock=service.clock,
        )
        self.sweeper = UnusedClaims(self, service.ledger, service.claims, clock=service.clock)

    def put_claim(self, name: str, count: int = 1, **fields: Any) -> None:
        self.claims[name] = claim(name, count, **fields)
        self.seen(name)

    def seen(self, name: str) -> None:
        """The watch brings the claim."""
        self.service.claims.put_claim(sized_claim(self.claims[name]))

    def put_pod(self, name: str, *claims: str, cpu: str = "2", **fields: Any) -> PodRecord:
        self.version += 1
        self.pods[name] = claiming(name, cpu, *claims, resourceVersion=str(self.version), **{**GATED, **fields})
        return self.service.put(self.pods[name])

    async def request(self, method: str, path: str, *, body: bytes = b"", **_: Any) -> bytes:
        status = self.refuses(method, path)
        if status > 0:
            raise ApiError(status, "Refused", "no", request=f"{method} {path}")
        answer = self._answer(method, path, json.loads(body or b"{}"))
        if status < 0:
            raise ApiError(0, "", "no answer", request=f"{method} {path}")
        return json.dumps(answer).encode()

    def _answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        parts = path.split("/")
        if "pods" in parts:
            if parts[-1] not in self.pods:
                raise ApiError(404, "NotFound", "no such pod", request=path)
            if method == "PATCH":
                del self.pods[parts[-1]]["spec"]["schedulingGates"]
                self.pods[parts[-1]]["metadata"]["annotations"] = {PLACED_ON: "n1"}
            return self.pods[parts[-1]]
        document = self.claims[parts[parts.index("resourceclaims") + 1]]
        metadata = document["metadata"]
        if body["metadata"].pop("resourceVersion") != metadata["resourceVersion"]:
            raise ApiError(409, "Conflict", "changed", request=path)
        assert body["metadata"].pop("uid") == metadata["uid"]
        assert set(body) <= ({"metadata", "status"} if parts[-1] == "status" else {"metadata"})
        metadata.update(body["metadata"])
        document["status"] = {**document.get("status", {}), **body.get("status", {})}
        document["status"] = {name: value for name, value in document["status"].items() if value is not None}
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        return document

    async def place(self) -> list[str]:
        """Decides and writes once; the nodes that were decided."""
        nodes = []
        steps = self.decisions.steps()
        try:
            while True:
                next(steps)
        except StopIteration as end:
            for write in end.value:
                nodes.append(write.node)
                await self.placer._writers.acquire()
                await self.placer._write(write)
        return nodes

    def devices(self, name: str) -> list[str]:
        allocation = self.claims[name].get("status", {}).get("allocation") or {"devices": {"results": []}}
        return [result["device"] for result in allocation["devices"]["results"]]

    def is_gated(self, name: str) -> bool:
        return "schedulingGates" in self.pods[name]["spec"]


@pytest.fixture
def server() -> Server:
    """The node n1 has 3 free CPUs on NUMA node 0 and 4 on NUMA node 1, and gpu-0 on NUMA node 1, gpu-1 on 0."""
    service = ClaimService(places=True)
    service.add_node("n1", 1, 0)
    return Server(service)


async def test_devices_are_allocated_where_the_kubelet_places_the_pod(server: Server) -> None:
    server.put_claim("a")
    record = server.put_pod("p", "a")
    assert await server.place() == ["n1"]
    assert server.devices("a") == ["gpu-1"]
    metadata, status = server.claims["a"]["metadata"], server.claims["a"]["status"]
    assert metadata["finalizers"] == [FINALIZER]
    assert metadata["annotations"] == {ALLOCATED_FOR: record.uid}
    assert status["reservedFor"] == [{"resource": "pods", "name": "p", "uid": record.uid}]
    assert status["allocation"]["allocationTimestamp"]
    assert not server.is_gated("p")
    # The written allocation is known at once.
    assert not server.service.claims.assumed()


async def test_a_reserved_pod_keeps_the_devices_that_are_reserved_for_it(server: Server) -> None:
    """Reserved by scale-up, or by a caller that asked whether pods fit together."""
    server.put_claim("a")
    record = server.put_pod("p", "a")
    assert record.needs is not None
    assert server.service.ledger.reservations.put_unasked(record, record.needs, "n1", 60.0) is None
    assert server.service.claims.assumed() == [(record.uid, "n1")]
    assert await server.place() == ["n1"]
    assert server.devices("a") == ["gpu-1"]
    assert not server.is_gated("p")


async def test_a_claim_that_does_not_exist_yet_is_waited_for(server: Server) -> None:
    server.put_pod("p", "a")
    assert await server.place() == []
    server.put_claim("a")
    assert await server.place() == ["n1"]


async def test_a_claim_of_a_template_is_waited_for(server: Server) -> None:
    """Its template says which devices the pod is to get, also to keep them for it."""
    server.service.put_template("gpus")
    document = from_templates("p", "2", "gpus", resourceVersion="1", **GATED)
    record = server.service.put(document)
    assert record.needs is not None
    assert server.service.ledger.reservations.put_unasked(record, record.needs, "n1", 60.0) is None
    assert server.service.claims.assumed() == [(record.uid, "n1")]
    assert await server.place() == []
    server.put_claim("p-c0-x7")
    document["status"]["resourceClaimStatuses"] = [{"name": "c0", "resourceClaimName": "p-c0-x7"}]
    document["metadata"]["resourceVersion"] = "2"
    server.pods["p"] = document
    server.service.put(document)
    assert await server.place() == ["n1"]
    assert server.devices("p-c0-x7") == ["gpu-1"]
    assert not server.service.claims.assumed()


async def test_a_pod_waits_for_devices_and_gets_them(server: Server) -> None:
    server.put_claim("other", 2, devices=["gpu-0", "gpu-1"], reserved=["uid-o"])
    server.put_claim("a")
    server.put_pod("p", "a")
    assert await server.place() == []
    del server.claims["other"]
    server.service.claims.drop_claim("default/other")
    assert await server.place() == ["n1"]


async def test_devices_of_other_drivers_are_left_to_kube_scheduler(server: Server) -> None:
    server.service.claims.drivers = frozenset(["nic.example.com"])
    server.put_claim("a")
    record = server.put_pod("p", "a")
    (write,) = [write for write in _decided(server) if write.record.uid == record.uid]
    assert write.form == "nominated"
    server.service.claims.drivers = frozenset([DRIVER])


@pytest.mark.parametrize(
    ("numa", "alignment", "victims", "device"),
    [
        # The kubelet takes NUMA node 0 once it has room; of the devices, gpu-1 is there.
        ((1, 0), "require", ["holds-0", "holds-1"], "gpu-1"),
        ((0, 1), "require", ["holds-0"], "gpu-0"),
        ((1, 0), "prefer", ["holds-0"], "gpu-0"),
    ],
)
async def test_pods_make_way_for_devices_and_cpus_together(
    numa: tuple[int, int], alignment: str, victims: list[str], device: str
) -> None:
    """All CPUs and devices are taken, those of NUMA node 0 by a pod of a lower priority."""
    service = FilledService(*numa, places=True)
    service.run("holds-0", "3", "gpu-0", priority=1)
    service.run("holds-1", "4", "gpu-1", priority=2)
    server = Server(service)
    server.put_claim("a")
    server.put_pod("p", "a", priority=5, alignment=alignment)
    assert await server.place() == []
    preemption = AlignmentPreemption(service.trial, Budgets())
    waiting = kube_scheduler.decode(json.dumps(server.pods["p"]).encode())
    chosen = await preemption.choose(waiting, 10, ())
    assert chosen is not None
    assert sorted(pod.name for pod in chosen.pods) == victims
    uids = [pod.uid for pod in chosen.pods]
    assert all(preemption.still_needs(waiting, "n1", uids[:number], uids[number:]) for number in range(len(uids)))
    server.put_pod("p", "a", priority=5, alignment=alignment, nominatedNodeName="n1")
    server.put_claim("later")
    server.put_pod("later", "later", cpu="1", priority=4)
    for number, name in enumerate(victims, 1):
        assert await server.place() == []
        service.end(name)
        assert preemption.still_needs(waiting, "n1", uids[:number], ()) is False
    assert await server.place() == ["n1"]
    assert server.devices("a") == [device]
    assert server.is_gated("later")


async def test_no_pod_is_evicted_for_a_claim_that_does_not_exist_yet() -> None:
    service = FilledService(0, places=True)
    service.run("holds-0", "3", "gpu-0")
    service.put_template("gpus")
    document = from_templates("p", "2", "gpus", priority=5, **GATED)
    service.put(document)
    preemption = AlignmentPreemption(service.trial, Budgets())
    waiting = kube_scheduler.decode(json.dumps(document).encode())
    assert await preemption.choose(waiting, 10, ()) is None
    service.put_claim("p-c0-x7")
    document["status"]["resourceClaimStatuses"] = [{"name": "c0", "resourceClaimName": "p-c0-x7"}]
    waiting = kube_scheduler.decode(json.dumps(document).encode())
    assert await preemption.choose(waiting, 10, ()) is not None


def _decided(server: Server) -> list[Any]:
    steps = server.decisions.steps()
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return list(end.value)


async def test_the_only_node_of_a_pod_is_required_once_its_devices_are_chosen(server: Server) -> None:
    server.put_claim("a")
    record = server.put_pod("p", "a")
    assert RESOURCE_CLAIMS in record.constraints.unexamined
    (write,) = _decided(server)
    assert write.form == "required"


@pytest.mark.parametrize("status", [403, 409, 422])
async def test_a_refused_allocation_is_taken_back(server: Server, status: int) -> None:
    """The second of two claims cannot be written."""
    server.put_claim("a")
    server.put_claim("b")
    server.put_pod("p", "a", "b")
    server.refuses = lambda method, path: status if path.endswith("b/status") else 0
    await server.place()
    assert server.devices("a") == server.devices("b") == []
    assert "reservedFor" not in server.claims["a"]["status"]
    assert server.is_gated("p")
    server.refuses = lambda method, path: 0
    server.service.clock.now += 31
    server.service.ledger.tick()
    assert await server.place() == ["n1"]
    assert sorted(server.devices("a") + server.devices("b")) == ["gpu-0", "gpu-1"]


async def test_a_pod_that_has_changed_gives_its_devices_back(server: Server) -> None:
    server.put_claim("a")
    server.put_pod("p", "a")
    server.refuses = lambda method, path: 409 if "pods" in path else 0
    await server.place()
    assert server.devices("a") == []


async def test_without_an_answer_the_devices_stay_as_the_gate_may_be_open(server: Server) -> None:
    server.put_claim("a")
    server.put_pod("p", "a")
    server.refuses = lambda method, path: -1 if "pods" in path else 0
    await server.place()
    assert not server.is_gated("p")
    assert server.devices("a") == ["gpu-1"]


async def _sweep(server: Server) -> None:
    for unused in [*server.sweeper.due().values()]:
        await server.sweeper._free(unused)


async def test_devices_of_a_pod_that_is_still_gated_are_taken_back(server: Server) -> None:
    """The leader ended between the allocation and the gate."""
    server.put_claim("a")
    server.put_pod("p", "a")
    server.refuses = lambda method, path: 503 if "pods" in path and method == "PATCH" else 0
    await server.place()
    assert server.devices("a") == ["gpu-1"]
    server.service.clock.now += 16
    server.service.ledger.tick()
    await _sweep(server)
    assert server.devices("a") == ["gpu-1"]
    server.service.clock.now += 31
    await _sweep(server)
    assert server.devices("a") == []


async def test_devices_of_a_pod_that_is_gone_are_taken_back(server: Server) -> None:
    server.put_claim("a")
    server.put_pod("p", "a")
    await server.place()
    server.service.ledger.drop_pod("uid-p")
    del server.pods["p"]
    await _sweep(server)
    server.service.clock.now += 31
    await _sweep(server)
    assert server.devices("a") == []


async def test_devices_of_a_pod_whose_gate_is_open_stay(server: Server) -> None:
    """Its watch event may be late."""
    server.put_claim("a")
    server.put_pod("p", "a")
    await server.place()
    server.service.ledger.drop_pod("uid-p")
    await _sweep(server)
    server.service.clock.now += 31
    await _sweep(server)
    assert server.devices("a") == ["gpu-1"]


async def test_devices_that_others_have_allocated_or_use_are_not_swept(server: Server) -> None:
    server.put_claim("theirs", devices=["gpu-0"], reserved=["uid-gone"])
    server.put_claim("shared", devices=["gpu-1"], reserved=["uid-gone", "uid-other"])
    server.claims["shared"]["metadata"]["annotations"] = {ALLOCATED_FOR: "uid-gone"}
    server.claims["shared"]["metadata"]["resourceVersion"] = "9"
    server.seen("shared")
    await _sweep(server)
    server.service.clock.now += 31
    assert not server.sweeper.due()


async def test_no_pod_overtakes_a_pod_whose_devices_follow_its_kubelet(server: Server) -> None:
    """Where the kubelet places a pod depends on the pods before it, so a second pod would have to wait for the first.
    On another node it does not."""
    server.put_claim("a")
    server.put_claim("b")
    server.put_pod("p", "a")
    server.put_pod("q", "b")
    assert await server.place() == ["n1"]
    assert await server.place() == []
    server.service.add_node("n2", 0, 1)
    assert await server.place() == ["n2"]


async def test_the_next_pod_is_placed_once_the_kubelet_has_acknowledged_the_last(server: Server) -> None:
    for name in "ab":
        server.put_claim(name)
    server.put_pod("p", "a")
    server.put_pod("q", "b")
    assert await server.place() == ["n1"]
    bound = claiming("p", "2", "a", node="n1", resourceVersion="90")
    server.service.put(bound)
    assert await server.place() == []
    bound["status"] = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}
    bound["metadata"]["resourceVersion"] = "91"
    server.service.put(bound)
    assert await server.place() == ["n1"]
    assert server.devices("a") != server.devices("b")


async def test_a_group_gets_all_its_devices_or_none(server: Server) -> None:
    group = {"labels": {"topowise.io/pod-group": "g"}, "annotations": {"topowise.io/pod-group-size": "3"}}
    for name in "abc":
        server.put_claim(name)
        server.put_pod(f"p{name}", name, cpu="1", **group)
    assert await server.place() == []
    assert not any(server.devices(name) for name in "abc")
    server.service.add_node("n2", 0, 1)
    places = _decided(server)
    assert len(places) == 3
    assert len(server.service.claims.assumed()) == 3


async def test_a_group_that_shares_a_claim_is_on_one_node(server: Server) -> None:
    group = {"labels": {"topowise.io/pod-group": "g"}, "annotations": {"topowise.io/pod-group-size": "3"}}
    server.put_claim("other", devices=["gpu-0"], reserved=["uid-o"])
    server.service.add_node("n2", 0, 1)
    server.put_claim("shared")
    for name in "abc":
        server.put_pod(f"p{name}", "shared", cpu="1", **group)
    first, *others = _decided(server)
    assert len(others) == 2
    assert {write.node for write in others} == {first.node}
    # None of the others is opened before the claim is written for the first.
    allocation = ClaimAllocation(server, server.service.ledger.gates.option(ClaimOption))
    _, problem = await allocation.prebind(others[0].record, first.node, lambda record: "")
    assert problem
    assert server.devices("shared") == []
    for write in (first, *others):
        assert await allocation.prebind(write.record, write.node, lambda record: "") == (write.record, "")
    assert server.claims["shared"]["metadata"]["annotations"] == {ALLOCATED_FOR: first.record.uid}


def test_claimed_cpus_are_near_other_claimed_devices(server: Server) -> None:
    """As dra-driver-cpu has them in grouped mode, on nodes whose kubelet gives out no CPUs: NUMA node 0 has the only
    free GPU, so the CPUs are of its group, which several claims share."""
    server.service.claims.drivers = frozenset([DRIVER, "dra.cpu"])
    groups = device_slice("n1", (0, 1), driver="dra.cpu")
    for device in groups["spec"]["devices"]:
        device |= {"allowMultipleAllocations": True, "capacity": {"dra.cpu/cpu": {"value": "8"}}}
    groups["spec"]["devices"].reverse()
    server.service.claims.put_slice(sized_slice(groups))
    for name, driver in (("gpu", DRIVER), ("cpus", "dra.cpu")):
        selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
        put_class(server.service.claims, name, selectors=[selector])
    server.put_claim("other", devices=["gpu-0"], reserved=["uid-o"])
    server.put_claim("gpus")
    cpus = claim("cpus")
    cpus["spec"]["devices"]["requests"][0]["exactly"] |= {
        "deviceClassName": "cpus",
        "capacity": {"requests": {"dra.cpu/cpu": "6"}},
    }
    server.claims["cpus"] = cpus
    server.seen("cpus")
    server.put_pod("p", "cpus", "gpus", cpu="100m")
    (write,) = _decided(server)
    assert (write.node, write.form) == ("n1", "required")
    chosen = server.service.claims.assumed_of("uid-p").allocations
    (of_cpus,), (gpu,) = (chosen[f"default/{name}"].devices.results for name in ("cpus", "gpus"))
    assert (gpu.device, of_cpus.device, of_cpus.consumedCapacity) == ("gpu-1", "gpu-0", {"dra.cpu/cpu": "6"})


def test_a_pod_without_exclusive_resources_gets_its_devices_too(server: Server) -> None:
    server.put_claim("a")
    server.put_pod("p", "a", cpu="100m")
    (write,) = _decided(server)
    assert (write.node, write.form) == ("n1", "required")


def test_a_node_without_a_report_has_devices_too(server: Server) -> None:
    server.put_claim("a", 2)
    server.put_claim("b", 2)
    server.put_pod("p", "a")
    server.put_pod("q", "b")
    server.service.put_node("n2")
    server.service.put_devices("n2", None, None)
    assert sorted(write.node for _ in range(2) for write in _decided(server)) == ["n1", "n2"]


def test_extended_resources_that_a_class_backs_are_left_to_kube_scheduler(server: Server) -> None:
    put_class(server.service.claims, "gpu", extendedResourceName="example.com/gpu")
    pod = claiming("p", "2", **GATED, resourceVersion="5")
    for amounts in pod["spec"]["containers"][0]["resources"].values():
        amounts["example.com/gpu"] = "1"
    record = server.service.put(pod)
    option = server.service.ledger.gates.option(ClaimOption)
    assert not option.knows(record, "n1")
    assert not option.shortage(record, "n1")
