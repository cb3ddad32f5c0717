"""Memory per NUMA node: single nodes, groups of nodes, and what init containers leave behind.

Two nodes of 8 GiB; 1 GiB of node 0 is reserved. CPU requests are fractions, so that only memory has hints.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from topowise import pods
from topowise_scheduler.kubelet import Admission, Device, Kubelet, Machine

GI = 1 << 30
BOTH = 0b11
MachineOf = Callable[..., Machine]
KubeletOf = Callable[..., Kubelet]
PodOf = Callable[..., pods.Pod]


def _limits(memory: str, **more: str) -> dict[str, str]:
    return {"cpu": "100m", "memory": memory, **more}


def _free(kubelet: Kubelet, name: str = "memory") -> list[float]:
    assert kubelet.memory is not None
    return [amount / GI for amount in kubelet.memory.tables.free[name]]


def _blocks(admission: Admission, container: str = "c0") -> list[tuple[str, tuple[int, ...], float]]:
    return [(one.type, one.numa, one.size / GI) for one in admission.placements[container].memory]


def test_memory_fills_one_node_after_the_other(machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    assert _blocks(kubelet.admit(pod_of("a", _limits("7Gi")))) == [("memory", (0,), 7)]
    assert _blocks(kubelet.admit(pod_of("b", _limits("7Gi")))) == [("memory", (1,), 7)]


def test_no_room_on_any_mask_is_no_refusal_of_the_topology_manager(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf
) -> None:
    # An empty map of hints means "don't care"; only the allocation fails.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    kubelet.admit(pod_of("a", _limits("7Gi")))
    kubelet.admit(pod_of("b", _limits("7Gi")))
    admission = kubelet.admit(pod_of("c", _limits("7Gi")))
    assert (admission.reason, admission.message) == (
        "UnexpectedAdmissionError",
        "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, "
        "no NUMA nodes with enough memory is available, which is unexpected",
    )


def test_a_pod_on_two_nodes_makes_them_a_group_which_no_single_node_pod_may_enter(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf
) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted")
    wide = kubelet.admit(pod_of("wide", _limits("10Gi")))
    assert _blocks(wide) == [("memory", (0, 1), 10)]
    assert _free(kubelet) == [0, 5]  # the lowest node fills first
    assert kubelet.memory is not None
    assert kubelet.memory.tables.cells == [3, 3]
    refused = kubelet.admit(pod_of("narrow", _limits("1Gi")))
    assert refused.reason == "TopologyAffinityError"
    kubelet.remove("wide")
    assert kubelet.memory.tables.cells == [1, 2]
    assert kubelet.admit(pod_of("narrow", _limits("1Gi"))).admitted


def test_a_node_in_use_alone_joins_no_group(machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="best-effort")
    kubelet.admit(pod_of("narrow", _limits("1Gi")))
    assert kubelet.admit(pod_of("wide", _limits("10Gi"))).reason == "UnexpectedAdmissionError"


def test_memory_widens_a_hint_that_has_too_little(machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf) -> None:
    machine = machine_of(4, 4, devices={"x.io/nic": [Device("n0", (0,))]})
    kubelet = kubelet_of(machine, topologyManagerPolicy="best-effort")
    admission = kubelet.admit(pod_of("p", _limits("10Gi", **{"x.io/nic": "1"})))
    assert admission.placements["c0"].numa == (0,)
    assert _blocks(admission) == [("memory", (0, 1), 10)]


def test_memory_does_not_widen_a_node_alone_in_use(machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="none")
    kubelet.admit(pod_of("a", _limits("6Gi")))
    assert _blocks(kubelet.admit(pod_of("b", _limits("6Gi")))) == [("memory", (1,), 6)]
    assert not kubelet.admit(pod_of("c", _limits("3Gi"))).admitted


def test_init_memory_is_reused_and_the_rest_freed_when_the_app_starts(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf
) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted")
    admission = kubelet.admit(pod_of("p", _limits("2Gi"), init=[_limits("4Gi")]))
    assert _blocks(admission, "i0") == [("memory", (0,), 2)]
    assert _blocks(admission, "c0") == [("memory", (0,), 2)]
    assert _free(kubelet) == [3, 8]
    assert kubelet.start("p")
    assert _free(kubelet) == [5, 8]
    assert _blocks(Admission("p", "Guaranteed", True, kubelet.placements("p")), "i0") == []
    kubelet.remove("p")
    assert _free(kubelet) == [7, 8]


def test_the_start_of_an_init_container_frees_only_those_before_it(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf
) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted")
    kubelet.admit(pod_of("p", _limits("1Gi"), init=[_limits("4Gi"), _limits("3Gi")]))
    held = [one.size // GI for name in ("i0", "i1", "c0") for one in kubelet.placements("p")[name].memory]
    assert sum(held) == 4
    kubelet.start("p", ["i0"])
    assert _free(kubelet) == [3, 8]
    kubelet.start("p", ["i1"])
    assert _free(kubelet) == [3 + held[0], 8]


def test_hugepages_take_the_same_nodes_as_memory(machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf) -> None:
    kubelet = kubelet_of(machine_of(4, 4, hugepages=[{2048: 0}, {2048: 512}]), topologyManagerPolicy="single-numa-node")
    admission = kubelet.admit(pod_of("p", _limits("1Gi", **{"hugepages-2Mi": "512Mi"})))
    assert sorted(_blocks(admission)) == [("hugepages-2Mi", (1,), 0.5), ("memory", (1,), 1)]
    assert _free(kubelet) == [7, 6]  # what is set aside for hugepages is not memory
    assert _free(kubelet, "hugepages-2Mi") == [0, 0.5]


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_fraction_of_a_byte_gives_no_hints_and_fails_the_allocation(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf, scope: str
) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted", topologyManagerScope=scope)
    admission = kubelet.admit(pod_of("p", _limits("1000000500m")))
    assert admission.message == (
        "Allocate failed due to [memorymanager] failed to represent quantity as int64, which is unexpected"
    )


def test_a_page_size_the_node_lacks_is_refused(machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted")
    assert not kubelet.admit(pod_of("p", _limits("1Gi", **{"hugepages-1Gi": "1Gi"}))).admitted
    assert not kubelet.active


def test_burstable_pods_have_no_memory_of_their_own(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf
) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    assert _blocks(kubelet.admit(pod_of("p", {"memory": "20Gi"}))) == []


def test_a_pod_scope_pod_that_is_admitted_again_is_not_refused(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf
) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted", topologyManagerScope="pod")
    pod = pod_of("p", _limits("2Gi"), _limits("1Gi"))
    first = kubelet.admit(pod)
    again = kubelet.admit(pod)
    assert [_blocks(again, name) for name in ("c0", "c1")] == [_blocks(first, name) for name in ("c0", "c1")]
    assert _free(kubelet) == [4, 8]


def test_a_page_size_the_node_lacks_is_refused_even_if_only_an_init_container_asks(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf
) -> None:
    # The pod's own request drops what no app container asks for, so the lack shows only when memory is taken.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node", topologyManagerScope="pod")
    pod = pod_of("a", _limits("1Gi"), init=[_limits("1Gi", **{"hugepages-1Gi": "1Gi"})])
    admission = kubelet.admit(pod)
    assert admission.reason == "UnexpectedAdmissionError"
    assert "hugepages-1Gi" in admission.message


def test_what_an_init_container_has_counts_as_free_for_the_containers_after_it(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf
) -> None:
    # initContainersReusableMemory: node 0 has 1 GiB left beside the 6 GiB of the init container, node 1 is full.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    kubelet.admit(pod_of("full", _limits("8Gi")))
    assert not kubelet.admit(pod_of("large", _limits("7169Mi"), init=[_limits("6Gi")])).admitted
    placed = kubelet.admit(pod_of("p", _limits("7Gi"), init=[_limits("6Gi")]))
    assert (placed.admitted, placed.placements["c0"].numa) == (True, (0,))
    assert _free(kubelet) == [0, 0]


def test_a_container_that_nobody_knows_finishes_no_init_container(
    machine_of: MachineOf, kubelet_of: KubeletOf, pod_of: PodOf
) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    kubelet.admit(pod_of("p", _limits("1Gi"), init=[_limits("2Gi"), _limits("3Gi")]))
    before = _free(kubelet)
    assert kubelet.start("p", ["other"])
    assert _free(kubelet) == before


def test_the_kubelets_own_books_replace_ours_where_they_are_known(machine_of: MachineOf, kubelet_of: KubeletOf) -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert kubelet.memory is not None
    tables = kubelet.memory.tables
    tables.correct({"memory": (None, 2 * GI)}, [1, 1], [BOTH, BOTH])
    assert (_free(kubelet), tables.assignments, tables.cells) == ([7, 2], [1, 1], [BOTH, BOTH])
    # Half of the groups is no news: they are told together or not at all.
    tables.correct({"memory": (3 * GI, None)}, [5, 5], None)
    tables.correct({}, None, [1, 2])
    assert (_free(kubelet), tables.assignments, tables.cells) == ([3, 2], [1, 1], [BOTH, BOTH])
