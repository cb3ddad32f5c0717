"""Memory per NUMA node: single nodes, groups of nodes, and reusable memory of init containers.

Two nodes of 8 GiB; 1 GiB of node 0 is reserved. CPU requests are fractions, so that only memory has hints.
"""

from __future__ import annotations

import pytest

from kubelets import GI, kubelet_of, machine_of, pod_of
from topowise import pods
from topowise_scheduler.kubelet import Admission, Device, Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.hints import WOULD_PANIC
from topowise_scheduler.kubelet.pod import view

BOTH = 0b11


def _limits(memory: str, **more: str) -> dict[str, str]:
    return {"cpu": "100m", "memory": memory, **more}


def _free(kubelet: Kubelet, name: str = "memory") -> list[float]:
    assert kubelet.memory is not None
    return [amount / GI for amount in kubelet.memory.tables.free[name]]


def _blocks(admission: Admission, container: str = "c0") -> list[tuple[str, tuple[int, ...], float]]:
    return [(block.type, block.numa, block.size / GI) for block in admission.placements[container].memory]


def test_memory_fills_numa_nodes_in_order() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    assert _blocks(kubelet.admit(pod_of("a", _limits("7Gi")))) == [("memory", (0,), 7)]
    assert _blocks(kubelet.admit(pod_of("b", _limits("7Gi")))) == [("memory", (1,), 7)]


def test_memory_that_fits_on_no_mask_is_refused_by_the_allocation() -> None:
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


def test_a_pod_on_two_nodes_makes_them_a_group_which_no_single_node_pod_may_enter() -> None:
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


def test_a_node_in_single_node_use_joins_no_group() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="best-effort")
    kubelet.admit(pod_of("narrow", _limits("1Gi")))
    assert kubelet.admit(pod_of("wide", _limits("10Gi"))).reason == "UnexpectedAdmissionError"


def test_memory_widens_a_hint_that_has_too_little() -> None:
    machine = machine_of(4, 4, devices={"x.io/nic": [Device("n0", (0,))]})
    kubelet = kubelet_of(machine, topologyManagerPolicy="best-effort")
    admission = kubelet.admit(pod_of("p", _limits("10Gi", **{"x.io/nic": "1"})))
    assert admission.placements["c0"].numa == (0,)
    assert _blocks(admission) == [("memory", (0, 1), 10)]


def test_memory_does_not_widen_a_node_in_single_node_use() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="none")
    kubelet.admit(pod_of("a", _limits("6Gi")))
    assert _blocks(kubelet.admit(pod_of("b", _limits("6Gi")))) == [("memory", (1,), 6)]
    assert not kubelet.admit(pod_of("c", _limits("3Gi"))).admitted


def test_init_memory_is_reused_and_the_rest_freed_when_the_app_starts() -> None:
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


