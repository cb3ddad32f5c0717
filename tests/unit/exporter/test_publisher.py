"""What was seen ends up on the API server, whatever becomes of single requests."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from topowise import attributes, nrt
from topowise.attributes import confirmation
from topowise.errors import ApiError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.config import API_VERSION
from topowise_exporter.conditions import Condition
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.exclusions import Exclusions, PodPattern
from topowise_exporter.kubelet.allocations import Allocatable, Allocations, ContainerAllocation, PodAllocation
from topowise_exporter.machine.inventory import Cpu, Machine, NumaNode
from topowise_exporter.publish import numatopology
from topowise_exporter.publish.topology import Observation, Publishing
from topowise_exporter.publisher import Outcome, Publisher

CPUS = tuple(Cpu(i, 0, 0, 0, i, i, (i,), None, None, None, "") for i in range(4))
NODE = NumaNode(0, (0, 1, 2, 3), 1 << 30, {}, {0: 10}, (0,))
MACHINE = Machine((NODE,), CPUS, (), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3), (), ())
KUBELET = KubeletConfiguration(cpuManagerPolicy="static", topologyManagerPolicy="single-numa-node")


class FakeApi:
    """Keeps what is applied; `refuse` may raise for a request, before or after it took effect."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.refuse: Callable[[str, str], None] = lambda method, path: None
        self.refuse_late = self.refuse
        self.refuse_body: Callable[[str, bytes], None] = lambda path, body: None
        self.raw: dict[str, bytes] = {}

    async def request(self, method: str, path: str, *, body: bytes = b"", **_: object) -> bytes:
        self.refuse(method, path)
        if "/nodes/" in path:
            return b'{"metadata":{"name":"n","uid":"u"}}'
        if method == "PATCH":
            self.refuse_body(path, body)
            self.objects[path] = msgspec.json.decode(body)
        self.refuse_late(method, path)
        if path in self.raw:
            return self.raw[path]
        if path not in self.objects:
            raise ApiError(404, "NotFound", "none", request=path)
        return msgspec.json.encode(self.objects[path])


NRT = f"{nrt.PATH}/n"
HELD = ContainerAllocation("c", frozenset({2}))
VOLCANO = f"{numatopology.PATH}/n"


def seen(*cpus: int, more: tuple[PodAllocation, ...] = ()) -> Observation:
    pods = (PodAllocation("ns", "p", (ContainerAllocation("c", frozenset(cpus)),)), *more)
    return Observation(MACHINE, KUBELET, Allocations(Allocatable(frozenset({1, 2, 3})), pods))


def make(api: FakeApi, now: list[float] | None = None, wall: list[float] | None = None, **settings: Any) -> Publisher:
    """`now` is the monotonic clock, `wall` the other."""
    configuration = ExporterConfiguration(apiVersion=API_VERSION, node_name="n", **settings)
    clocks: Any = {"clock": lambda: wall[0]} if wall else {}
    clocks |= {"monotonic": lambda: now[0]} if now else {}
    return Publisher(configuration, api, **clocks)  # type: ignore[arg-type]


async def succeed(call: Awaitable[Outcome]) -> Outcome:
    """The outcome of a call that no error ended."""
    outcome = await call
    assert outcome.error is None
    return outcome


async def published(
    facts: Observation, now: list[float] | None = None, *, api: Any = None, **settings: Any
) -> tuple[Any, Publisher]:
    """An API server and a publisher that has written these facts."""
    api = api or FakeApi()
    publisher = make(api, now, **settings)
    await succeed(publisher.publish(facts))
    return api, publisher


def free(api: FakeApi) -> str:
    resources = api.objects[NRT]["zones"][0]["resources"]
    return str(next(resource["available"] for resource in resources if resource["name"] == "cpu"))


def failing(on: str, status: int) -> Callable[[str, str], None]:
    def refuse(method: str, path: str) -> None:
        if f"{method} {path}" == on:
            raise ApiError(status, "", "no", request=on)

    return refuse


