"""Chooses CPUs by default: packed (takeByTopologyNUMAPacked in pkg/kubelet/cm/cpumanager/cpu_assignment.go).

It takes whole NUMA nodes, sockets, L3 caches and cores while the request covers them, and single CPUs last. Among equal
domains it takes the domain with the fewest free CPUs, so that large free domains stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology, Domain
from topowise_scheduler.kubelet.hints import Refused
from topowise_scheduler.kubelet.masks import members


class Packing(NamedTuple):
    """`spread` takes single CPUs round the cores, `by_uncore` prefers whole L3 caches; the rest are behaviours."""

    spread: bool
    core_by_core: bool
    by_uncore: bool
    rounds_up: bool
    tells_amounts: bool

    def shortage(self, count: int, free: int) -> Refused:
        """Returns the refusal for too few CPUs."""
        amounts = f": requested={count}, available={free}" if self.tells_amounts else ""
        return Refused(f"not enough cpus available to satisfy request{amounts}")


def take_packed(topology: CpuTopology, available: CpuSet, count: int, packing: Packing) -> CpuSet:
    """Returns packed CPUs (takeByTopologyNUMAPacked). Raises Refused."""
    if count < 1:
        return 0
    free = available.bit_count()
    if count > free:
        raise packing.shortage(count, free)
    taking = Accumulator(topology, available, count)
    taking.take_full_numas_and_sockets()
    if packing.by_uncore:
        taking.take_uncores(packing.rounds_up)
    if not packing.spread:
        taking.take_full_cores()
    if taking.needed > 0:
        taking.take_single_cpus(packing)
    if taking.needed > 0:
        raise Refused("failed to allocate cpus")
    return taking.result


def by_free(domains: Iterable[Domain], free: CpuSet) -> list[Domain]:
    """Returns the domains with a free CPU, the fewest free CPUs first, then the lowest id (cpuAccumulator.sort)."""
    counted = sorted([((domain.cpus & free).bit_count(), domain) for domain in domains if domain.cpus & free])
    return [domain for _, domain in counted]


def sorted_numas(topology: CpuTopology, free: CpuSet) -> list[Domain]:
    """Returns the NUMA nodes in the order in which they are filled; by socket first if a socket has several nodes."""
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
    """A take in progress: the free CPUs, the number of missing CPUs, the taken CPUs (cpuAccumulator)."""

    __slots__ = ("free", "needed", "result", "topology")

    def __init__(self, topology: CpuTopology, free: CpuSet, needed: int) -> None:
        self.topology = topology
        self.free = free
        self.needed = needed
        self.result: CpuSet = 0

    def take_full_numas_and_sockets(self) -> None:
        """Steps 1 and 2: takes the larger of the two first (takeFullFirstLevel, takeFullSecondLevel)."""
        steps = (self._take_full_numas, self._take_full_sockets)
        for step in steps if _numa_first(self.topology) else reversed(steps):
            if self.needed > 0:
                step()

    def take_full_cores(self) -> None:
        """Takes free cores while the request covers them."""
        # Step 4, takeFullCores.
        per_core = self.topology.cpus_per_core
        if self.needed >= per_core:
            self._take_whole([core for core in self._sorted_cores() if (core.cpus & self.free).bit_count() == per_core])

    def take_single_cpus(self, packing: Packing) -> None:
        """Takes single CPUs by core; with `spread` by CPU id, or core by core, within the sockets."""
        # Step 5, takeRemainingCPUs.
        domains = self._sorted_sockets() if packing.spread else self._sorted_cores()
        core_by_core = packing.spread and packing.core_by_core
        for domain in domains:
            for cpu in self._round_the_cores(domain) if core_by_core else members(domain.cpus & self.free):
                self._take(1 << cpu)
                if self.needed < 1:
                    return

    def take_uncores(self, rounds_up: bool) -> None:
        """Takes whole caches while the request covers a cache, then a cache that can provide the exact rest."""
        # Step 3, takeUncoreCache.
        per_uncore = self.topology.cpus_per_uncore
        for uncore in self._sorted_uncores():
            if self.needed >= per_uncore:
                # Unlike sockets and cores, a cache is full by its own size, not by the average (isUncoreCacheFree).
                self._take_whole([cache for cache in self._sorted_uncores() if cache.cpus & self.free == cache.cpus])
            self._take_part_of(uncore, rounds_up)
            if self.needed < 1:
                return

    def _take(self, cpus: CpuSet) -> None:
        self.result |= cpus
        self.free &= ~cpus
        self.needed -= cpus.bit_count()

    def _take_whole(self, domains: Sequence[Domain]) -> None:
        """Takes each domain, with all CPUs that the machine has there, while the request covers it."""
        for domain in domains:
            if self.needed >= domain.cpus.bit_count():
                # All CPUs of the domain, as takeFullSockets does: on a machine with uneven cores that can include busy
                # CPUs.
                self._take(domain.cpus)

    def _take_full_numas(self) -> None:
        free = self.free
        self._take_whole([numa for numa in sorted_numas(self.topology, free) if numa.cpus & free == numa.cpus])

    def _take_full_sockets(self) -> None:
        # Full means the machine's average number of free CPUs; the take includes all CPUs of the socket (isSocketFree).
        per_socket = self.topology.cpus_per_socket
        free = self.free
        self._take_whole([item for item in self._sorted_sockets() if (item.cpus & free).bit_count() == per_socket])

    def _take_part_of(self, uncore: Domain, rounds_up: bool) -> None:
        # takePartialUncore: takes the first cores of the cache if they have exactly the missing number of CPUs.
        per_core = self.topology.cpus_per_core
        free = self.free & uncore.cpus
        count = -(-self.needed // per_core) if rounds_up else self.needed // per_core
        part = 0
        for core in [core for core in self.topology.cores if core.cpus & free][:count]:
            part |= core.cpus & free
        if rounds_up and self.needed % 2 and per_core > 1 and part.bit_count() > self.needed:
            # An odd request needs half of the last core, so its highest CPU stays free.
            part ^= 1 << (part.bit_length() - 1)
        if part.bit_count() == self.needed:
            self._take(part)

    def _round_the_cores(self, socket: Domain) -> list[int]:
        """Returns the free CPUs of a socket, a CPU of each core in turn; cores with fewer free CPUs first."""
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
    """Returns the domains with a free CPU inside the parent, ordered by their free CPUs on the whole machine."""
    inside = parent.cpus & free
    return by_free([child for child in children if child.cpus & inside], free)