def test_the_start_of_an_init_container_frees_only_earlier_init_containers() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted")
    kubelet.admit(pod_of("p", _limits("1Gi"), init=[_limits("4Gi"), _limits("3Gi")]))
    sizes = [block.size // GI for name in ("i0", "i1", "c0") for block in kubelet.placements("p")[name].memory]
    assert sum(sizes) == 4
    kubelet.start("p", ["i0"])
    assert _free(kubelet) == [3, 8]
    kubelet.start("p", ["i1"])
    assert _free(kubelet) == [3 + sizes[0], 8]


def test_hugepages_take_the_same_nodes_as_memory() -> None:
    kubelet = kubelet_of(machine_of(4, 4, hugepages=[{2048: 0}, {2048: 512}]), topologyManagerPolicy="single-numa-node")
    admission = kubelet.admit(pod_of("p", _limits("1Gi", **{"hugepages-2Mi": "512Mi"})))
    assert sorted(_blocks(admission)) == [("hugepages-2Mi", (1,), 0.5), ("memory", (1,), 1)]
    assert _free(kubelet) == [7, 6]  # hugepages reduce memory
    assert _free(kubelet, "hugepages-2Mi") == [0, 0.5]


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_fraction_of_a_byte_gives_no_hints_and_fails_the_allocation(scope: str) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted", topologyManagerScope=scope)
    admission = kubelet.admit(pod_of("p", _limits("1000000500m")))
    assert admission.message == (
        "Allocate failed due to [memorymanager] failed to represent quantity as int64, which is unexpected"
    )


def test_a_page_size_the_node_lacks_is_refused() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted")
    assert not kubelet.admit(pod_of("p", _limits("1Gi", **{"hugepages-1Gi": "1Gi"}))).admitted
    assert not kubelet.active


def test_burstable_pods_get_no_memory_blocks() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    assert _blocks(kubelet.admit(pod_of("p", {"memory": "20Gi"}))) == []


def test_a_pod_scope_pod_that_is_admitted_again_is_not_refused() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted", topologyManagerScope="pod")
    pod = pod_of("p", _limits("2Gi"), _limits("1Gi"))
    first = kubelet.admit(pod)
    again = kubelet.admit(pod)
    assert [_blocks(again, name) for name in ("c0", "c1")] == [_blocks(first, name) for name in ("c0", "c1")]
    assert _free(kubelet) == [4, 8]


def test_memory_under_an_unknown_container_name_is_ignored() -> None:
    """For example, an earlier pod of this name had pod-level resources: its report has memory for the pod only."""
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted", topologyManagerScope="pod")
    blocks = (MemoryBlock("memory", (0,), GI),)
    kubelet.hold("p", {}, {"": Placement("app", (0,), True, None, blocks)})
    assert _blocks(kubelet.admit(pod_of("p", _limits("2Gi")))) == [("memory", (0,), 2)]


def test_a_page_size_the_node_lacks_is_refused_even_if_only_an_init_container_asks() -> None:
    # The pod request omits resources without an app container's request, so only the allocation fails.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node", topologyManagerScope="pod")
    pod = pod_of("a", _limits("1Gi"), init=[_limits("1Gi", **{"hugepages-1Gi": "1Gi"})])
    admission = kubelet.admit(pod)
    assert admission.reason == WOULD_PANIC
    assert "no NUMA node has" in admission.message


def test_memory_of_an_init_container_counts_as_free_for_later_containers() -> None:
    # initContainersReusableMemory: node 0 has 1 GiB free and 6 GiB of the init container, node 1 is full.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    kubelet.admit(pod_of("full", _limits("8Gi")))
    assert not kubelet.admit(pod_of("large", _limits("7169Mi"), init=[_limits("6Gi")])).admitted
    placed = kubelet.admit(pod_of("p", _limits("7Gi"), init=[_limits("6Gi")]))
    assert (placed.admitted, placed.placements["c0"].numa) == (True, (0,))
    assert _free(kubelet) == [0, 0]


def test_reusable_memory_of_a_type_does_not_change_other_types() -> None:
    # initContainersReusableMemory is per type: node 0 has exactly the pages; its memory is of the init container.
    machine = machine_of(4, 4, hugepages=[{2048: 512}, {2048: 512}])
    kubelet = kubelet_of(machine, topologyManagerPolicy="single-numa-node")
    placed = kubelet.admit(pod_of("p", _limits("5Gi", **{"hugepages-2Mi": "1Gi"}), init=[_limits("5Gi")]))
    assert (placed.admitted, placed.placements["c0"].numa) == (True, (0,))


def test_a_container_with_memory_has_a_single_hint_of_its_nodes() -> None:
    # regenerateHints: a single hint, which is preferred.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted")
    kubelet.admit(pod_of("first", _limits("7Gi")))
    pod = pod_of("p", _limits("2Gi"))
    kubelet.admit(pod)
    seen = view("p", pods.needs(pod))
    assert kubelet.memory is not None
    only = 1 << 0b10
    assert kubelet.memory.hints(seen, seen.containers[0]) == {"memory": (only, only)}


def test_the_start_of_an_unknown_container_finishes_no_init_container() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    kubelet.admit(pod_of("p", _limits("1Gi"), init=[_limits("2Gi"), _limits("3Gi")]))
    before = _free(kubelet)
    assert kubelet.start("p", ["other"])
    assert _free(kubelet) == before


def test_known_kubelet_accounting_replaces_the_model() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert kubelet.memory is not None
    tables = kubelet.memory.tables
    tables.correct({"memory": (None, 2 * GI)}, [1, 1], [BOTH, BOTH])
    assert (_free(kubelet), tables.assignments, tables.cells) == ([7, 2], [1, 1], [BOTH, BOTH])
    # Assignments and cells are corrected together or not at all.
    tables.correct({"memory": (3 * GI, None)}, [5, 5], None)
    tables.correct({}, None, [1, 2])
    assert (_free(kubelet), tables.assignments, tables.cells) == ([3, 2], [1, 1], [BOTH, BOTH])


def test_in_pod_scope_the_memory_of_all_containers_is_a_single_request() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node", topologyManagerScope="pod")
    refused = kubelet.admit(pod_of("p", _limits("5Gi"), _limits("4Gi")))
    assert (refused.admitted, refused.reason) == (False, "TopologyAffinityError")
    assert kubelet.admit(pod_of("p", _limits("4Gi"), _limits("4Gi"))).placements["c1"].numa == (1,)


def test_memory_without_a_preferred_mask_has_no_default_preferred_hint() -> None:
    # The pod's 8 GiB fit on no mask, which means "don't care": the stored hint is nil and preferred. Then a container
    # gets the group of both nodes, although a single node has the capacity.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node", topologyManagerScope="pod")
    group = MemoryBlock("memory", (0, 1), 10 * GI)
    kubelet.hold("group", {}, {"c0": Placement("app", (0, 1), True, None, (group,))})
    admission = kubelet.admit(pod_of("p", _limits("4Gi"), _limits("4Gi")))
    assert admission.rejection is not None
    assert admission.rejection.error == "[memorymanager] failed to find the default preferred hint"


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_pod_after_a_kubelet_restart_keeps_its_memory(policy: str) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy=policy)
    kubelet.admit(pod_of("first", _limits("7Gi")))
    placed = kubelet.admit(pod_of("p", _limits("2Gi")))
    kubelet.remove("first")
    assert kubelet.admit(pod_of("p", _limits("2Gi"))) == placed
    assert placed.placements["c0"].numa == (1,)


