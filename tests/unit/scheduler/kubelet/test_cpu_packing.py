"""takeByTopologyNUMAPacked alone: orders and averages that are rare in a full kubelet (cpu_assignment.go)."""

from __future__ import annotations

from kubelets import PACKED, machine_of
from topowise import cpuset
from topowise_scheduler.kubelet import Core, Machine, NumaNode
from topowise_scheduler.kubelet.cpu_packing import take_packed
from topowise_scheduler.kubelet.cpu_topology import CpuTopology
from topowise_scheduler.kubelet.masks import mask_of, members


def _taken(machine: Machine, count: int, *, busy: str = "", by_uncore: bool = False) -> str:
    topology = CpuTopology(machine)
    available = topology.cpus & ~mask_of(cpuset.parse(busy))
    return cpuset.to_text(members(take_packed(topology, available, count, PACKED._replace(by_uncore=by_uncore))))


def test_numa_nodes_go_first_with_a_single_node_per_socket() -> None:
    # Node 0 has 4 CPUs, node 1 has 8, a socket 6 on average. Node 0 is completely free and goes first. With sockets
    # first, the second socket with six of its eight CPUs free would count as completely free.
    assert _taken(machine_of(2, 4), 8, busy="2,8") == "0-1,3-4,6-7,9-10"


def test_half_a_core_is_excluded_only_if_the_average_core_has_threads() -> None:
    cores = (Core(0, (0, 1), 0), Core(0, (2,), 0), Core(0, (3,), 0))
    assert _taken(Machine(numa=(NumaNode(0, 1, cores),)), 1, by_uncore=True) == "2"


def test_caches_are_told_if_every_core_has_one() -> None:
    cores = (Core(0, (0,), 0), Core(0, (1,)))
    topologies = [CpuTopology(Machine(numa=(NumaNode(0, 1, cores[:count]),))) for count in (1, 2)]
    assert [topology.tells_caches for topology in topologies] == [True, False]


def test_an_average_of_threads_is_rounded_down() -> None:
    topology = CpuTopology(Machine(numa=(NumaNode(0, 1, (Core(0, (0, 1)), Core(1, (2,)))),)))
    assert (topology.cpus_per_core, topology.cpus_per_socket, topology.cpus_per_uncore) == (1, 1, 1)
    assert not topology.is_even


def test_a_machine_is_even_if_neither_a_core_nor_a_socket_has_more_than_the_average() -> None:
    # CPUsPerCore and CPUsPerSocket are averages (cpu_assignment.go, isSocketFree and isCoreFree compare with them).
    def is_even(*sockets: tuple[int, ...]) -> bool:
        cpus = iter(range(99))
        cores = [
            Core(socket, tuple(next(cpus) for _ in range(threads)))
            for socket, listed in enumerate(sockets)
            for threads in listed
        ]
        return CpuTopology(Machine(numa=(NumaNode(0, 1, tuple(cores)),))).is_even

    assert is_even((2, 2), (2, 2))
    assert not is_even((2, 1), (2, 1))
    assert not is_even((1, 1, 1), (1,))


def test_whole_cores_are_found_on_a_machine_whose_first_cpu_is_offline() -> None:
    topology = CpuTopology(Machine(numa=(NumaNode(0, 1, (Core(0, (1, 2)), Core(0, (3, 4)))),)))
    assert topology.whole_cores(0b11100) == 0b1000


def test_whole_cores_are_found_whose_threads_are_in_unequal_steps() -> None:
    topology = CpuTopology(Machine(numa=(NumaNode(0, 1, (Core(0, (0, 1, 4)), Core(0, (8, 9, 12)))),)))
    assert topology.whole_cores(mask_of((0, 1, 4, 8, 9, 10))) == 1


def test_a_node_of_several_sockets_has_no_place_in_the_order_of_sockets() -> None:
    cores = (Core(0, (0,)), Core(1, (1,)))
    assert CpuTopology(Machine(numa=(NumaNode(0, 1, cores),))).socket_positions is None
    nodes = (NumaNode(0, 1, (Core(1, (0,)),)), NumaNode(1, 1), NumaNode(2, 1, (Core(0, (1,)),)))
    assert CpuTopology(Machine(numa=nodes)).socket_positions == (1, 0, 0)


def test_free_cpus_are_taken_round_the_cores() -> None:
    """distribute-cpus-across-cores: a CPU of each core in turn, the core with a busy CPU first."""
    topology = CpuTopology(machine_of(4))
    packing = PACKED._replace(spread=True, core_by_core=True)
    assert cpuset.to_text(members(take_packed(topology, topology.cpus & ~1, 3, packing))) == "1-2,4"