async def test_a_change_that_volcanos_object_missed_is_written_once_it_can_be() -> None:
    now = [0.0]
    api, publisher = await published(seen(1), now, numatopology=True)
    api.refuse = failing(f"PATCH {VOLCANO}", 429)
    change = seen(1, 2)
    await succeed(publisher.publish(change))
    assert free(api) == "1"
    api.refuse = lambda method, path: None
    now[0] = 1000.0
    await succeed(publisher.publish(change))
    assert api.objects[VOLCANO]["spec"]["numares"]["cpu"]["allocatable"] == "3"


@pytest.mark.parametrize("status", [0, 504])
async def test_a_write_with_a_lost_answer_is_not_taken_for_a_refused_write(status: int) -> None:
    api, publisher = await published(seen(1))
    api.refuse_late = failing(f"PATCH {NRT}", status)
    assert isinstance((await publisher.publish(seen(1, 2))).error, ApiError)
    api.refuse_late = lambda method, path: None
    await succeed(publisher.publish(seen(1)))
    assert free(api) == "2"


async def test_an_object_with_amounts_that_are_none_is_written_anew() -> None:
    facts = seen(1)
    api, publisher = await published(facts)
    api.objects[NRT]["zones"][0]["resources"][0]["available"] = "1e12345"
    await succeed(publisher.check_drift())
    await succeed(publisher.publish(facts))
    assert free(api) == "2"


@pytest.mark.parametrize(("path", "status"), [(VOLCANO, 500), (NRT, 403)])
async def test_a_failed_drift_check_delays_no_write(path: str, status: int) -> None:
    api, publisher = await published(seen(1), numatopology=True)
    api.refuse = failing(f"GET {path}", status)
    await succeed(publisher.check_drift())
    await succeed(publisher.publish(seen(1, 2)))
    assert free(api) == "1"


async def test_a_clock_that_is_set_back_puts_nothing_off() -> None:
    api, ticking, wall = FakeApi(), [0.0], [2e9]
    publisher = make(api, ticking, wall)
    api.refuse = failing("GET /api/v1/nodes/n", 403)
    facts = seen(1)
    await succeed(publisher.publish(facts))
    assert "ownerReferences" not in api.objects[NRT]["metadata"]
    api.refuse = lambda method, path: None
    ticking[0], wall[0] = 1000.0, 1e9
    await succeed(publisher.publish(facts))
    assert api.objects[NRT]["metadata"]["ownerReferences"][0]["uid"] == "u"


async def test_what_is_left_out_is_left_out_of_volcanos_object_too() -> None:
    second_pod = PodAllocation("dpdk", "q", (ContainerAllocation("c", frozenset({2})),))
    for exclusions, allocatable in (
        (Exclusions(pods=(PodPattern(namespace="dpdk"),)), "2-3"),
        (Exclusions(resources=("cpu",)), None),
    ):
        api = FakeApi()
        await succeed(make(api, numatopology=True, exclude=exclusions).publish(seen(1, more=(second_pod,))))
        spec = api.objects[VOLCANO]["spec"]
        assert spec["numares"].get("cpu", {}).get("allocatable") == allocatable
        assert not any(pod["namespace"] == "dpdk" for pod in spec.get("podAllocations", ()))


async def tries(publisher: Publisher, facts: Observation) -> list[ApiError]:
    """What the API server answers until the object is written, or six times."""
    refused = []
    for _ in range(6):
        error = (await publisher.publish(facts)).error
        if error is None:
            break
        refused.append(error)
    return refused


# As etcd, the API server's client of etcd, and the API server refuse. A 500 looks as if a retry could help.
TOO_LARGE = {
    "etcd": (500, "etcdserver: request is too large"),
    "client": (500, "rpc error: code = ResourceExhausted desc = trying to send message larger than max (3 vs. 2)"),
    "server": (413, "Request entity too large: limit is 3145728"),
}


