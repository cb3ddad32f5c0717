"""Exclusive CPUs where no recorded decision shows a rule; the recordings show which containers get which CPUs.

The machine has two nodes of four cores: 0-3,8-11 and 4-7,12-15; a core has CPUs c and c+8. CPU 0 is reserved.
"""

from __future__ import annotations

import pytest

from kubelets import kubelet_of, machine_of, pod_of


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
