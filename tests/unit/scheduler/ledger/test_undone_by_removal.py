"""A pod that is only expected on a node, and does not come or would be refused, leaves it as if it never had been."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from examples import examples
from scheduling import Service, configuration, decoded, exact, kubelet, machine, pod, topology_of
from topowise_scheduler.kubelet import Kubelet

_SIZES = ("64Mi", "1Gi", "3Gi", "9Gi", "14Gi", "20Gi", "40Gi")
_EXPECTED = "uid-expected"


def document(rng: Random, name: str, **fields: Any) -> dict[str, Any]:
    return pod(name, str(rng.randint(1, 6)), rng.choice(_SIZES), **fields)


def lie(node: Kubelet) -> tuple[object, ...]:
    """What decides about newcomers."""
    assert node.memory is not None
    assert node.cpu is not None
    tables = node.memory.tables
    return tables.free, tables.assignments, tables.cells, node.cpu.available


def used_nodes(*, fits: bool = True) -> Iterator[tuple[Random, Service, dict[str, Any]]]:
    """Yields nodes on which pods have come and gone, their reports, and a pod that fits there or does not."""
    for seed in range(examples(200)):
        rng = Random(f"undone {seed}")
        built, config = machine(rng.choice((2, 3, 4))), configuration(topologyManagerPolicy="best-effort")
        node, there = Kubelet(built, config), dict[str, dict[str, Any]]()
        for number in range(rng.randint(2, 6)):
            there[f"uid-l{number}"] = resident = document(rng, f"l{number}", node="n1")
            node.admit(decoded(resident))
            if rng.random() < 0.3:
                node.remove(f"uid-l{rng.randint(0, number)}")
        expected = document(rng, "expected")
        if not fits:
            # The first container may fit before another container does not.
            first, second = (document(rng, "expected")["spec"]["containers"][0] for _ in range(2))
            expected["spec"]["containers"] = [{**first, "name": "c0"}, {**second, "name": "c1"}]
        if node.active and node.fork().admit(decoded(expected)).admitted is fits:
            service = Service()
            service.report(topology_of(built, config, node))
            for uid in node.active:
                service.put(there[uid], is_news=False)
            yield rng, service, expected


def regrouped(before: Kubelet, after: Kubelet) -> bool:
    assert before.memory is not None
    assert after.memory is not None
    return any(
        count and cells != now
        for cells, count, now in zip(
            before.memory.tables.cells, before.memory.tables.assignments, after.memory.tables.cells, strict=True
        )
    )


def test_a_reservation_that_is_given_up_leaves_nothing() -> None:
    """Memory on a single NUMA node of a group removes the node from the group, also after the pod's end."""
    out_of_groups = 0
    for _, service, document in used_nodes():
        before = service.node().fork()
        record = service.reserve(document)
        out_of_groups += regrouped(before, service.node())
        service.ledger.reservations.release(record.uid)
        assert lie(service.node()) == lie(before)
    assert out_of_groups > 5


@pytest.mark.parametrize("goes", [True, False])
def test_a_nominated_pod_does_not_count_for_a_higher_priority(goes: bool) -> None:
    """Its resources and its effect on the memory groups are removed as well."""
    wide = out_of_groups = 0
    for _, service, document in used_nodes():
        before = service.node().fork()
        service.put({**document, "status": {"phase": "Pending", "nominatedNodeName": "n1"}})
        with_it = service.node()
        assert with_it.memory is not None
        booked = [block for blocks in with_it.memory.allocations.get(_EXPECTED, {}).values() for block in blocks]
        wide += any(block.mask.bit_count() > 1 for block in booked)
        out_of_groups += regrouped(before, with_it)
        if goes:
            service.ledger.drop_pod(_EXPECTED)
            without = service.node()
        else:
            without = next(service.ledger.node_states.states("n1", {_EXPECTED}))
        assert lie(without) == lie(before)
    assert wide > 50
    assert out_of_groups > 5


