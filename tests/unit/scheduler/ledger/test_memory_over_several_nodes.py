"""Memory allocated on a group of NUMA nodes refuses pods that do not take exactly this group."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from examples import examples
from scheduling import GIB, Service, configuration, container, decoded, exact, kubelet, machine, pod, topology_of
from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.ledger.node.pod_parts import holds_anything, position_of
from topowise_scheduler.ledger.node.possible_placements import possible_placements

_SIZES = ("64Mi", "1Gi", "3Gi", "9Gi", "14Gi", "20Gi", "40Gi")
_CPUS = ("500m", "500m", "1", "2", "3", "4", "5", "6")


def needs(name: str, memory: str, cpu: str = "1") -> pods.Needs:
    return pods.needs(decoded(pod(name, cpu, memory)))


def view(node: Kubelet, name: str, rng: Random) -> PodView:
    """A pod with CPUs of its own or without: by policy restricted CPUs are on the NUMA nodes of the memory."""
    return node.view(f"uid-{name}", needs(name, rng.choice(_SIZES), rng.choice(_CPUS)))


def histories() -> Iterator[tuple[Random, Kubelet, Kubelet, PodView]]:
    """Yields a node that admitted a pod before another pod ended, the prediction in which the other pod ends first, and
    the pod."""
    for seed in range(examples(400)):
        rng = Random(seed)
        policy = rng.choice(("none", "best-effort", "best-effort", "restricted"))
        node = Kubelet(machine(rng.choice((2, 3, 4))), configuration(topologyManagerPolicy=policy))
        for number in range(rng.choice((0, 1, 2, 2, 3))):
            node.admit_view(view(node, f"l{number}", rng))
        here, away = node.fork(), node.fork()
        gone, newcomer = view(node, "gone", rng), view(node, "a", rng)
        if not (
            here.admit_view(gone).admitted and here.admit_view(newcomer).admitted and away.admit_view(newcomer).admitted
        ):
            continue
        here.remove(gone.uid)
        yield rng, here, away, newcomer


def refused_after_yes(truth: Kubelet, states: list[Kubelet], rng: Random) -> tuple[int, int]:
    """Returns how many newcomers fit in all states, and how many of them the node refuses."""
    newcomers = [view(truth, f"next{number}", rng) for number in range(12)]
    taken = [newcomer for newcomer in newcomers if all(state.fork().admit_view(newcomer).admitted for state in states)]
    return len(taken), sum(not truth.fork().admit_view(newcomer).admitted for newcomer in taken)


@pytest.mark.parametrize("only_ends", [False, True])
def test_no_pod_is_sent_to_a_node_with_uncertain_memory_groups(only_ends: bool) -> None:
    tried = otherwise = admitted = wrong = 0
    for rng, beside_another, alone, newcomer in histories():
        truth, predicted = (alone, beside_another) if only_ends else (beside_another, alone)
        highest = {newcomer.uid: position_of(predicted, predicted.placements(newcomer.uid))} if only_ends else {}
        assert truth.memory is not None
        assert predicted.memory is not None
        tried += 1
        otherwise += truth.memory.allocations[newcomer.uid] != predicted.memory.allocations[newcomer.uid]
        uncertain = [newcomer] if holds_anything(predicted, newcomer) else []
        states = [predicted, *possible_placements(predicted, uncertain, highest)]
        counts = refused_after_yes(truth, states, rng)
        admitted, wrong = admitted + counts[0], wrong + counts[1]
    assert tried > 80
    assert otherwise > 25
    assert admitted > 250
    assert wrong == 0


def test_a_node_of_two_numa_nodes_takes_pods_again_once_both_are_in_use() -> None:
    node = kubelet(topologyManagerPolicy="best-effort")
    wide = node.view("uid-a", needs("a", "1Gi"))
    newcomer = node.view("uid-n", needs("n", "1Gi"))
    assert node.admit_view(wide).admitted
    assert not any(state.admit_view(newcomer).admitted for state in possible_placements(node, [wide]))
    # If no other pod came first, the pod is placed as predicted, or lower.
    assert all(state.admit_view(newcomer).admitted for state in possible_placements(node, [wide], {wide.uid: 0}))
    for name in "bc":
        assert node.admit_view(node.view(f"uid-{name}", needs(name, "14Gi"))).admitted
    assert all(state.admit_view(newcomer).admitted for state in possible_placements(node, [wide]))


@pytest.fixture
def service() -> Service:
    """Of a node with a pod over both NUMA nodes: the first has none left, the second 11 GiB."""
    config = configuration(topologyManagerPolicy="best-effort")
    node = Kubelet(machine(), config)
    assert node.admit_view(node.view("uid-l", needs("l", "20Gi"))).admitted
    topology = topology_of(machine(), config, node)
    known = Service()
    known.put(pod("l", "1", "20Gi", node="n1", phase="Running"))
    known.report(topology)
    assert free(known) == [0, 11]
    return known


def free(service: Service) -> list[int]:
    return [amount // GIB for amount in service.memory().free["memory"]]


def test_memory_stays_when_a_bound_pod_comes_first(service: Service) -> None:
    service.reserve(pod("a", "1", "5Gi"))
    service.put(pod("b", "1", "2Gi", node="n1"))
    assert free(service) == [0, 4]
    service.ledger.drop_pod("uid-a")
    assert free(service) == [0, 9]


def test_what_was_there_gives_back_as_its_kubelet_does(service: Service) -> None:
    service.put(pod("a", "1", "5Gi", node="n1"))
    assert free(service) == [0, 6]
    service.ledger.drop_pod("uid-a")
    assert free(service) == [5, 6]


def test_a_group_ends_with_its_pod_although_no_report_lists_its_init_container() -> None:
    node = kubelet(topologyManagerPolicy="none")
    amounts = {"cpu": "2", "memory": "20Gi"}
    both = {"initContainers": [container(amounts, "i")], "containers": [container(amounts)]}
    assert node.admit(decoded(pod("wide", **both))).admitted
    service = Service()
    service.put(pod("wide", node="n1", phase="Running", **both))
    service.report(exact(node, topologyManagerPolicy="none"))
    service.ledger.drop_pod("uid-wide")
    service.clock.now += 5
    service.put(pod("small", "1", "1Gi", node="n1", phase="Running"))
    service.clock.now += 5
    # The small pod is alone on NUMA node 0, so that no pod gets memory of both.
    assert not service.fits(pod("newcomer", "1", "20Gi"), "n1")
