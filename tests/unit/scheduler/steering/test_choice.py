"""Which NUMA node a pod is steered to."""

from __future__ import annotations

import pytest

from scheduling import configuration, decoded, kubelet, machine, pod
from steering_pods import marked
from topowise.errors import ParseError
from topowise_scheduler.cluster.gates.numa_node import views_of
from topowise_scheduler.cluster.pods.records import PodRecord, Records
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.steering.annotation import required_numa_node
from topowise_scheduler.steering.choice import Choice, choose, problem_of


def record(document: dict[str, object]) -> PodRecord:
    return Records().record(decoded(document))


def chosen(node: Kubelet, document: dict[str, object], required: int | None = None) -> Choice:
    return choose([node], views_of(record(document)), required)


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
    assert chosen(kubelet(), marked("a"), 0) == Choice(numa=0, alone=0)
    assert chosen(kubelet(), marked("a"), 1) == Choice(numa=1, alone=0)


@pytest.mark.parametrize(("numa", "problem"), [(1, "full"), (2, "missing")])
def test_a_required_numa_node_that_cannot_be_is_a_problem(numa: int, problem: str) -> None:
    node = with_pods(kubelet(), c3=1)
    assert chosen(node, marked("a"), numa) == Choice(alone=0, problem=problem)  # type: ignore[arg-type]


def test_every_container_with_resources_of_its_own_needs_a_marker() -> None:
    document = marked("a", "1", "1")
    del document["spec"]["containers"][1]["resources"]["limits"]["topowise.io/numa"]
    node = kubelet()
    assert problem_of([node], views_of(record(document)), 1) == "markers"
    by_pod = kubelet(topologyManagerScope="pod")
    assert problem_of([by_pod], views_of(record(document)), 1) == ""
    assert problem_of([node], views_of(record(pod("b"))), 1) == "markers"


def test_policy_none_ignores_hints() -> None:
    node = kubelet(topologyManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=())
    assert problem_of([node], views_of(record(marked("a"))), 1) == "policy"
    assert chosen(node, marked("a")).numa is None


def test_the_numa_node_must_fit_in_every_possible_state() -> None:
    """A pod of three may be on NUMA node 1; then the pod of two would be refused there."""
    predicted = with_pods(kubelet(), c2=1)
    views = views_of(record(marked("a", "2")))
    assert choose([predicted], views, None).numa == 1
    assert choose([predicted, with_pods(kubelet(), c3=1)], views, None) == Choice(numa=None, alone=0)
    assert problem_of([predicted, with_pods(kubelet(), c3=1)], views, 1) == "full"


@pytest.mark.parametrize("text", ["", "one", "-1", "64", "1,2", "١"])
def test_other_text_is_no_numa_node(text: str) -> None:
    with pytest.raises(ParseError, match="the id of a NUMA node, 0 to 63"):
        required_numa_node({"topowise.io/numa-node": text})


def test_a_numa_node_is_a_number() -> None:
    assert required_numa_node({"topowise.io/numa-node": "63"}) == 63
    assert required_numa_node({"topowise.io/other": "x"}) is None
