"""A pod that is only expected on a node, and does not come or would be refused, leaves it as if it never had been."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from examples import examples
from scheduling import Service, configuration, decoded, machine, pod, topology_of
from stories import table, tell
from topowise_scheduler.kubelet import Kubelet

_SIZES = ("64Mi", "1Gi", "3Gi", "9Gi", "14Gi", "20Gi", "40Gi")
_EXPECTED = "uid-expected"
# Seeds of nodes on which the expected pod changes the memory groups: one of a hundred does.
REGROUPING = (131, 317, 354, 419, 473, 647, 717)


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
    for seed in {*range(examples(150)), *REGROUPING}:
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
    assert wide > 20
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


@table("""
# Zone 0 has three CPUs and zone 1 four. The lower-priority pod is in zone 0, the higher-priority pod in zone 1.
pods placed after a lower-priority pod are placed without it
    exact; pod lesser 3 nominated=n1 priority=0; pod greater 3 nominated=n1 priority=100; free 0 1
    fits 4 n1 priority=50; end lesser; free 0 4
the order of pods follows the last placement    # A report has all of them placed anew, the surest first.
    exact; pod nominated 3 nominated=n1 priority=0; reserve reserved 3; exact; release reserved; end reserved; free 0 4
a pod whose bind failed does not count for pods bound after it
    exact; assume failed 3; assume bound 3; free 0 1; unassume failed; end failed; free 0 4
""")
def test_pods_are_placed_without_what_has_gone(story: str) -> None:
    tell(story)