@pytest.mark.parametrize(
    ("memory", "hugepages", "numa"),
    [
        pytest.param("2Gi", "1Gi", (1,), id="all there is on node 1"),
        pytest.param("2049Mi", "1Gi", (0, 1), id="memory of node 0 and pages of node 1"),
    ],
)
def test_the_least_number_of_nodes_counts_all_types_together(
    memory: str, hugepages: str, numa: tuple[int, ...]
) -> None:
    machine = machine_of(4, 4, memory=(8 * GI, 3 * GI), hugepages=[{2048: 0}, {2048: 512}])
    kubelet = kubelet_of(machine, topologyManagerPolicy="restricted")
    placed = kubelet.admit(pod_of("p", _limits(memory, **{"hugepages-2Mi": hugepages}))).placements["c0"]
    assert (placed.numa, placed.preferred) == (numa, True)


@pytest.mark.parametrize("alone", [0, 1])
def test_no_group_has_a_node_in_single_node_use(alone: int) -> None:
    # Three nodes, 7 + 8 + 8 GiB: a request too large for a single node takes the two unused nodes.
    kubelet = kubelet_of(machine_of(4, 4, 4), topologyManagerPolicy="restricted")
    block = MemoryBlock("memory", (alone,), GI)
    kubelet.hold("alone", {}, {"c0": Placement("app", (alone,), True, None, (block,))})
    assert kubelet.admit(pod_of("p", _limits("9Gi"))).placements["c0"].numa == tuple({0, 1, 2} - {alone})


def test_the_last_byte_is_booked_and_released() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert kubelet.memory is not None
    tables = kubelet.memory.tables
    tables.take("memory", BOTH, 7 * GI + 1)
    assert tables.free["memory"] == [0, 8 * GI - 1]
    tables.give("memory", BOTH, 7 * GI + 1)
    assert tables.free["memory"] == [7 * GI, 8 * GI]


def test_the_default_is_the_narrower_group() -> None:
    # isHintInMemory, findBestHint: no group is preferred for 4 GiB; two nodes are fewer than three.
    kubelet = kubelet_of(machine_of(2, 2, 2, 2, 2), topologyManagerPolicy="none")
    for nodes in ((0, 1, 2), (3, 4)):
        block = MemoryBlock("memory", nodes, 2 * GI)
        kubelet.hold(f"on-{nodes}", {}, {"c0": Placement("app", nodes, True, None, (block,))})
    assert _blocks(kubelet.admit(pod_of("p", _limits("4Gi")))) == [("memory", (3, 4), 4)]


def test_a_node_without_pages_of_a_size_has_none() -> None:
    kubelet = kubelet_of(machine_of(4, 4, hugepages=[{2048: 512}, {}]))
    assert _free(kubelet, "hugepages-2Mi") == [1, 0]
    assert _free(kubelet) == [6, 8]


def test_the_request_of_a_pod_is_the_peak_of_its_containers() -> None:
    # getPodRequestedResources: the sum of apps and sidecars, or an init container plus earlier sidecars.
    def total(*containers: tuple[pods.Kind, int]) -> dict[str, int] | None:
        needs = tuple(
            pods.ContainerNeeds(f"c{number}", kind, {"cpu": 1000, "memory": size}, {})
            for number, (kind, size) in enumerate(containers)
        )
        seen = view("p", pods.Needs(needs, {}, "Guaranteed"))
        assert seen.cpus == max(1, sum(kind != "init" for kind, _ in containers))
        return seen.memory

    assert total(("app", 3)) == {"memory": 3}
    assert total(("app", 0)) == {"memory": 0}
    assert total(("init", 0), ("app", 0)) == {"memory": 0}
    assert total(("init", 5), ("app", 3)) == {"memory": 5}
    assert total(("init", 5), ("init", 4), ("app", 3)) == {"memory": 5}
    assert total(("init", 5), ("sidecar", 1), ("app", 3)) == {"memory": 5}
    assert total(("sidecar", 1), ("init", 5), ("app", 3)) == {"memory": 6}
    assert total(("sidecar", 1), ("sidecar", 1), ("app", 3), ("app", 2)) == {"memory": 7}
