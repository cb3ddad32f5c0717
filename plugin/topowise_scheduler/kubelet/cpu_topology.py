"""CPUs, cores, L3 caches, NUMA nodes and sockets of a machine as sets of CPUs (pkg/kubelet/cm/cpumanager/topology).

A set of CPUs is an integer with the bit of every CPU id set. The kubelet divides totals of the machine to get "CPUs per
core" and similar numbers, even on a machine with uneven cores. The model uses the same averages on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from topowise_scheduler.kubelet.machine import Machine
from topowise_scheduler.kubelet.masks import Mask, mask_of, members

CpuSet = int


class Domain(NamedTuple):
    """A core, cache, NUMA node or socket: its id (a NUMA node's position) and its CPUs."""

    id: int
    cpus: CpuSet


class CpuTopology:
    """Immutable, an object per machine."""

    def __init__(self, machine: Machine) -> None:
        nodes = machine.nodes()
        cores = [(min(core.threads), core) for node in nodes for core in node.cores]
        self.numa_cpus: tuple[CpuSet, ...] = tuple(
            mask_of(cpu for core in node.cores for cpu in core.threads) for node in nodes
        )
        self.numas = tuple(Domain(position, cpus) for position, cpus in enumerate(self.numa_cpus) if cpus)
        self.nodes: Mask = mask_of(numa.id for numa in self.numas)
        self.cores = _grouped((core_id, core.threads) for core_id, core in cores)
        self.sockets = _grouped((core.socket, core.threads) for _, core in cores)
        # The kubelet gives a core without an L3 id the id of its socket (getUncoreCacheID).
        self.uncores = _grouped(
            (core.socket if core.uncore is None else core.uncore, core.threads) for _, core in cores
        )
        self.tells_caches = all(core.uncore is not None for _, core in cores)
        self.cpus: CpuSet = sum(self.numa_cpus)
        count = self.cpus.bit_count()
        # cadvisor's number of sockets, which can differ from the sockets of the cores.
        self.sockets_total = machine.sockets()
        # Integer averages over the machine, like CPUsPerCore and CPUsPerSocket in topology.go.
        self.cpus_per_core = count // len(self.cores) if self.cores else 0
        self.cpus_per_socket = count // self.sockets_total if self.sockets_total else 0
        self.cpus_per_uncore = count // len(self.uncores) if self.uncores else 0
        self.numas_of = _contained(self.sockets, self.numas)
        self.sockets_of = _contained(self.numas, self.sockets)
        self.socket_masks: tuple[Mask, ...] = tuple(
            mask_of(numa.id for numa in self.numas_of[socket]) for socket in self.sockets
        )
        self.uncores_of = _contained(self.numas, self.uncores)
        self.cores_of = _contained((*self.numas, *self.sockets), self.cores)
        self.capacity_by_size = _largest(self.numa_cpus)

    @cached_property
    def is_even(self) -> bool:
        """Returns whether no core and no socket has more CPUs than the average. Then a take includes free CPUs only."""
        return all(core.cpus.bit_count() <= self.cpus_per_core for core in self.cores) and all(
            socket.cpus.bit_count() <= self.cpus_per_socket for socket in self.sockets
        )

    @cached_property
    def socket_positions(self) -> tuple[int, ...] | None:
        """Returns the position in `sockets` per NUMA node, 0 without CPUs; None if a node has several sockets."""
        positions = {socket: position for position, socket in enumerate(self.sockets)}
        by_node = [0] * len(self.numa_cpus)
        for numa in self.numas:
            sockets = self.sockets_of[numa]
            if len(sockets) > 1:
                return None
            by_node[numa.id] = positions[sockets[0]]
        return tuple(by_node)

    @cached_property
    def _siblings(self) -> tuple[CpuSet, int, int] | None:
        """Returns each core's lowest CPU, the step from thread to thread and their number; None for uneven cores."""
        steps = set()
        for core in self.cores:
            threads = list(members(core.cpus))
            steps.add((len(threads), *(after - before for before, after in pairwise(threads))))
        if len(steps) != 1:
            return None
        count, *gaps = steps.pop()
        if len(set(gaps)) > 1:
            return None
        return mask_of(core.id for core in self.cores), gaps[0] if gaps else 0, count

    def whole_cores(self, cpus: CpuSet) -> CpuSet:
        """Returns the lowest CPU of every core that is completely in the set."""
        if self._siblings is None:
            # Uneven cores: each core is tested. Even cores need a shift per thread only.
            return mask_of(core.id for core in self.cores if core.cpus & cpus == core.cpus)
        first_threads, step, count = self._siblings
        for thread in range(count):
            first_threads &= cpus >> thread * step
        return first_threads

    def cpus_in(self, mask: Mask) -> CpuSet:
        """Returns the CPUs of the NUMA nodes in the mask."""
        return sum(numa.cpus for numa in self.numas if mask >> numa.id & 1)

    def sockets_in(self, cpus: CpuSet) -> int:
        """Returns how many sockets have any of these CPUs."""
        return sum(1 for socket in self.sockets if socket.cpus & cpus)

    def cpus_of_sockets_in(self, cpus: CpuSet) -> CpuSet:
        """Returns all CPUs of the sockets that have any of these CPUs."""
        return sum(socket.cpus for socket in self.sockets if socket.cpus & cpus)

    def smallest_mask(self, requested: int) -> int:
        """Returns the least number of NUMA nodes whose CPUs cover the request (minAffinitySize)."""
        # Counts busy and reserved CPUs too, as upstream does.
        for size, capacity in enumerate(self.capacity_by_size[1:], start=1):
            if capacity >= requested:
                return size
        return len(self.numas)


def _grouped(parts: Iterable[tuple[int, tuple[int, ...]]]) -> tuple[Domain, ...]:
    groups: dict[int, CpuSet] = {}
    for domain_id, threads in parts:
        groups[domain_id] = groups.get(domain_id, 0) | mask_of(threads)
    return tuple(Domain(domain_id, groups[domain_id]) for domain_id in sorted(groups))


def _contained(parents: Sequence[Domain], children: Sequence[Domain]) -> dict[Domain, tuple[Domain, ...]]:
    return {parent: tuple(child for child in children if child.cpus & parent.cpus) for parent in parents}


def _largest(numa_cpus: Sequence[CpuSet]) -> tuple[int, ...]:
    """Returns at index k the most CPUs that k NUMA nodes have."""
    totals = [0]
    for count in sorted((cpus.bit_count() for cpus in numa_cpus if cpus), reverse=True):
        totals.append(totals[-1] + count)
    return tuple(totals)
