"""Exclusive CPUs: which containers get CPUs, on which NUMA nodes, with which ids.

The machine has two nodes of four cores: 0-3,8-11 and 4-7,12-15; a core has CPUs c and c+8. CPU 0 is reserved.
"""

from __future__ import annotations

import pytest

from kubelets import kubelet_of, machine_of, pod_of
from topowise import cpuset
from topowise_scheduler.kubelet import Admission
from topowise_scheduler.kubelet.masks import members


def _cpus(admission: Admission, container: str = "c0") -> str | None:
    cpus = admission.placements[container].cpus
    return None if cpus is None else cpuset.to_text(members(cpus))


def _limits(cpus: str | int) -> dict[str, str | int]:
    return {"cpu": cpus, "memory": "64Mi"}


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (1, "8"),  # the partly used core
        (2, "1,9"),  # a full core
        (3, "1,8-9"),
        (8, "4-7,12-15"),  # a full node, although node 0 is lower
        (9, "4-8,12-15"),  # node 1 and the partly used core of node 0
    ],
)
def test_cpus_are_packed(cpus: int, expected: str) -> None:
    # Without the memory manager, whose preferred hint of a single node would contradict two nodes of CPUs.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted", memoryManagerPolicy="None")
    assert _cpus(kubelet.admit(pod_of("p", _limits(cpus)))) == expected


@pytest.mark.parametrize("limits", [_limits("1500m"), {"cpu": "2"}, {"memory": "1Gi"}, {}])
def test_fractions_and_pods_that_are_not_guaranteed_stay_on_the_shared_pool(limits: dict[str, str]) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    admission = kubelet.admit(pod_of("p", limits))
    assert admission.admitted
    assert _cpus(admission) is None


def test_preferred_depends_on_the_capacity_of_a_node_and_not_on_free_cpus() -> None:
    # A node has the capacity for eight CPUs, including reserved CPUs, so a hint of two nodes is never preferred.
    fields = {"reservedSystemCPUs": "0,4"}
    refused = kubelet_of(machine_of(4, 4), topologyManagerPolicy="restricted", **fields).admit(pod_of("p", _limits(8)))
    assert (refused.admitted, refused.reason) == (False, "TopologyAffinityError")
    assert refused.message == "Resources cannot be allocated with Topology locality"
    placed = kubelet_of(machine_of(4, 4), topologyManagerPolicy="best-effort", **fields).admit(pod_of("p", _limits(8)))
    assert (placed.placements["c0"].numa, placed.placements["c0"].preferred) == ((0, 1), False)
    assert _cpus(placed) == "1-3,5,9-11,13"


def test_align_by_socket_prefers_two_nodes_of_the_same_socket() -> None:
    machine = machine_of(4, 4, nodes_per_socket=2)
    options = {
        "cpuManagerPolicyOptions": {"align-by-socket": "true"},
        "reservedSystemCPUs": "0,4",
        "memoryManagerPolicy": "None",
    }
    admission = kubelet_of(machine, topologyManagerPolicy="restricted", **options).admit(pod_of("p", _limits(8)))
    assert (admission.placements["c0"].numa, admission.placements["c0"].preferred) == ((0, 1), True)


def test_full_pcpus_only_refuses_half_cores() -> None:
    kubelet = kubelet_of(machine_of(4, 4), cpuManagerPolicyOptions={"full-pcpus-only": "true"})
    admission = kubelet.admit(pod_of("p", _limits(3)))
    assert (admission.admitted, admission.reason) == (False, "SMTAlignmentError")
    assert admission.message == "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"


def test_full_pcpus_only_excludes_cores_with_a_reserved_cpu() -> None:
    kubelet = kubelet_of(machine_of(4, 4), cpuManagerPolicyOptions={"full-pcpus-only": "true"})
    assert kubelet.admit(pod_of("p", _limits(16))).message == (
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 14, "
        "requested CPUs = 16, CPUs per core = 2"
    )
    assert _cpus(kubelet.admit(pod_of("p", _limits(14)))) == "1-7,9-15"


def test_without_hints_the_allocation_refuses_too_many_cpus() -> None:
    admission = kubelet_of(machine_of(4, 4)).admit(pod_of("p", _limits(16)))
    assert (admission.admitted, admission.reason) == (False, "UnexpectedAdmissionError")
    assert admission.message == (
        "Allocate failed due to not enough cpus available to satisfy request: requested=16, available=15, "
        "which is unexpected"
    )