def test_a_nominated_pod_that_would_be_refused_leaves_nothing() -> None:
    """Another pod is nominated there during a preemption. A kubelet that refuses the pod keeps its memory groups."""
    traces = 0
    for _, service, document in used_nodes(fits=False):
        before = service.node().fork()
        refused = before.fork()
        assert not refused.admit(decoded(document)).admitted
        traces += lie(refused) != lie(before)
        service.put({**document, "status": {"phase": "Pending", "nominatedNodeName": "n1"}})
        assert lie(service.node()) == lie(before)
        assert lie(next(service.ledger.node_states.states("n1", ()))) == lie(before)
    assert traces > 5


def nominated(name: str, cpu: str, priority: int) -> dict[str, Any]:
    return pod(name, cpu, priority=priority, nominatedNodeName="n1")


def test_pods_placed_after_a_lower_priority_pod_are_placed_without_it() -> None:
    """Zone 0 has three CPUs and zone 1 four. The lower-priority pod is in zone 0, the higher-priority pod in zone 1."""
    service = Service()
    service.report(exact(kubelet()))
    service.put(nominated("lesser", "3", 0))
    service.put(nominated("greater", "3", 100))
    assert service.free("n1") == [0, 1]
    assert service.fits(pod("between", "4", priority=50), "n1") == ["n1"]
    service.ledger.drop_pod("uid-lesser")
    assert service.free("n1") == [0, 4]


def test_the_order_of_pods_follows_the_last_placement() -> None:
    """A report has all of them placed anew, the surest first."""
    service = Service()
    service.report(exact(kubelet()))
    service.put(nominated("nominated", "3", 0))
    service.reserve(pod("reserved", "3"))
    service.report(exact(kubelet(), version="2"))
    service.ledger.reservations.release("uid-reserved")
    service.ledger.drop_pod("uid-reserved")
    assert service.free("n1") == [0, 4]


def test_a_pod_whose_bind_failed_does_not_count_for_pods_bound_after_it() -> None:
    service = Service()
    service.report(exact(kubelet()))
    for name in ("failed", "bound"):
        assert service.assume(pod(name, "3")) == ""
    assert service.free("n1") == [0, 1]
    service.ledger.reservations.forget("uid-failed")
    service.ledger.drop_pod("uid-failed")
    assert service.free("n1") == [0, 4]


def test_a_bound_pod_that_its_kubelet_will_refuse_leaves_the_traces_that_it_leaves_there() -> None:
    """Another scheduler has bound the pod. Until the next report the groups are the kubelet's groups of that time."""
    traces = 0
    for _, service, document in used_nodes(fits=False):
        refused = service.node().fork()
        before = lie(refused.fork())
        refused.admit(decoded(document))
        service.put({**document, "spec": {**document["spec"], "nodeName": "n1"}})
        traces += lie(refused) != before
        assert lie(service.node()) == lie(refused)
    assert traces > 5


def test_bound_pods_stay_where_they_came_before_an_end() -> None:
    """Memory is returned to other NUMA nodes than it was taken from, so the order of pods matters."""
    built, config = machine(2), configuration(topologyManagerPolicy="best-effort")
    truth = Kubelet(built, config)
    documents = [pod("ends", "1", "20Gi"), pod("before", "1", "3Gi"), pod("after", "1", "1Gi")]
    ends, before, after = (decoded(document) for document in documents)
    assert truth.admit(ends).admitted
    service = Service()
    service.report(topology_of(built, config, truth))
    service.put(pod("ends", "1", "20Gi", node="n1"), is_news=False)
    for spec, document in ((before, documents[1]), (after, documents[2])):
        service.put({**document, "spec": {**document["spec"], "nodeName": "n1"}})
        assert truth.admit(spec).admitted
        if spec is before:
            service.ledger.drop_pod("uid-ends")
            truth.remove("uid-ends")
    assert lie(service.node()) == lie(truth)
