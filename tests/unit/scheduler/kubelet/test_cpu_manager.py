"""Exclusive CPUs where no recorded decision shows a rule; the recordings show which containers get which CPUs.

The machine has two nodes of four cores: 0-3,8-11 and 4-7,12-15; a core has CPUs c and c+8. CPU 0 is reserved.
"""

from __future__ import annotations

import msgspec
import pytest

from kubelets import kubelet_of, machine_of, pod_of
from topowise_scheduler.kubelet import Kubelet, KubeletStartError, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuTopology


def _limits(cpus: str | int) -> dict[str, str | int]:
    return {"cpu": cpus, "memory": "64Mi"}


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


@pytest.mark.parametrize(
    ("cores", "reserved", "message"),
    [(0, "1", "size of  did not equal 1"), (2, "9", "size of  did not equal 9"), (2, "3001m", "")],
)
def test_the_reservation_is_rounded_up_to_cpus_that_exist(cores: int, reserved: str, message: str) -> None:
    fields = {"memoryManagerPolicy": "None", "reservedMemory": (), "reservedSystemCPUs": ""}
    machine, amounts = machine_of(cores), {"cpu": reserved, "memory": "1Gi"}
    if message:
        with pytest.raises(KubeletStartError, match=message):
            kubelet_of(machine, systemReserved=amounts, **fields)
    else:
        kubelet = kubelet_of(machine, systemReserved=amounts, **fields)
        assert kubelet.cpu is not None and kubelet.cpu.policy.reserved.bit_count() == 4


def test_more_sockets_than_numa_nodes_align_nothing_by_socket() -> None:
    """A kubelet with this option does not start there, but a report can say so."""
    machine = machine_of(4, 4)
    settings = kubelet_of(
        machine,
        topologyManagerPolicy="restricted",
        cpuManagerPolicyOptions={"align-by-socket": "true"},
        memoryManagerPolicy="None",
        reservedMemory=(),
    ).settings
    kubelet = Kubelet(msgspec.structs.replace(machine, num_sockets=3), settings, predicates=False)
    assert [kubelet.admit(pod_of(uid, _limits(6))).placements["c0"].numa for uid in ("a", "b")] == [(0,), (1,)]
    # Three CPUs are free, but not on a single NUMA node.
    assert kubelet.admit(pod_of("p", _limits(3))).reason == "TopologyAffinityError"


def test_without_a_number_of_sockets_no_socket_is_full() -> None:
    assert CpuTopology(msgspec.structs.replace(machine_of(4, 4), num_sockets=0)).cpus_per_socket == 0


def test_a_cpu_of_two_reported_pods_stays_allocated_until_both_have_ended() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert kubelet.cpu is not None
    everything = kubelet.cpu.default
    reported = {uid: {"c0": Placement("app", (0,), True, cpus, ())} for uid, cpus in (("a", 0b0110), ("b", 0b1100))}
    kubelet.hold_exactly({uid: ({}, placements) for uid, placements in reported.items()})
    assert kubelet.cpu.default == everything & ~0b1110
    kubelet.hold_exactly({"b": ({}, reported["b"])})
    assert kubelet.cpu.default == everything & ~0b1100


def test_reported_available_cpus_replace_those_of_the_model() -> None:
    kubelet = kubelet_of(machine_of(4, 4))
    assert kubelet.cpu is not None
    # CPU 0 is reserved and in the shared pool; the machine has no CPU 20.
    kubelet.cpu.correct(1 << 20 | 0b1100)
    assert (kubelet.cpu.default, kubelet.cpu.available) == (0b1101, 0b1100)
