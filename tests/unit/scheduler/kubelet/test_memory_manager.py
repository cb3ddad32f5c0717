"""Memory per NUMA node where no recorded decision shows a rule; the recordings show nodes, groups and reuse.

Two nodes of 8 GiB; 1 GiB of node 0 is reserved. CPU requests are fractions, so that only memory has hints.
"""

from __future__ import annotations

import pytest

from kubelets import GI, kubelet_of, machine_of, pod_of
from topowise import pods
from topowise_scheduler.kubelet import Admission, Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.pod import view

BOTH = 0b11


def _limits(memory: str, **more: str) -> dict[str, str]:
    return {"cpu": "100m", "memory": memory, **more}


def _free(kubelet: Kubelet, name: str = "memory") -> list[float]:
    assert kubelet.memory is not None
    return [amount / GI for amount in kubelet.memory.tables.free[name]]


def _blocks(admission: Admission, container: str = "c0") -> list[tuple[str, tuple[int, ...], float]]:
    return [(block.type, block.numa, block.size / GI) for block in admission.placements[container].memory]


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


def test_memory_under_an_unknown_container_name_is_ignored() -> None:
    """For example, an earlier pod of this name had pod-level resources: its report has memory for the pod only."""
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted", topologyManagerScope="pod")
    blocks = (MemoryBlock("memory", (0,), GI),)
    kubelet.hold("p", {}, {"": Placement("app", (0,), True, None, blocks)})
    assert _blocks(kubelet.admit(pod_of("p", _limits("2Gi")))) == [("memory", (0,), 2)]


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


def test_a_node_without_pages_of_a_size_has_none() -> None:
    kubelet = kubelet_of(machine_of(4, 4, hugepages=[{2048: 512}, {}]))
    assert _free(kubelet, "hugepages-2Mi") == [1, 0]
    assert _free(kubelet) == [6, 8]


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


def test_the_last_byte_is_booked_and_released() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert kubelet.memory is not None
    tables = kubelet.memory.tables
    tables.take("memory", BOTH, 7 * GI + 1)
    assert tables.free["memory"] == [0, 8 * GI - 1]
    tables.give("memory", BOTH, 7 * GI + 1)
    assert tables.free["memory"] == [7 * GI, 8 * GI]


def test_reusable_memory_of_a_type_does_not_change_other_types() -> None:
    # initContainersReusableMemory is per type: node 0 has exactly the pages; its memory is of the init container.
    machine = machine_of(4, 4, hugepages=[{2048: 512}, {2048: 512}])
    kubelet = kubelet_of(machine, topologyManagerPolicy="single-numa-node")
    placed = kubelet.admit(pod_of("p", _limits("5Gi", **{"hugepages-2Mi": "1Gi"}), init=[_limits("5Gi")]))
    assert (placed.admitted, placed.placements["c0"].numa) == (True, (0,))


def test_the_start_of_an_unknown_container_finishes_no_init_container() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    kubelet.admit(pod_of("p", _limits("1Gi"), init=[_limits("5Gi"), _limits("2Gi")]))
    assert kubelet.start("p", ["other"])
    assert _free(kubelet) == [2, 8]
    # Of the first, 2 GiB are left: the second init container and then the container use 3 GiB again.
    assert kubelet.start("p", ["i1"])
    assert _free(kubelet) == [4, 8]


def test_memory_that_no_known_container_has_is_dropped() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert kubelet.memory is not None
    tables = kubelet.memory.tables
    kubelet.hold("p", {}, {"c0": Placement("app", (1,), True, None, (MemoryBlock("memory", (1,), 2 * GI),))})
    assert not kubelet.memory.has_unlisted
    # Of init containers, which podresources do not list.
    tables.take("memory", 0b01, 3 * GI)
    tables.take("memory", 0b10, GI)
    assert kubelet.memory.has_unlisted
    kubelet.memory.drop_unlisted()
    assert (_free(kubelet), tables.assignments, tables.cells) == ([7, 6], [0, 1], [0b01, 0b10])
    kubelet.remove("p")
    tables.take("memory", BOTH, 8 * GI)
    kubelet.memory.drop_unlisted()
    assert (_free(kubelet), tables.assignments, tables.cells) == ([7, 8], [0, 0], [0b01, 0b10])


def test_memory_of_a_group_with_a_known_container_is_not_dropped() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert kubelet.memory is not None
    kubelet.hold("p", {}, {"c0": Placement("app", (0, 1), True, None, (MemoryBlock("memory", (0, 1), 8 * GI),))})
    kubelet.memory.tables.take("memory", BOTH, GI)
    kubelet.memory.drop_unlisted()
    assert (_free(kubelet), kubelet.memory.tables.assignments) == ([0, 6], [2, 2])


def test_only_groups_are_dissolved() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert kubelet.memory is not None
    tables = kubelet.memory.tables
    tables.take("memory", 0b10, 2 * GI)
    tables.dissolve(1)
    assert (_free(kubelet), tables.assignments) == ([7, 6], [0, 1])
    tables.give("memory", 0b10, 2 * GI)
    tables.take("memory", BOTH, 8 * GI)
    tables.dissolve(1)
    assert (_free(kubelet), tables.assignments, tables.cells) == ([7, 8], [0, 0], [0b01, 0b10])


def test_reserved_memory_is_taken_from_its_numa_node() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    kubelet.reserve(1, 0, {"memory": 3 * GI})
    assert _free(kubelet) == [7, 5]
