"""KEP-6007, prefer-most-allocated-numa-node: each row of the combine rule, and the gain in density."""

from __future__ import annotations

import pytest

from kubelets import GI, kubelet_of, machine_of, pod_of
from topowise_scheduler.kubelet import Kubelet, MemoryBlock, MemoryReservation, Placement
from topowise_scheduler.kubelet.masks import mask_of
from topowise_scheduler.kubelet.scopes import MostAllocated

CPUS_OF = ((1, 2, 3, 9, 10, 11, 8), (5, 6, 7, 13, 14, 15, 12))
OPTION = {"topologyManagerPolicyOptions": {"prefer-most-allocated-numa-node": "true"}}


def _even_kubelet() -> Kubelet:
    """Two equal nodes: seven CPUs and 7.5 GiB can be allocated on each."""
    return kubelet_of(
        machine_of(4, 4),
        topologyManagerPolicy="single-numa-node",
        reservedSystemCPUs="0,4",
        reservedMemory=(MemoryReservation(0, {"memory": "512Mi"}), MemoryReservation(1, {"memory": "512Mi"})),
        **OPTION,
    )


def _hold(kubelet: Kubelet, node: int, cpus: int, memory: int) -> None:
    kubelet.hold(
        f"on-{node}",
        {},
        {
            "c0": Placement(
                kind="app",
                numa=(node,),
                preferred=True,
                cpus=mask_of(CPUS_OF[node][:cpus]) if cpus else None,
                memory=(MemoryBlock("memory", (node,), memory),) if memory else (),
            )
        },
    )


@pytest.mark.parametrize(
    ("cpus", "memory", "taken"),
    [
        pytest.param((0, 0), (0, 0), 0, id="both undecided"),
        pytest.param((2, 2), (GI, GI), 0, id="both equal"),
        pytest.param((0, 2), (0, 0), 1, id="cpu alone decides"),
        pytest.param((2, 0), (0, 0), 0, id="cpu alone decides for the first"),
        pytest.param((0, 0), (0, GI), 1, id="memory alone decides"),
        pytest.param((0, 2), (0, GI), 1, id="both agree"),
        pytest.param((0, 2), (GI, 0), 0, id="they disagree"),
        pytest.param((2, 0), (0, GI), 0, id="they disagree the other way"),
    ],
)
def test_the_votes_of_cpu_and_memory_are_combined(cpus: tuple[int, int], memory: tuple[int, int], taken: int) -> None:
    kubelet = _even_kubelet()
    for node in (0, 1):
        _hold(kubelet, node, cpus[node], memory[node])
    assert MostAllocated(kubelet.cpu, kubelet.memory)(0, 1) == taken


def test_a_manager_with_policy_none_does_not_vote() -> None:
    kubelet = _even_kubelet()
    _hold(kubelet, 0, cpus=0, memory=GI)
    _hold(kubelet, 1, cpus=2, memory=0)
    assert MostAllocated(kubelet.cpu, None)(0, 1) == 1
    assert MostAllocated(None, kubelet.memory)(0, 1) == 0
    assert MostAllocated(None, None)(0, 1) == 0


def test_shares_that_differ_by_less_than_1_percent_are_equal() -> None:
    kubelet = _even_kubelet()
    _hold(kubelet, 0, cpus=0, memory=GI)
    _hold(kubelet, 1, cpus=0, memory=GI + (1 << 20))
    assert MostAllocated(kubelet.cpu, kubelet.memory)(0, 1) == 0


def test_the_node_is_a_left_fold_over_ascending_ids() -> None:
    # CPU and memory disagree between nodes 0 and 1 (0 stays); then node 2 beats node 0 by memory.
    kubelet = kubelet_of(machine_of(4, 4, 4, threads=1), topologyManagerPolicy="single-numa-node", **OPTION)
    for node, (cpu, size) in enumerate([(None, GI), (5, 0), (None, 2 * GI)]):
        memory = (MemoryBlock("memory", (node,), size),) if size else ()
        placement = Placement(kind="app", numa=(node,), preferred=True, cpus=cpu and 1 << cpu, memory=memory)
        kubelet.hold(f"on-{node}", {}, {"c0": placement})
    assert kubelet.admit(pod_of("p", {"cpu": "1", "memory": "1Gi"})).placements["c0"].numa == (2,)


@pytest.mark.parametrize("policy", ["best-effort", "restricted"])
def test_other_policies_ignore_the_option(policy: str) -> None:
    kubelet = kubelet_of(machine_of(4, 8), topologyManagerPolicy=policy, **OPTION)
    kubelet.admit(pod_of("large", {"cpu": "10", "memory": "1Gi"}))
    assert kubelet.admit(pod_of("small", {"cpu": "4", "memory": "1Gi"})).placements["c0"].numa == (0,)


@pytest.mark.parametrize(("option", "admitted"), [({}, False), (OPTION, True)])
def test_an_asymmetric_node_takes_one_more_pod(option: dict[str, dict[str, str]], admitted: bool) -> None:
    # Node 0 has 7 CPUs for pods, node 1 has 16. After the large pod, the small pod belongs on the same node.
    kubelet = kubelet_of(machine_of(4, 8), topologyManagerPolicy="single-numa-node", **option)
    assert kubelet.admit(pod_of("large", {"cpu": "10", "memory": "1Gi"})).placements["c0"].numa == (1,)
    assert kubelet.admit(pod_of("small", {"cpu": "4", "memory": "1Gi"})).admitted
    assert kubelet.admit(pod_of("middle", {"cpu": "7", "memory": "1Gi"})).admitted is admitted


def test_a_node_without_capacity_counts_as_empty_and_a_single_cpu_does_not() -> None:
    # mostRequestedScore is 0 where the capacity is 0.
    kubelet = kubelet_of(machine_of(4, 0, 1, threads=1), topologyManagerPolicy="single-numa-node", **OPTION)
    vote = MostAllocated(kubelet.cpu, None)
    assert (vote(0, 1), vote(1, 2)) == (0, 1)
    kubelet.reserve(2, cpus=1 << 4)
    assert (vote(1, 2), vote(0, 2)) == (2, 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(7450, 7500, id="a full node and one at 99 %"),
        pytest.param(3720, 3750, id="49 and 50 %"),
    ],
)
def test_integer_percents_are_compared(first: int, second: int) -> None:
    kubelet = _even_kubelet()
    for node, share in enumerate((first, second)):
        _hold(kubelet, node, cpus=0, memory=15 * GI // 2 * share // 7500)
    assert MostAllocated(None, kubelet.memory)(0, 1) == 1


def test_shares_are_compared_and_not_amounts() -> None:
    # Two of seven CPUs are more than three of sixteen.
    kubelet = kubelet_of(machine_of(4, 8), topologyManagerPolicy="single-numa-node", **OPTION)
    for node, cpus in enumerate(((1, 2), (4, 5, 6))):
        kubelet.reserve(node, cpus=mask_of(cpus))
    vote = MostAllocated(kubelet.cpu, None)
    assert (vote(1, 0), vote(0, 1)) == (0, 0)
