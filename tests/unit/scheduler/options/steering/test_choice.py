"""Which NUMA node a pod is steered to."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling import configuration, decoded, kubelet, machine, pod
from steering_pods import marked
from topowise.errors import ParseError
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.pods.records import PodRecord, Records
from topowise_scheduler.options.registry import READERS
from topowise_scheduler.options.steering.annotation import required_numa_node
from topowise_scheduler.options.steering.choice import Choice, Demand, choose, refusal_of, views_of
from topowise_scheduler.verdicts.refusals import Refusal


def record(document: dict[str, object]) -> PodRecord:
    return Records(readers=READERS).record(decoded(document))


def chosen(node: Kubelet, document: dict[str, object], *demands: Demand) -> Choice:
    return choose([node], views_of(record(document)), demands)


def required(*numa_nodes: int, **fields: Any) -> Demand:
    return Demand(frozenset(numa_nodes), "a source", **fields)


def preferred(*numa_nodes: int, needs_label: bool = False) -> Demand:
    return required(*numa_nodes, is_required=False, needs_label=needs_label)


def with_pods(node: Kubelet, **numa_by_cpus: int) -> Kubelet:
    """Returns the node with a pod of these CPUs ("c2": two) on a NUMA node each."""
    for name, numa in numa_by_cpus.items():
        pod_view = views_of(record(marked(name, name[1:])))(numa)(node)
        assert node.admit_view(pod_view).admitted
    return node


def test_the_smallest_hole_that_fits_is_chosen() -> None:
    """Three CPUs are free on NUMA node 0 and two on NUMA node 1: a pod of two leaves three in one piece."""
    node = with_pods(kubelet(), c2=1)
    assert chosen(node, marked("a", "2")) == Choice(numa=1, alone=0)


def test_nothing_is_sent_if_the_kubelet_takes_the_best_numa_node() -> None:
    node = with_pods(kubelet(), c1=0)
    assert chosen(node, marked("a", "2")) == Choice(numa=None, alone=0)


def test_equal_numa_nodes_are_left_to_the_kubelet() -> None:
    node = Kubelet(
        machine(4, 8), configuration(reservedSystemCPUs="0,8,16,24", memoryManagerPolicy="None", reservedMemory=())
    )
    assert chosen(node, marked("a", "2")) == Choice(numa=None, alone=0)


def test_a_required_numa_node_is_sent_also_if_it_is_predicted() -> None:
    assert chosen(kubelet(), marked("a"), required(0)) == Choice(0, 0, ("a source",), is_required=True)
    assert chosen(kubelet(), marked("a"), required(1)) == Choice(1, 0, ("a source",), is_required=True)


@pytest.mark.parametrize(
    ("demands", "refusal"),
    [
        ([required(1)], Refusal.NUMA_NODE_FULL),
        ([required(2)], Refusal.NO_SUCH_NUMA_NODE),
        ([required(refusal=Refusal.NO_POD_BESIDE)], Refusal.NO_POD_BESIDE),
        ([required(0), required(1)], Refusal.NO_COMMON_NUMA_NODE),
        ([required(0, 1), required(1)], Refusal.NUMA_NODE_FULL),
    ],
)
def test_without_a_numa_node_that_meets_all_required_demands_the_node_is_refused(
    demands: list[Demand], refusal: str
) -> None:
    node = with_pods(kubelet(), c3=1)
    choice = chosen(node, marked("a"), *demands)
    assert choice == Choice(None, 0, ("a source",) * len(demands), is_required=True, refusal=refusal)
    assert refusal_of([node], views_of(record(marked("a"))), demands) == refusal


def test_every_container_with_resources_of_its_own_needs_a_marker() -> None:
    document = marked("a", "1", "1")
    del document["spec"]["containers"][1]["resources"]["limits"]["topowise.io/numa"]
    node = kubelet()
    assert refusal_of([node], views_of(record(document)), [required(1)]) == Refusal.NO_MARKERS
    by_pod = kubelet(topologyManagerScope="pod")
    assert refusal_of([by_pod], views_of(record(document)), [required(1)]) is None
    assert refusal_of([node], views_of(record(pod("b"))), [required(1)]) == Refusal.NO_MARKERS


def test_policy_none_ignores_hints() -> None:
    node = kubelet(topologyManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=())
    assert refusal_of([node], views_of(record(marked("a"))), [required(1)]) == Refusal.NOT_STEERED_BY_POLICY
    assert chosen(node, marked("a")).numa is None


def test_the_numa_node_must_fit_in_every_possible_state() -> None:
    """A pod of three may be on NUMA node 1; then the pod of two would be refused there."""
    predicted = with_pods(kubelet(), c2=1)
    views = views_of(record(marked("a", "2")))
    assert choose([predicted], views).numa == 1
    states = [predicted, with_pods(kubelet(), c3=1)]
    assert choose(states, views) == Choice(numa=None, alone=0)
    assert refusal_of(states, views, [required(1)]) == Refusal.NUMA_NODE_FULL
    assert choose(states, views, [required(0, 1)]).numa == 0


def test_a_preferred_numa_node_outweighs_the_size_of_holes() -> None:
    node = with_pods(kubelet(), c2=1)
    assert chosen(node, marked("a", "2")).numa == 1
    assert chosen(node, marked("a", "2"), preferred(0)) == Choice(numa=None, alone=0)
    assert chosen(kubelet(), marked("a"), preferred(1)) == Choice(1, 0, ("a source",))
    # Two demands outweigh a demand, and NUMA node 1 is full for the larger pod.
    assert chosen(kubelet(), marked("a"), preferred(0), preferred(1), preferred(1)).numa == 1
    assert chosen(node, marked("a", "3"), preferred(1)) == Choice(numa=None, alone=0)


def test_a_preference_that_needs_a_label_is_sent_also_if_it_is_predicted() -> None:
    assert chosen(kubelet(), marked("a"), preferred(0, needs_label=True)) == Choice(0, 0, ("a source",))
    assert chosen(kubelet(), marked("a"), preferred(0)) == Choice(numa=None, alone=0)


def test_a_requirement_that_the_kubelet_alone_meets_needs_no_label() -> None:
    """Device affinity that is sure without a label forbids the other NUMA nodes, and nothing has to be sent."""
    node = with_pods(kubelet(), c2=1)
    sure = required(0, needs_label=False)
    assert chosen(node, marked("a", "2"), sure) == Choice(numa=None, alone=0)
    assert refusal_of([node], views_of(record(marked("a", "4"))), [sure]) is None
    assert chosen(node, marked("a", "2"), required(needs_label=False)) == Choice(numa=None, alone=0)


@pytest.mark.parametrize("text", ["", "one", "-1", "64", "1,2", "١"])
def test_other_text_is_no_numa_node(text: str) -> None:
    with pytest.raises(ParseError, match="the id of a NUMA node, 0 to 63"):
        required_numa_node({"topowise.io/numa-node": text})


def test_a_numa_node_is_a_number() -> None:
    assert required_numa_node({"topowise.io/numa-node": "63"}) == 63
    assert required_numa_node({"topowise.io/other": "x"}) is None


def test_a_preference_for_the_predicted_numa_node_steers_to_no_other() -> None:
    """NUMA node 0 is full in a possible state, so no label is sent; NUMA node 1 has room in both."""
    states = [kubelet(), with_pods(kubelet(), c3=0)]
    views = views_of(record(marked("a", "2")))
    assert choose(states, views, [preferred(0, needs_label=True)]) == Choice(numa=None, alone=0)