def too_large(limit: int, who: str = "etcd") -> Callable[[str, bytes], None]:
    def refuse(path: str, body: bytes) -> None:
        if len(body) > limit:
            status, message = TOO_LARGE[who]
            raise ApiError(status, "", message, request=path)

    return refuse


@pytest.mark.parametrize("who", TOO_LARGE)
async def test_a_server_that_takes_less_than_etcd_gets_less_at_the_next_try(who: str) -> None:
    api = FakeApi()
    facts = seen(1, more=tuple(PodAllocation("ns", f"q{number}", (HELD,)) for number in range(40)))
    await succeed(make(api).publish(facts))
    whole = len(msgspec.json.encode(api.objects.pop(NRT)))
    api.refuse_body = too_large(whole - 200, who)
    refused = await tries(make(api), facts)
    assert 1 <= len(refused) <= 3
    named = {attribute["name"] for attribute in api.objects[NRT]["attributes"]}
    assert "topowise.io/holdings" not in named
    assert "nodeTopologyPodsFingerprint" in named


async def test_an_object_that_cannot_be_made_to_fit_is_refused_with_its_size() -> None:
    api = FakeApi()
    api.refuse_body = too_large(100)
    refused = await tries(make(api), seen(1))
    assert len(refused) == 6
    assert re.search(r"the object is too large: .* without any of .*, at most", str(refused[-1]))


async def test_pods_are_counted_though_the_object_stays_as_it_is() -> None:
    _, publisher = await published(seen(1), publish=Publishing(fingerprint_method="with-exclusive-resources"))
    outcome = await succeed(publisher.publish(seen(1, more=(PodAllocation("ns", "web"),))))
    assert [write.result for write in outcome.writes] == ["unchanged"]
    assert outcome.content is not None
    assert outcome.content.pods == 2


async def test_free_cpus_are_not_published_where_cpus_are_left_out() -> None:
    api = FakeApi()
    await succeed(make(api, exclude=Exclusions(resources=("cpu",))).publish(seen(1)))
    (zone,) = api.objects[NRT]["zones"]
    assert "topowise.io/cpus-available" not in {attribute["name"] for attribute in zone["attributes"]}


async def test_a_node_with_an_id_beyond_63_is_left_out_and_named() -> None:
    far = msgspec.structs.replace(NODE, id=64, cpus=(), distances={0: 40, 64: 10})
    high = msgspec.structs.replace(MACHINE, nodes=(NODE, far))
    api = FakeApi()
    publisher = make(api)
    for cpus in (1, 2):
        outcome = await succeed(publisher.publish(msgspec.structs.replace(seen(cpus), machine=high)))
        assert [zone["name"] for zone in api.objects[NRT]["zones"]] == ["node-0"]
        assert any("node 64" in line for line in outcome.conditions[Condition.HIGH_NODES])


