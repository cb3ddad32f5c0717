"""Incremental updates of reports and of node ratings give the same result as a full computation."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from examples import examples
from ledger_check import check_ledger
from scheduling import Service, configuration, container, counts, decoded, exact, kubelet, machine, pod, topology_of
from topowise import nrt, pods
from topowise_scheduler import report
from topowise_scheduler.kubelet import Device, Kubelet
from topowise_scheduler.ledger.node.fold import Fold
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.report.exact import is_whole
from topowise_scheduler.verdicts.engine.node_vector import vector_of

GPU = "x.io/gpu"


def life(rng: Random, policy: str) -> Iterator[tuple[Kubelet, list[dict]]]:  # type: ignore[type-arg]
    """Yields a kubelet whose pods come and go, and its pods, including pods without exclusive resources."""
    node = kubelet(topologyManagerPolicy=policy)
    node.report_devices(GPU, [Device(f"gpu{at}", (at % 2,)) for at in range(4)])
    there: dict[str, dict] = {}  # type: ignore[type-arg]
    for number in range(30):
        name = f"p{number}"
        if there and rng.random() < 0.4:
            gone = rng.choice(sorted(there))
            node.remove(f"uid-{gone}")
            del there[gone]
        more = {"limits": {GPU: "1"}} if rng.random() < 0.3 else {}
        amounts = {"cpu": rng.choice(("1", "2", "500m")), "memory": rng.choice(("1Gi", "2Gi"))}
        resources = {"requests": amounts, "limits": {**amounts, **more.get("limits", {})}}
        if rng.random() < 0.4:
            resources = {"requests": {"cpu": "100m"}}
        document = pod(name, containers=[{"name": "c", "resources": resources}], node="n1", phase="Running",
                       startTime=f"2026-11-10T00:{number:02}:00Z")  # fmt: skip
        if node.admit(decoded(document)).admitted:
            there[name] = document
        yield node, list(there.values())


def shown(node: Kubelet, version: int, *, state_files: bool = True) -> nrt.NodeResourceTopology:
    config = configuration(topologyManagerPolicy=node.settings.topology.policy)
    return topology_of(machine(), config, node, str(version), state_files=state_files)


def facts(state: NodeState, node: Kubelet | None = None) -> object:
    node = node or state.kubelet
    assert node is not None
    placements, uids = (
        {uid: node.placements(uid) for uid in node.active},
        {entry.uid: entry.state for entry in state.history.entries()},
    )
    return (
        vector_of(node),
        placements,
        {uid: (uid in node.active, state.is_reported(uid)) for uid in uids},
    )


@pytest.mark.parametrize("policy", ["single-numa-node", "best-effort", "none"])
@pytest.mark.parametrize("seed", range(examples(3)))
def test_a_report_on_top_of_another_is_as_if_it_were_the_first(seed: int, policy: str) -> None:
    rng = Random(seed)
    going, before = Service(), None
    known: set[str] = set()
    seen: set[str] = set()
    for version, (node, there) in enumerate(life(rng, policy), start=1):
        now = {document["metadata"]["uid"] for document in there}
        for uid in known - now:
            going.ledger.drop_pod(uid)
        known = now
        for uid in [uid for uid, _ in going.ledger.pods.assumed() if uid in now and rng.random() < 0.5]:
            # The bind's answer was an error, though its kubelet may have the pod by now.
            going.ledger.reservations.forget(uid)
        for document in there:
            record = going.records.record(msgspec.convert(document, pods.Pod))
            if record.uid in seen or rng.random() < 0.6:
                going.ledger.put_pod(record)
            else:
                going.assume(record)
        seen = {uid for uid in now if rng.random() < 0.8}
        topology = shown(node, version, state_files=rng.random() < 0.8)
        before = report.read_lazily(nrt.decode_lazily(msgspec.json.encode(topology)), before=before)
        assert before == msgspec.structs.replace(
            report.read(topology), marks=before.marks, zone_marks=before.zone_marks, source=before.source
        )
        assert bool(before.zone_marks) == is_whole(before.free, before.empty)
        going.ledger.reports.put(before)
        check_ledger(going.ledger)
        going.clock.now += rng.choice((0.1, 10, 1000))
        going.ledger.tick()
        state = going.state()
        applied = facts(state)
        if rng.random() < 0.3:
            continue
        assert applied == facts(state, Fold().present(state.history))


def test_a_node_is_rated_anew_when_it_changes() -> None:
    going = Service("TightFit")
    rng = Random(1)
    names = [f"n{number}" for number in range(6)]
    free = dict.fromkeys(names, ("8", "8"))
    for number in range(40):
        free[rng.choice(names)] = (str(rng.randrange(9)), str(rng.randrange(9)))
        anew = Service("TightFit")
        for name, available in free.items():
            topology = counts(name, available, included=(), version=str(number))
            if number == 0 or going.free(name) != [int(amount) for amount in available]:
                going.report(topology)
            anew.report(topology)
        record = going.records.record(msgspec.convert(pod("p", rng.choice(("1", "3"))), pods.Pod))
        first, second = (
            running.answers.scores(running.answers.about(record, names)).tolist() for running in (going, anew)
        )
        assert first == second


def test_a_device_reported_for_two_pods_is_allocated_until_both_have_ended() -> None:
    service = Service()
    node = kubelet()
    node.report_devices(GPU, [Device("gpu0", (0,)), Device("gpu1", (0,))])
    limits = {"cpu": "1", "memory": "1Gi", GPU: "1"}
    for name in ("a", "b"):
        document = pod(name, containers=[container(limits)])
        assert node.admit(decoded(document)).admitted
    topology = exact(node)
    both = msgspec.json.decode(msgspec.json.encode(topology).replace(b"gpu1", b"gpu0"), type=nrt.NodeResourceTopology)
    del topology
    first = report.read(both)
    assert len(first.held) == 2
    service.ledger.reports.put(first)
    node.remove("uid-b")
    second = msgspec.structs.replace(
        first,
        version="2",
        held={name: amounts for name, amounts in first.held.items() if name[1] == "a"},
        marks=b"",
        zone_marks=b"",
    )
    service.ledger.reports.put(second)
    state = service.state()
    assert state.kubelet.devices.allocated[GPU].bit_count() == 1


def test_a_deleted_pod_that_an_old_kubelet_lists_has_what_is_reported() -> None:
    service, version = Service(), "v1.32.1"
    node = kubelet()
    documents = [pod(name, "1", node="n1", phase="Running") for name in "ab"]
    for document in documents:
        assert node.admit(decoded(document)).admitted
        service.put(document)
    for number in range(4):
        state = service.ledger.node_states.of("n1")
        before = None if state is None else state.report
        apart = nrt.decode_lazily(msgspec.json.encode(shown(node, number)))
        node_report = report.read_lazily(apart, version, before=before)
        assert node_report.lists_ended
        service.ledger.reports.put(node_report)
        state = service.state()
        facts_then = facts(state)
        assert facts(state, Fold().present(state.history)) == facts_then
        match number:
            case 0:
                service.put(pod("a", containers=documents[0]["spec"]["containers"], node="n1", phase="Succeeded"))
                service.wait(1000)
            case 1:
                service.ledger.drop_pod("uid-a")


def test_a_reported_pod_whose_bind_failed_has_what_is_reported() -> None:
    service, node = Service(), kubelet()
    node.report_devices(GPU, [Device("gpu0", (0,)), Device("gpu1", (1,))])
    service.report(shown(node, 1))
    limits = {"cpu": "1", "memory": "1Gi", GPU: "1"}
    document = pod("a", containers=[container(limits)])
    assert node.admit(decoded(document)).admitted
    record = service.records.decode(msgspec.json.encode(document))
    assert service.assume(record) == ""
    for version in (2, 3):
        service.report(shown(node, version))
        state = service.ledger.node_states.of("n1")
        assert state is not None and state.kubelet is not None and state.report is not None
        assert state.kubelet.devices.allocated[GPU].bit_count() == 1
        applied = facts(state)
        assert applied == facts(state, Fold().present(state.history))
        service.ledger.reservations.forget("uid-a")


def test_a_report_that_differs_in_its_version_alone_changes_nothing_and_later_events_hold() -> None:
    service = Service()
    node = kubelet()
    service.put(pod("a", "2", node="n1", phase="Running"))
    assert node.admit(pods.decode(msgspec.json.encode(pod("a", "2")))).admitted
    service.report(exact(node, "1"))
    changes, state = service.ledger.node_states.changes, service.ledger.node_states.of("n1")
    assert state is not None
    before = state.kubelet
    service.report(exact(node, "2"))
    assert service.ledger.node_states.changes == changes
    assert state.kubelet is before
    assert state.report is not None
    assert state.report.version == "2"
    service.put(pod("b", "2", node="n1", phase="Running"))
    service.ledger.drop_pod("uid-a")
    check_ledger(service.ledger)
    assert sum(service.free("n1")) == 5
    assert node.admit(pods.decode(msgspec.json.encode(pod("b", "2")))).admitted
    node.remove("uid-a")
    service.report(exact(node, "3"))
    check_ledger(service.ledger)
    assert sum(service.free("n1")) == 5
