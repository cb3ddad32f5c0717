"""Caches are bounded in bytes and drop an entry with its pod. docs/bounds.md has a row for each cache."""

from __future__ import annotations

import gc
import re
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest

from crowds import many_containers
from ledger_check import check_ledger
from scheduling import WAITS, NoApi, Service, counts, exact, kubelet, pod
from topowise import attributes, nrt, pods
from topowise.attributes import holdings
from topowise.bounded import ENTRY_BYTES
from topowise.kube.reflector import Reflector, _decode_envelope
from topowise_scheduler.kubelet import Device, masks, topology_manager
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.machine import NumaNode
from topowise_scheduler.kubelet.shared_allocations import single, single_resource, with_container
from topowise_scheduler.kubelet.topology_manager import TopologyManager
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED
from topowise_scheduler.ledger.gates import capacity
from topowise_scheduler.ledger.gates.node_gates import Quarantine
from topowise_scheduler.ledger.node.possible_placements import Possible
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods import records as records_of_pods
from topowise_scheduler.ledger.rows import node_states, possible_rows
from topowise_scheduler.ledger.rows.node_states import SameStates
from topowise_scheduler.ledger.rows.possible_rows import PossibleRows
from topowise_scheduler.report import exact as exact_report
from topowise_scheduler.report import hardware, synthetic_machine, texts
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Engine, verdict_cache
from topowise_scheduler.verdicts.engine.verdict_cache import VerdictCache

REPOSITORY = Path(__file__).resolve().parents[3]


def requests(containers: int, memory: int = 1) -> PodRequests:
    document = many_containers(containers)
    document["spec"]["containers"][0]["resources"] = {"requests": {"memory": str(memory)}}
    return PodRequests(pods.needs(pods.decode(msgspec.json.encode(document))))


def test_a_shape_goes_with_the_last_of_its_pods() -> None:
    service = Service()
    first, second = service.put(pod("a", "3")), service.put(pod("b", "3"))
    assert first.requests is second.requests
    assert len(service.records._requests) == 1
    del first
    service.ledger.drop_pod("uid-a")
    gc.collect()
    assert len(service.records._requests) == 1
    del second
    service.ledger.drop_pod("uid-b")
    gc.collect()
    assert len(service.records._requests) == 0


def test_the_text_of_a_shape_is_short_however_large_the_pod() -> None:
    service = Service()
    large = service.put(many_containers(records_of_pods.MAX_CONTAINERS))
    assert large.needs is not None
    assert len(large.shape) == len(service.put(pod("small")).shape) == 16


@pytest.mark.parametrize("containers", [records_of_pods.MAX_CONTAINERS + 1, 20_000])
def test_a_pod_that_is_too_large_leaves_no_entry(containers: int) -> None:
    service = Service()
    record = service.put({**many_containers(containers), "status": {"phase": "Running"}}, is_news=True)
    assert record.requests is None
    assert record.shape == b""
    assert str(record.problem) == f"at most {records_of_pods.MAX_CONTAINERS} containers, it has {containers}"
    assert record.is_too_large
    assert len(service.records._requests) == 0