class Cluster(FakeApi):
    """A Node that may be deleted and recreated, and the objects with uids, as garbage collection sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.node_uid: str | None = "first"
        self.creations = 0

    async def request(self, method: str, path: str, *, body: bytes = b"", **more: object) -> bytes:
        if "/nodes/" in path:
            self.refuse(method, path)
            if self.node_uid is None:
                raise ApiError(404, "NotFound", "none", request=path)
            return msgspec.json.encode({"metadata": {"name": "n", "uid": self.node_uid}})
        is_new = path not in self.objects
        answer = msgspec.json.decode(await super().request(method, path, body=body, **more))
        self.creations += is_new
        answer["metadata"]["uid"] = f"object-{self.creations}"
        return msgspec.json.encode(answer)

    def collect(self) -> None:
        """As the garbage collector: what a Node owns that is not there any more goes."""
        for path, document in list(self.objects.items()):
            owners = document["metadata"].get("ownerReferences", ())
            if owners and all(owner["uid"] != self.node_uid for owner in owners):
                del self.objects[path]


async def test_an_object_that_had_to_be_made_anew_gets_the_uid_of_the_node_as_it_is_now() -> None:
    api, publisher = await published(seen(1), api=Cluster())
    api.node_uid = "second"
    api.collect()
    assert NRT not in api.objects
    # News come before the next check, and carry the uid that is known.
    await succeed(publisher.publish(seen(1, 2)))
    await succeed(publisher.publish(seen(1, 2)))
    api.collect()
    assert api.objects[NRT]["metadata"]["ownerReferences"][0]["uid"] == "second"


@pytest.mark.parametrize("status", [403, 404])
async def test_an_object_that_had_an_owner_always_keeps_an_owner(status: int) -> None:
    api, publisher = await published(seen(1), api=Cluster())
    if status == 404:
        api.node_uid = None
    else:
        api.refuse = failing("GET /api/v1/nodes/n", 403)
    await succeed(publisher.check_drift())
    await succeed(publisher.publish(seen(1, 2)))
    assert api.objects[NRT]["metadata"]["ownerReferences"][0]["uid"] == "first"
    if status == 404:
        api.collect()
        assert NRT not in api.objects, "a node that is gone for good leaves nothing behind"


async def test_a_node_that_comes_back_is_asked_for_until_it_is_there() -> None:
    facts, now = seen(1), [0.0]
    api, publisher = await published(facts, now, api=Cluster())
    api.node_uid = None
    api.collect()
    await succeed(publisher.check_drift())
    await succeed(publisher.publish(facts))
    api.node_uid = "second"
    api.collect()
    now[0] = 1000.0
    for _ in range(2):
        await succeed(publisher.publish(facts))
    assert api.objects[NRT]["metadata"]["ownerReferences"][0]["uid"] == "second"


async def test_fields_of_other_writers_are_no_drift() -> None:
    api, publisher = await published(seen(1))
    metadata = api.objects[NRT]["metadata"]
    # Of the prefix that our own annotation has, and an owner that we did not set: a write would take away neither.
    metadata["annotations"]["topology.node.k8s.io/note"] = "rack 4"
    metadata["ownerReferences"].append({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "older"})
    await succeed(publisher.check_drift())
    assert publisher._topology.has_written
    assert not publisher._topology.foreign_writers


@pytest.mark.parametrize("field", ["annotations", "ownerReferences"])
async def test_removed_fields_of_the_exporter_are_restored(field: str) -> None:
    facts = seen(1)
    api, publisher = await published(facts)
    removed = api.objects[NRT]["metadata"].pop(field)
    await succeed(publisher.check_drift())
    await succeed(publisher.publish(facts))
    assert api.objects[NRT]["metadata"][field] == removed


def marks(api: FakeApi) -> dict[str, str]:
    named = {attribute["name"]: attribute["value"] for attribute in api.objects[NRT]["attributes"]}
    return {name: named[name] for name in (attributes.UNCONFIRMED, attributes.ADMITTING) if name in named}


PODS = frozenset({confirmation.PODS})


async def test_the_last_true_object_stays_and_says_so() -> None:
    api, publisher = await published(seen(1))
    before = msgspec.json.encode(api.objects[NRT])
    await succeed(publisher.keep(PODS))
    assert marks(api) == {attributes.UNCONFIRMED: "pods"}
    unmarked = [entry for entry in api.objects[NRT]["attributes"] if entry["name"] != attributes.UNCONFIRMED]
    assert msgspec.json.encode({**api.objects[NRT], "attributes": unmarked}) == before
    await succeed(publisher.publish(seen(1, 2)))
    assert marks(api) == {}
    assert free(api) == "1"


async def test_while_only_a_device_plug_in_is_missing_the_rest_is_written_as_it_is() -> None:
    """A restarted kubelet allocates memory to finished init containers again, and only its files show which."""
    api, publisher = await published(seen(1))
    facts = seen(1, 2)
    await succeed(publisher.publish(facts, frozenset({confirmation.device("nic")})))
    assert marks(api) == {attributes.UNCONFIRMED: "device:nic"}
    assert free(api) == "1"
    # The kubelet starts anew: the last object lacks these devices still.
    await succeed(publisher.keep(PODS))
    assert marks(api) == {attributes.UNCONFIRMED: "device:nic,pods"}
    await succeed(publisher.publish(facts))
    assert marks(api) == {}


async def test_the_same_facts_after_doubts_are_written_without_the_mark() -> None:
    facts = seen(1)
    api, publisher = await published(facts)
    await succeed(publisher.keep(PODS))
    await succeed(publisher.publish(facts))
    assert marks(api) == {}


async def test_after_a_start_the_object_of_the_earlier_exporter_is_the_last_confirmed_object() -> None:
    api = FakeApi()
    await succeed(make(api).publish(seen(1)))
    api.objects[NRT]["metadata"]["annotations"]["somebody.example/note"] = "rack 4"
    publisher = make(api)
    assert await publisher.recall() is not None
    assert (await succeed(publisher.keep(PODS))).standing.is_published
    assert marks(api) == {attributes.UNCONFIRMED: "pods"}
    assert free(api) == "2"
    # The exporter does not apply fields of other writers.
    assert api.objects[NRT]["metadata"]["annotations"].keys() == {attributes.PODS_FINGERPRINT_ANNOTATION}


@pytest.mark.parametrize("there", [None, b"{", b'{"metadata":{"name":"n"},"zones":[{"name":"node-0","type":"Node"}]}'])
async def test_a_node_without_an_object_gets_no_object_while_the_kubelet_starts(there: bytes | None) -> None:
    api = FakeApi()
    if there is not None:
        api.raw[NRT] = there
    publisher = make(api)
    assert await publisher.recall() is None
    assert not (await succeed(publisher.keep(PODS))).standing.is_published
    assert NRT not in api.objects


async def test_who_may_not_read_the_object_begins_with_nothing() -> None:
    api = FakeApi()
    api.refuse = failing(f"GET {NRT}", 403)
    assert await make(api).recall() is None


async def test_an_object_that_is_deleted_while_the_kubelet_is_doubted_is_written_again() -> None:
    api, publisher = await published(seen(1))
    del api.objects[NRT]
    assert publisher.differs_from("")
    await succeed(publisher.check_drift())
    await succeed(publisher.keep(PODS))
    assert free(api) == "2"
    assert marks(api) == {attributes.UNCONFIRMED: "pods"}


async def test_an_object_that_went_with_its_node_comes_back_with_it_and_not_before() -> None:
    now = [0.0]
    api, publisher = await published(seen(1), now, api=Cluster())
    api.node_uid = None
    api.collect()
    await succeed(publisher.check_drift())
    for _ in range(3):
        await succeed(publisher.publish(seen(1, 2)))
        await succeed(publisher.keep(PODS))
        assert NRT not in api.objects
    api.node_uid, now[0] = "second", 1000.0
    await succeed(publisher.publish(seen(1, 2)))
    assert api.objects[NRT]["metadata"]["ownerReferences"][0]["uid"] == "second"


async def test_only_a_newer_version_of_the_object_is_a_foreign_write() -> None:
    api = FakeApi()
    publisher = make(api)
    assert not publisher.differs_from("5")
    await succeed(publisher.publish(seen(1)))
    publisher._topology.version = "10"
    assert [publisher.differs_from(version) for version in (None, "9", "10", "11", "")] == [
        False,
        False,
        False,
        True,
        True,
    ]


async def test_pods_that_may_not_be_whole_are_named() -> None:
    api = FakeApi()
    facts = seen(1)
    doubted = msgspec.structs.replace(facts.allocations, admitting=frozenset({("ns", "p"), ("left", "out")}))
    publisher = make(api, exclude=Exclusions(pods=(PodPattern(namespace="left"),)))
    await succeed(publisher.publish(msgspec.structs.replace(facts, allocations=doubted)))
    assert marks(api) == {attributes.ADMITTING: "ns/p"}
