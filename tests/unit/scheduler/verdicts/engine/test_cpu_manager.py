"""The engine's CPU counts per NUMA node equal the CPUs that takeByTopology takes by id."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kubelets import PACKED
from topowise_scheduler.kubelet import Core, Machine, NumaNode
from topowise_scheduler.kubelet.cpu_packing import take_packed
from topowise_scheduler.kubelet.cpu_topology import CpuTopology
from topowise_scheduler.verdicts.engine.cpu_manager import CpuLayout
from topowise_scheduler.verdicts.engine.cpu_manager import take_packed as take_packed_counts

NODES = 20


@given(st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_counts_per_numa_node_equal_packed_cpus(seed: int) -> None:
    rng = Random(seed)
    topology = _topology(rng)
    assert topology.is_even
    zones, places = len(topology.numa_cpus), topology.socket_positions
    assert places is not None
    free = [_random_cpus(rng, topology) for _ in range(NODES)]
    requested = np.array([rng.randint(0, cpus.bit_count()) for cpus in free])
    layout = CpuLayout(
        capacity=_repeated([cpus.bit_count() for cpus in topology.numa_cpus]),
        per_core=np.full(NODES, topology.cpus_per_core),
        known=np.ones(NODES, dtype=np.bool_),
        numa_first=np.full(NODES, topology.sockets_total >= len(topology.numas)),
        per_socket=np.full(NODES, topology.cpus_per_socket),
        socket=_repeated(list(places)),
    )
    cores = [topology.whole_cores(cpus) for cpus in free]
    taken = take_packed_counts(layout, _counted(topology, free), _counted(topology, cores), requested)
    model = [take_packed(topology, cpus, int(count), PACKED) for cpus, count in zip(free, requested, strict=True)]
    assert taken.tolist() == _counted(topology, model).tolist()
    assert taken.shape == (zones, NODES)


def test_full_cores_are_found_at_any_numbering_of_threads() -> None:
    def cores_of(*threads: tuple[int, ...]) -> CpuTopology:
        return CpuTopology(Machine(numa=(NumaNode(0, 1, tuple(Core(0, siblings) for siblings in threads)),)))

    assert cores_of((0, 2), (1, 3)).whole_cores(0b1101) == 0b1
    assert cores_of((0, 1), (2, 3)).whole_cores(0b1110) == 0b100
    assert cores_of((0,), (1,)).whole_cores(0b10) == 0b10
    assert cores_of((0, 3), (1, 2)).whole_cores(0b1110) == 0b10
    assert cores_of((0, 1, 5, 6), (2, 3, 4, 7)).whole_cores(0b1111_1100) == 0b100


def _topology(rng: Random) -> CpuTopology:
    """Sockets of equal size, with NUMA nodes of different sizes."""
    sockets, threads = rng.choice((1, 2, 4)), rng.choice((1, 2, 4))
    shares = [rng.choice((0, 2, 3, 4)) for _ in range(rng.choice((1, 2)))]
    shares[0] = shares[0] or 3
    count = sum(shares) * sockets
    numa, first = [], 0
    for zone in range(sockets * len(shares)):
        core_ids = range(first, first + shares[zone % len(shares)])
        first = core_ids.stop
        cores = tuple(
            Core(zone // len(shares), tuple(core + count * thread for thread in range(threads))) for core in core_ids
        )
        numa.append(NumaNode(zone, 1, cores))
    return CpuTopology(Machine(numa=tuple(numa)))


def _random_cpus(rng: Random, topology: CpuTopology) -> int:
    """Random CPUs; full NUMA nodes, cores and single CPUs may be missing."""
    cpus = topology.cpus
    for domain in rng.sample(topology.cores, rng.randint(0, len(topology.cores))):
        cpus &= ~(domain.cpus if rng.random() < 0.7 else domain.cpus & -domain.cpus)
    for domain in topology.numas:
        choice = rng.random()
        cpus = cpus | domain.cpus if choice < 0.3 else cpus & ~domain.cpus if choice < 0.4 else cpus
    return cpus


def _counted(topology: CpuTopology, sets: list[int]) -> np.ndarray:
    return np.array([[(cpus & numa).bit_count() for cpus in sets] for numa in topology.numa_cpus], dtype=np.int64)


def _repeated(values: list[int]) -> np.ndarray:
    return np.repeat(np.array(values, dtype=np.int64)[:, None], NODES, axis=1)
