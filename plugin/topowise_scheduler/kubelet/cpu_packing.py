"""Which CPUs by default: packed (takeByTopologyNUMAPacked in pkg/kubelet/cm/cpumanager/cpu_assignment.go).

Whole NUMA nodes, sockets, L3 caches and cores while the request still covers one, single CPUs last, and of equal places
the fullest first, so that large free places stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology, Domain
from topowise_scheduler.kubelet.hints import Refused
from topowise_scheduler.kubelet.masks import members


class Packing(NamedTuple):
    """`spread` takes single CPUs round the cores, `by_uncore` prefers whole L3 caches; the others are behaviours."""

    spread: bool = False
    core_by_core: bool = False
    by_uncore: bool = False
    rounds_up: bool = True
    tells_amounts: bool = True

    def shortage(self, count: int, free: int) -> Refused:
        """What is said where there are too few CPUs."""
        amounts = f": requested={count}, available={free}" if self.tells_amounts else ""
        return Refused(f"not enough cpus available to satisfy request{amounts}")


PLAIN = Packing()


def take_packed(topology: CpuTopology, available: CpuSet, count: int, packing: Packing = PLAIN) -> CpuSet:
    """takeByTopologyNUMAPacked. Raises Refused."""
    if count < 1:
        return 0
    free = available.bit_count()
    if count > free:
        raise packing.shortage(count, free)
    taking = Accumulator(topology, available, count)
    taking.take_full_numas_and_sockets()
    if packing.by_uncore and taking.needed > 0:
        taking.take_uncores(packing.rounds_up)
    if not packing.spread and taking.needed > 0:
        taking.take_full_cores()
    if taking.needed > 0:
        taking.take_single_cpus(packing)
    if taking.needed > 0:
        raise Refused("failed to allocate cpus")
    return taking.result


def by_free(domains: Iterable[Domain], free: CpuSet) -> list[Domain]:
    """Those with a free CPU, the fewest free CPUs first, then the lowest id (cpuAccumulator.sort)."""
    counted = [((domain.cpus & free).bit_count(), domain) for domain in domains if domain.cpus & free]
    if len(counted) > 1:
        counted.sort()
    return [domain for _, domain in counted]


def sorted_numas(topology: CpuTopology, free: CpuSet) -> list[Domain]:
    """The NUMA nodes in the order they are filled; the sockets lead where a socket has several nodes."""
    if _numa_first(topology):
        return by_free(topology.numas, free)
    return [
        numa
        for socket in by_free(topology.sockets, free)
        for numa in by_free(topology.numas_of[socket], free & socket.cpus)
    ]


def _numa_first(topology: CpuTopology) -> bool:
    return topology.sockets_total >= len(topology.numas)


class Accumulator:
    """One take in progress: what is free still, how many CPUs are missing, what was taken (cpuAccumulator)."""

    __slots__ = ("free", "needed", "result", "topology")

    def __init__(self, topology: CpuTopology, free: CpuSet, needed: int) -> None:
        self.topology = topology
        self.free = free
        self.needed = needed
        self.result: CpuSet = 0

    def take_full_numas_and_sockets(self) -> None:
        """Steps 1 and 2: the larger of the two first."""
        steps = (self._take_full_numas, self._take_full_sockets)
        for step in steps if _numa_first(self.topology) else reversed(steps):
            if self.needed > 0:
                step()

    def take_full_cores(self) -> None:
        """Step 4."""
        per_core = self.topology.cpus_per_core
        if self.needed >= per_core:
            self._take_whole([core for core in self._sorted_cores() if (core.cpus & self.free).bit_count() == per_core])

    def take_single_cpus(self, packing: Packing) -> None:
        """Step 5: in the order of the cores, or with `spread` by CPU id, or core by core, within the sockets."""
        domains = self._sorted_sockets() if packing.spread else self._sorted_cores()
        core_by_core = packing.spread and packing.core_by_core
        for domain in domains:
            for cpu in self._round_the_cores(domain) if core_by_core else members(domain.cpus & self.free):
                self._take(1 << cpu)
                if self.needed < 1:
                    return

    def take_uncores(self, rounds_up: bool) -> None:
        """Step 3: whole caches while the request covers one, then one that can give exactly the rest."""
        per_uncore = self.topology.cpus_per_uncore
        for uncore in self._sorted_uncores():
            if self.needed >= per_uncore:
                # Unlike sockets and cores, a cache is full by its own size, not by the average.
                self._take_whole([one for one in self._sorted_uncores() if one.cpus & self.free == one.cpus])
            if self.needed < 1:
                return
            self._take_part_of(uncore, rounds_up)
            if self.needed < 1:
                return

    def _take(self, cpus: CpuSet) -> None:
        self.result |= cpus
        self.free &= ~cpus
        self.needed -= cpus.bit_count()

    def _take_whole(self, domains: Sequence[Domain]) -> None:
        """Each whole, with all CPUs the machine has there, while the request covers it."""
        for domain in domains:
            if self.needed >= domain.cpus.bit_count():
                self._take(domain.cpus)
                if self.needed < 1:
                    return

    def _take_full_numas(self) -> None:
        free = self.free
        self._take_whole([numa for numa in sorted_numas(self.topology, free) if numa.cpus & free == numa.cpus])

    def _take_full_sockets(self) -> None:
        # "Full" is measured by the average of the machine, what is taken are the CPUs the socket really has.
        per_socket = self.topology.cpus_per_socket
        free = self.free
        self._take_whole([one for one in self._sorted_sockets() if (one.cpus & free).bit_count() == per_socket])

    def _take_part_of(self, uncore: Domain, rounds_up: bool) -> None:
        per_core = self.topology.cpus_per_core
        free = self.free & uncore.cpus
        count = -(-self.needed // per_core) if rounds_up else self.needed // per_core
        part = 0
        for core in [core for core in self.topology.cores if core.cpus & free][:count]:
            part |= core.cpus & free
        if rounds_up and self.needed % 2 and per_core > 1 and part.bit_count() > self.needed:
            part ^= 1 << (part.bit_length() - 1)
        if part.bit_count() == self.needed:
            self._take(part)

    def _round_the_cores(self, socket: Domain) -> list[int]:
        """The free CPUs of a socket, one of each core in turn; cores with fewer free ones lead."""
        cores = _by_free_within(self.topology.cores_of[socket], socket, self.free)
        turns = [tuple(members(core.cpus & self.free)) for core in cores]
        return [cpu for turn in zip_longest(*turns) for cpu in turn if cpu is not None]

    def _sorted_sockets(self) -> list[Domain]:
        topology, free = self.topology, self.free
        if not _numa_first(topology):
            return by_free(topology.sockets, free)
        return [
            socket
            for numa in by_free(topology.numas, free)
            for socket in _by_free_within(topology.sockets_of[numa], numa, free)
        ]

    def _sorted_cores(self) -> list[Domain]:
        topology, free = self.topology, self.free
        parents = self._sorted_sockets() if _numa_first(topology) else sorted_numas(topology, free)
        return [core for parent in parents for core in _by_free_within(topology.cores_of[parent], parent, free)]

    def _sorted_uncores(self) -> list[Domain]:
        topology, free = self.topology, self.free
        return [
            uncore
            for numa in sorted_numas(topology, free)
            for uncore in _by_free_within(topology.uncores_of[numa], numa, free)
        ]


def _by_free_within(children: Iterable[Domain], parent: Domain, free: CpuSet) -> list[Domain]:
    """Those with a free CPU inside the parent, ordered by what is free in them on the whole machine."""
    inside = parent.cpus & free
    return by_free([child for child in children if child.cpus & inside], free)