def test_a_pod_of_too_many_amounts_is_not_judged() -> None:
    document = pod("a")
    amounts = {f"example.com/{number}": "1" for number in range(2100)}
    document["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    assert str(Service().put(document).problem) == "at most 4096 amounts in its containers, it has 4200"


def test_a_large_pod_on_a_node_counts_by_its_report_alone(caplog: pytest.LogCaptureFixture) -> None:
    service = Service()
    service.report(counts("n1", "8", included=()))
    document = many_containers(5000)
    document["spec"]["nodeName"] = "n1"
    record = service.put(document)
    assert (record.node, record.status.stage) == ("n1", "assigned")
    assert "Pod cannot be booked" in caplog.text
    assert service.free("n1") == [8]
    service.ledger.drop_pod(record.uid)
    check_ledger(service.ledger)


@pytest.mark.parametrize("count", [records_of_pods._MOST_LABELS, 200])
def test_labels_of_deleted_pods_are_bounded_in_bytes(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of three characters takes fifty bytes and a dict entry."""
    monkeypatch.setattr(records_of_pods, "_MAX_LABEL_BYTES", 1 << 20)
    records = records_of_pods.Records()

    def come_and_go(first: int, last: int) -> None:
        for number in range(first, last):
            document = pod("a", labels={f"l{number}-{label}": f"{label}" for label in range(count)})
            records.decode(msgspec.json.encode(document))

    come_and_go(0, 10)
    tracemalloc.start()
    come_and_go(10, 260)
    gc.collect()
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert traced < 5 << 18


def test_labels_of_nodes_that_change_all_the_time_are_not_kept() -> None:
    nodes = Nodes()
    common = {"metadata": {"name": "m", "labels": {"zone": "a"}}, "spec": {}, "status": {}}
    labels = nodes.decode(msgspec.json.encode(common)).labels
    for number in range(100):
        document = {"metadata": {"name": "n", "labels": {"x": f"{number:0>1000000}"}}, "spec": {}, "status": {}}
        nodes.apply("MODIFIED", nodes.decode(msgspec.json.encode(document)))
        # Labels of other nodes stay shared while unused labels are added and removed.
        assert nodes.decode(msgspec.json.encode(common)).labels is labels
    assert len(nodes._labels) <= 16


def test_pods_that_were_asked_about_are_bounded_in_bytes_and_go_with_their_events() -> None:
    service = Service()
    document = many_containers(records_of_pods.MAX_CONTAINERS)
    for number in range(800):
        document["metadata"]["uid"] = f"made-up-{number}"
        service.ledger.remember(service.records.decode(msgspec.json.encode(document)))
    remembered_pods = service.ledger.reservations.queried
    assert 0 < len(remembered_pods) < 600
    assert 31 << 20 < remembered_pods.bytes <= 32 << 20
    assert service.ledger.remembered("made-up-799") is not None
    assert service.ledger.remembered("made-up-0") is None
    for uid in list(remembered_pods):
        service.ledger.drop_pod(uid)
    assert remembered_pods.bytes == 0


def test_a_quarantine_is_bounded_in_pairs_and_the_oldest_node_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topowise_scheduler.ledger.gates.node_gates._MOST_PAIRS", 20)
    quarantine = Quarantine(Engine())
    for number in range(30):
        quarantine.put(b"%d" % (number % 3), f"n{number // 3}", float(number))
    assert len(quarantine) <= 20
    assert "n0" not in quarantine.nodes(b"0")
    assert "n9" in quarantine.nodes(b"0")
    assert quarantine.expire(1e9) == {f"n{number}" for number in range(4, 10)}
    assert len(quarantine) == 0
    assert (quarantine._until, quarantine._shapes) == ({}, {})


def test_refusals_waiting_and_reservations_go_with_the_pod() -> None:
    service = Service()
    service.report(counts("n1", "8", included=()))
    waits = service.put(pod("w", conditions=WAITS))
    service.refuse(pod("r"), "n1")
    reserved = service.put(pod("e"))
    assert reserved.needs is not None
    service.ledger.reservations.put(reserved, reserved.needs, "n1")
    assert (len(service.ledger.waiting), len(service.ledger.gates.quarantine), len(service.ledger.reservations)) == (
        1,
        1,
        1,
    )
    for uid in (waits.uid, reserved.uid, "uid-r"):
        service.ledger.drop_pod(uid)
    assert (len(service.ledger.waiting), len(service.ledger.reservations)) == (0, 0)
    assert not service.ledger.refused
    service.clock.now += 301
    service.ledger.tick()
    assert len(service.ledger.gates.quarantine) == 0


def test_verdicts_are_bounded_in_bytes_with_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_cache, "_MAX_BYTES", 1 << 20)
    cached = VerdictCache()
    for number in range(60):
        shape_verdicts = cached.of(requests(100, number + 1), 100)
        shape_verdicts.kinds[number] = np.zeros(100, np.int64), np.zeros(100, np.int8)
    assert 1 < len(cached) < 10
    counted = sum(verdicts.counted + ENTRY_BYTES for _, verdicts in cached._shapes.items())
    assert counted == cached._shapes.bytes <= 1 << 20


def test_verdicts_above_the_bound_are_kept_alone_until_the_next_pod() -> None:
    """A pod that is judged in steps reuses the verdicts of the previous step."""
    cached, large, small = VerdictCache(), requests(200, 1), requests(1, 2)
    rows = 30_000
    first = cached.of(large, rows)
    assert first.size > verdict_cache._MAX_BYTES
    assert cached.of(large, rows) is first
    second = cached.of(small, rows)
    assert len(cached) == 1
    assert cached.of(small, rows) is second


def full_node(count: int, number: int, devices: int = 0) -> Possible:
    """A node with `count` pods of uncertain placement. Nodes of different numbers differ."""
    node = kubelet()
    node.report_devices("x.io/nic", [Device(f"nic-{at}", (at % 2,)) for at in range(devices)])
    needs = PodRequests(pods.needs(pods.decode(msgspec.json.encode(pod("p", "1", memory=f"{number + 1}Mi")))))
    views = [needs.view(f"uid-{number}-{'x' * 200}-{at}", node.settings) for at in range(count)]
    for view in views:
        assert node.admit_view(view).admitted
    return Possible(node, views)


def test_states_are_recognised_within_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_states, "_MOST_NUMBER_BYTES", 1 << 18)
    states, alike = SameStates(), full_node(2, 0)
    empty = alike.node.emptied()
    assert states.number(empty, alike) == states.number(empty, alike)
    tracemalloc.start()
    try:
        numbers = {states.number(empty, alike._replace(highest={alike.uncertain[0].uid: at})) for at in range(3000)}
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(numbers) == 3000
    assert 0 < len(states._numbers) < 1000


@pytest.mark.parametrize(("devices", "resources"), [(1100, 0), (0, 128)])
def test_a_node_of_very_many_devices_is_not_kept_for_its_states(devices: int, resources: int) -> None:
    states, large = SameStates(), full_node(2, 0, devices=devices)
    for number in range(resources):
        large.node.report_devices(f"x.io/{number}", [Device("d", (0,))])
    assert states.number(large.node.emptied(), large) != states.number(large.node.emptied(), large)
    assert len(states._lasting) == len(states._numbers) == 0


def test_possible_placements_are_kept_within_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(possible_rows, "_MOST_BYTES", 1 << 18)
    numbers = iter(range(1000))
    rows = PossibleRows(Engine(), lambda _: next(numbers))
    tracemalloc.start()
    try:
        for number in range(60):
            expected = full_node(4, number)
            rows._engine.put("n", expected.node)
            rows.put("n", expected)
        allocated = tracemalloc.get_traced_memory()[0]
        assert 0 < rows._by_number.bytes <= 1 << 18
        rows._by_number.clear()
        # The rest belongs to the node itself and to caches that all tests share.
        assert allocated - tracemalloc.get_traced_memory()[0] < 1 << 19
    finally:
        tracemalloc.stop()


def test_exact_placements_are_kept_within_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_MAX_EXACT_BYTES", 1 << 16)
    service = Service()
    gate = service.ledger.gates.capacity
    for number in range(20):
        name = f"n{number}"
        service.report(counts(name, ("8", "8"), included=()))
        service.put(pod(f"p{number}", "3", node=name))
        assert gate._exact_states(name) is gate._exact_states(name)
        assert len(gate._exact_states(name)) == 3
    assert 0 < gate._exact.bytes <= 1 << 16
    assert len(gate._exact) < 20


@pytest.mark.parametrize("nodes", [8, 16])
def test_sets_of_masks_over_many_nodes_are_few(nodes: int) -> None:
    for number in range(3):
        assert len(masks.masks_in((1 << (1 << nodes) - number) - 1)) == (1 << nodes) - number
    assert masks._large_members.cache_info().maxsize * (1 << 16) * 36 < 40 << 20
    assert masks._small_members.cache_info().maxsize * (1 << 8) * 8 < 10 << 20
    assert len(masks.submasks((1 << nodes) - 1)) == (1 << nodes) - 1


def test_sets_of_masks_that_amounts_reach_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 16 NUMA nodes a set takes 8 KiB, and each requested amount has a set."""
    monkeypatch.setattr(masks._many_reach, "most_bytes", 50_000)
    tracemalloc.start()
    try:
        for amount in range(1, 25):
            assert masks.reaching((amount,) * 16, amount) == (1 << (1 << 16)) - 2
        assert tracemalloc.get_traced_memory()[0] < 120_000
    finally:
        tracemalloc.stop()


def test_ranks_of_masks_by_distances_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every report may have different distances. The ranks of 16 NUMA nodes take two megabytes."""
    monkeypatch.setattr(topology_manager._known_ranks, "most_bytes", 100_000)
    settings = TopologySettings("restricted", "container", prefer_closest=True)
    for number in range(30):
        nodes = [NumaNode(at, 1 << 30, (), {}, tuple(10 + (at != to) * number for to in range(8))) for at in range(8)]
        manager = TopologyManager(settings, nodes)
        assert sorted(manager._rank[1:]) == list(range(255))
        assert topology_manager._known_ranks.bytes <= 100_000
    assert len(topology_manager._known_ranks) > 5


def many_amounts(number: int) -> PodRequests:
    """A container with the maximum number of amounts, whose long names are unique to the pod."""
    amounts = {f"example-{number}.com/{'x' * 40}{at}": "1" for at in range(1000)}
    document = pod(f"p{number}", resources={"requests": amounts, "limits": amounts})
    document["spec"]["containers"][0]["resources"] = document["spec"].pop("resources")
    return PodRequests(pods.needs(pods.decode(msgspec.json.encode(document))))


def test_what_a_shape_costs_goes_by_its_amounts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 shapes of a container with 1,000 amounts took 600 MiB and were counted as 0.5 MiB."""
    monkeypatch.setattr(verdict_cache, "_MAX_BYTES", 4 << 20)
    cached, alive = VerdictCache(), []
    tracemalloc.start()
    try:
        for number in range(24):
            pod_requests = many_amounts(number)
            cached.of(pod_requests, 10)
            alive.append(pod_requests)
        allocated = tracemalloc.get_traced_memory()[0]
        alive.clear()
        gc.collect()
        # The rest belongs to the cache.
        assert tracemalloc.get_traced_memory()[0] < 6 << 20 < allocated
    finally:
        tracemalloc.stop()
    assert 1 < len(cached) < 20


def test_pods_that_were_asked_about_count_with_their_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    for number in range(120):
        amounts = {f"example-{number}.com/{'x' * 40}{at}": "1" for at in range(1000)}
        document = pod(f"p{number}")
        document["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        service.ledger.remember(service.records.decode(msgspec.json.encode(document)))
    assert 30 < len(service.ledger.reservations.queried) < 90


def test_verdicts_go_with_the_last_pod_of_their_shape() -> None:
    service = Service()
    service.report(counts("n1", "8", included=()))
    service.put(pod("a", "3", node="n1"))
    service.put(pod("b", "2", node="n1"))
    assert service.fits(pod("c", "3"), "n1") == service.fits(pod("c", "2"), "n1") == ["n1"]
    assert len(service.engine.cache) == 2
    service.ledger.drop_pod("uid-b")
    service.clock.now += 130
    service.ledger.tick()
    gc.collect()
    service.ledger.tick()
    assert len(service.engine.cache) == 1


def test_equal_allocations_share_an_object_and_invented_names_are_not_cached() -> None:
    assert single("c", 5) is single("c", 5)
    assert with_container(single("a", 1), "b", 2) is with_container({"a": 1}, "b", 2)
    assert single_resource("c", "gpu", 1) is single_resource("c", "gpu", 1)
    for name, amount in (("c" * 64, 1), ("c", 1 << 2000)):
        assert single(name, amount) == {name: amount}
        assert single(name, amount) is not single(name, amount)


def test_nodes_with_the_same_devices_share_their_table() -> None:
    first, second = kubelet(), kubelet()
    devices = [("a", (0,)), ("b", (1,))]
    for node in (first, second):
        node.report_devices("x.io/nic", [Device(name, near) for name, near in devices])
    assert first.devices.tables["x.io/nic"] is second.devices.tables["x.io/nic"]


def test_parts_of_reports_are_dropped_with_their_last_report() -> None:
    """An object that changes with each report leaves nothing behind."""
    service = Service()
    base = msgspec.json.encode(exact(kubelet()))
    caches = (hardware._facts, hardware._kubelets, hardware._origins, synthetic_machine._cache, texts._cache)

    def publish(turn: int, name: str = "n1") -> None:
        document = msgspec.json.decode(base)
        document["metadata"] = {"name": name, "resourceVersion": str(turn)}
        named = {attribute["name"]: attribute["value"] for attribute in document["attributes"]}
        named[attributes.DEVICES] = msgspec.json.encode({f"x.io/{turn}": {"0": [f"d{turn}"]}}).decode()
        for zone in document["zones"]:
            for amount in zone["resources"]:
                if amount["name"] == "memory":
                    amount["capacity"] = str((16 << 30) + turn)
        document["attributes"] = [{"name": key, "value": value} for key, value in named.items()]
        service.report(nrt.decode(msgspec.json.encode(document)))
        service.report(counts(f"{name}-counts", "8", allocatable=str(8 + turn)))

    publish(0)
    publish(1)
    gc.collect()
    before = [len(cache) for cache in caches]
    for turn in range(2, 40):
        publish(turn)
    gc.collect()
    assert [len(cache) for cache in caches] == before
    node_state = service.ledger.node_states.of("n1")
    assert node_state is not None and node_state.report is not None
    assert node_state.report.precision == "exact"


def test_nodes_of_equal_hardware_share_the_parts_of_their_reports() -> None:
    service = Service()
    for name in ("n1", "n2"):
        service.report(exact(kubelet(), name=name))
        service.report(counts(f"{name}-counts", "8"))
    for names in (("n1", "n2"), ("n1-counts", "n2-counts")):
        first, second = (service.ledger.node_states.of(name) for name in names)
        assert first is not None and first.report is not None
        assert second is not None and second.report is not None
        assert first.report.empty is second.report.empty


def test_long_texts_of_reports_are_not_remembered() -> None:
    long = hardware.Facts("x" * (1 << 16), "", ())
    before = (len(hardware._facts), len(hardware._kubelets))
    assert hardware.shared(long) is long
    assert hardware.empty(long, "", NEWEST_RECORDED).kubelet is None
    assert (len(hardware._facts), len(hardware._kubelets)) == before


def test_what_holdings_say_at_length_is_not_remembered() -> None:
    known = exact_report.Allocatable(1, (0,), frozenset({"memory"}))
    before = exact_report._cached_block.cache_info().currsize
    for number in range(10):
        assert exact_report._block_of(holdings.Block("memory", "0," * 300 + "0", number), known).size == number
    many = exact_report.Allocatable(1, (0,), frozenset({"memory", *(f"hugepages-{size}Ki" for size in range(20))}))
    assert exact_report._block_of(holdings.Block("memory", "0", 77), many).size == 77
    assert exact_report._cached_block.cache_info().currsize == before


def test_deletions_that_are_remembered_are_bounded() -> None:
    reflector = Reflector(NoApi(), "/api/v1/pods", pods.decode, Nodes())  # type: ignore[arg-type]
    for number in range(3000):
        raw = msgspec.Raw(b'{"metadata":{"name":"p%d","namespace":"d","resourceVersion":"%d"}}' % (number, number + 1))
        reflector._note_deleted(_decode_envelope(raw).metadata, number + 1)
    assert len(reflector._deleted) == 1024
    assert ("d", "p2999") in reflector._deleted


def test_spellings_of_what_pods_ask_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_of_pods, "_MAX_TEXT_BYTES", 50 * ENTRY_BYTES)
    records = records_of_pods.Records()
    decoded = [records.decode(msgspec.json.encode(pod(f"p{number}", "1." + "0" * number))) for number in range(1, 90)]
    assert len({id(record.requests) for record in decoded}) == 1
    assert 0 < len(records._by_text) <= 50


def test_invalid_node_names_are_not_remembered() -> None:
    service = Service()
    service.answers.question(pods.decode(msgspec.json.encode(pod("a"))), ["n" * 254, "known-to-nobody"])
    assert service.answers._unknown == {"known-to-nobody"}


def test_amounts_with_long_names_are_not_remembered() -> None:
    before = pods._amount_of.cache_info().currsize
    assert pods.amount_of("example.com/" + "x" * 200, "3") == 3
    assert pods._amount_of.cache_info().currsize == before


def test_four_hundred_pods_of_2500_containers_leave_nothing_behind() -> None:
    service = Service()
    service.report(counts("n1", "8", included=()))

    def come_and_go(number: int) -> None:
        document = many_containers(2500)
        document["metadata"]["uid"] = f"large-{number}"
        document["spec"]["containers"][0]["resources"]["limits"]["memory"] = str(number + 1)
        service.put(document)
        service.ledger.drop_pod(f"large-{number}")

    for number in range(20):
        come_and_go(number)
    before = _resident()
    for number in range(20, 400):
        come_and_go(number)
    assert _resident() < 1.1 * before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_every_row_of_the_page_names_a_test_that_there_is() -> None:
    page = (REPOSITORY / "docs/bounds.md").read_text()
    rows = re.findall(r"^\|.*\| `([^`]+)::(\w+)` \|$", page, re.MULTILINE)
    assert len(rows) > 15
    for path, name in rows:
        assert f"def {name}(" in (REPOSITORY / path).read_text(), f"{path}::{name}"


def test_states_between_operations_of_a_node_are_few() -> None:
    """A producer that lists no pods never confirms a pod, so all pods of the node are operations."""
    service = Service()
    service.report(counts("n1", ("64", "64"), allocatable="64", included=()))
    for number in range(40):
        service.put(pod(f"p{number}", "1", node="n1"))
    node_state = service.ledger.node_states.of("n1")
    assert node_state is not None and node_state.kubelet is not None
    assert len(node_state.kubelet.active.keys() & {f"uid-p{number}" for number in range(40)}) == 40
    states = [state for state in node_state._fold._states if state is not None]
    assert len(states) == 8
    # A pod that ends in the middle is removed without these states.
    service.ledger.drop_pod("uid-p3")
    assert sum(service.free("n1")) == 128 - 39