def test_strict_reservation_keeps_reserved_cpus_from_the_shared_pool() -> None:
    strict = kubelet_of(machine_of(4, 4), cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})
    assert strict.cpu is not None
    assert strict.cpu.default == strict.cpu.available == (1 << 16) - 2


def test_an_init_container_leaves_its_cpus_to_the_next_container() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    admission = kubelet.admit(pod_of("p", _limits(2), init=[_limits(4)]))
    assert (_cpus(admission, "i0"), _cpus(admission, "c0")) == ("1-2,9-10", "1,9")
    # CPUs that no later container takes stay allocated until the pod ends.
    assert kubelet.cpu is not None
    assert cpuset.to_text(members(kubelet.cpu.available)) == "3-8,11-15"


def test_a_sidecar_keeps_its_cpus() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    admission = kubelet.admit(pod_of("p", _limits(2), sidecars=[_limits(2)]))
    assert (_cpus(admission, "s0"), _cpus(admission, "c0")) == ("1,9", "2,10")


def test_cpus_of_an_init_container_bind_the_pod_to_their_node() -> None:
    # Eight CPUs fit on node 1, but the mask must include the init container's CPUs on node 0.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node")
    assert not kubelet.admit(pod_of("tied", _limits(8), init=[_limits(4)])).admitted
    assert kubelet.admit(pod_of("free", _limits(8))).admitted


def test_pod_scope_needs_all_containers_on_the_same_node() -> None:
    pod = pod_of("p", _limits(6), _limits(6))
    machine = machine_of(4, 4)
    single = {"topologyManagerPolicy": "single-numa-node"}
    assert kubelet_of(machine, topologyManagerScope="container", **single).admit(pod).admitted
    assert not kubelet_of(machine, topologyManagerScope="pod", **single).admit(pod).admitted


def test_a_pod_that_is_admitted_again_after_a_restart_keeps_its_cpus() -> None:
    for scope in ("container", "pod"):
        kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node", topologyManagerScope=scope)
        pod = pod_of("p", _limits(4), _limits(2))
        first = kubelet.admit(pod)
        assert kubelet.admit(pod) == first
        assert len(kubelet.active) == 1


@pytest.mark.parametrize(
    ("option", "cpus", "expected"),
    [
        ("distribute-cpus-across-cores", 3, "1-3"),
        ("distribute-cpus-across-numa", 10, "1-2,4-6,8-10,12-13"),
        ("prefer-align-cpus-by-uncorecache", 4, "2-3,10-11"),
        ("prefer-align-cpus-by-uncorecache", 2, "2,10"),
    ],
)
def test_policy_options_choose_other_cpus(option: str, cpus: int, expected: str) -> None:
    kubelet = kubelet_of(
        machine_of(4, 4, cores_per_uncore=2),
        topologyManagerPolicy="best-effort",
        cpuManagerPolicyOptions={option: "true"},
    )
    assert _cpus(kubelet.admit(pod_of("p", _limits(cpus)))) == expected


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_pod_after_a_kubelet_restart_is_bound_to_its_cpus(scope: str) -> None:
    # GetTopologyHints regenerates hints from the allocated CPUs, and gives no hints if their number differs.
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node", topologyManagerScope=scope)
    kubelet.admit(pod_of("first", _limits(6)))
    placed = kubelet.admit(pod_of("p", _limits(4)))
    assert placed.placements["c0"].numa == (1,)
    kubelet.remove("first")
    assert kubelet.admit(pod_of("p", _limits(4))) == placed
    changed = kubelet.admit(pod_of("p", _limits(2)))
    assert (changed.admitted, changed.reason) == (False, "TopologyAffinityError")


def test_align_by_socket_prefers_more_nodes_on_no_more_sockets() -> None:
    # Two sockets of two nodes, a CPU of each node reserved. Ten CPUs need the capacity of three nodes, so two sockets.
    # Only four nodes have ten free CPUs, and four nodes are also two sockets.
    kubelet = kubelet_of(
        machine_of(2, 2, 2, 2, nodes_per_socket=2),
        topologyManagerPolicy="restricted",
        cpuManagerPolicyOptions={"align-by-socket": "true"},
        reservedSystemCPUs="0,2,4,6",
        memoryManagerPolicy="None",
    )
    placed = kubelet.admit(pod_of("p", _limits(10))).placements["c0"]
    assert (placed.numa, placed.preferred) == ((0, 1, 2, 3), True)
