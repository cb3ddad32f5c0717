"""Chooses CPUs with distribute-cpus-across-numa: evenly from the fewest NUMA nodes.

Upstream: takeByTopologyNUMADistributed in pkg/kubelet/cm/cpumanager/cpu_assignment.go.

The search tries all combinations of k nodes. It takes an equal part from each and the remainder from some of them, and
keeps the combination that leaves the most even free CPUs. The model reproduces two upstream faults. Go's `append` lets
combinations share memory, so a remembered combination of four or more nodes can change afterwards (`combinations`). And
if no node can provide the remainder in whole groups, the loop never ends (`never_ends`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from topowise_scheduler.kubelet.cpu_packing import Packing, sorted_numas, take_packed
from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology, Domain
from topowise_scheduler.kubelet.hints import NEVER_ENDS, Refused


class Slice(NamedTuple):
    """A Go slice: the first `length` elements of an array that other slices may overwrite."""

    array: list[int]
    length: int

    def read(self) -> list[int]:
        """Returns the current elements."""
        return self.array[: self.length]


class _Best(NamedTuple):
    """The best distribution so far: the nodes that provide an equal part, and the nodes that provide the remainder."""

    deviation: float = math.inf
    in_one_socket: bool = False
    nodes: Slice | None = None
    remainder: Slice | None = None


class CpuDistribution(NamedTuple):
    """takeByTopologyNUMADistributed on a machine: `group` CPUs at a time; the other settings are behaviours."""

    topology: CpuTopology
    packing: Packing
    group: int
    in_one_socket: bool
    by_hint: bool
    whole_groups: bool
    copies: bool

    def take(self, available: CpuSet, count: int, width: int) -> CpuSet:
        """Returns `count` CPUs in groups, evenly over NUMA nodes, if possible over at least `width`. Raises Refused."""
        topology, group = self.topology, self.group
        if group < 1 or count % group:
            # A count that is no multiple of the group size cannot be distributed, so it is packed.
            return take_packed(topology, available, count, self.packing)
        if count == 0:
            return 0
        if count > available.bit_count():
            raise self.packing.shortage(count, available.bit_count())
        numas = {numa.id: numa for numa in sorted_numas(topology, available)}
        least, most = self._sizes(count, len(numas))
        # A hint may span more nodes than the CPUs need, because of other resources.
        if self.by_hint and least < width <= most:
            least = width
        free = {node: (numa.cpus & available).bit_count() for node, numa in numas.items()}
        for size in range(least, most + 1):
            best = self._most_balanced(free, count, size)
            if best.nodes is not None:
                return self._dealt(numas, available, count, best)
        return take_packed(topology, available, count, self.packing)

    def _sizes(self, count: int, numas: int) -> tuple[int, int]:
        # Returns the range of NUMA node numbers (rangeNUMANodesNeededToSatisfy).
        groups_total = (self.topology.cpus.bit_count() - 1) // self.group + 1
        per_numa = (groups_total - 1) // len(self.topology.numas) + 1
        groups_needed = (count - 1) // self.group + 1
        return (groups_needed - 1) // per_numa + 1, min(groups_needed, numas)

    def _part(self, free: Mapping[int, int], nodes: Sequence[int], count: int) -> int:
        """Returns the number of CPUs that each node provides first."""
        part = (count // len(nodes) // self.group) * self.group
        if self.in_one_socket:
            part = min(part, *[free[node] // self.group * self.group for node in nodes])
        return part

    def _most_balanced(self, free: Mapping[int, int], count: int, size: int) -> _Best:
        """Returns the combination of `size` NUMA nodes that leaves the most even free CPUs; nodes None if none fits."""
        best = _Best()
        for combination in combinations(list(free), size):
            if best.deviation == 0 and (best.in_one_socket or not self.in_one_socket):
                break
            nodes = combination.read()
            # Free CPUs in incomplete groups cannot be taken: the nodes need enough whole groups.
            if sum(free[node] // self.group for node in nodes) * self.group < count:
                continue
            part = self._part(free, nodes, count)
            if any(free[node] < part for node in nodes):
                continue
            after = dict(free)
            for node in nodes:
                after[node] -= part
            spread, remainder = self._best_remainder(after, nodes, count - part * size)
            together = self.in_one_socket and self._are_in_one_socket(nodes)
            # Nodes of a single socket win over nodes of several sockets, even if these are more balanced.
            if (not together, spread) < (not best.in_one_socket, best.deviation):
                best = _Best(spread, together, self._remembered(combination), remainder)
        return best

    def _best_remainder(self, after: Mapping[int, int], nodes: Sequence[int], rest: int) -> tuple[float, Slice | None]:
        if rest == 0:
            return deviation(list(after.values())), None
        group = self.group
        # Upstream drops nodes without a whole group of free CPUs after the equal part.
        able = [node for node in nodes if after[node] >= group]
        best, chosen = math.inf, None
        # Larger subsets first, and only a smaller deviation replaces the best: a remainder goes to as many nodes as
        # possible.
        for size in range(len(able), 0, -1):
            for subset in combinations(able, size):
                takers = subset.read()
                if self.whole_groups:
                    free = sum(after[node] // group for node in takers) * group
                else:
                    free = sum(after[node] for node in takers)
                if free < rest:
                    continue
                trial = dict(after)
                self._deal(trial, takers, rest)
                spread = deviation(list(trial.values()))
                if spread < best:
                    best, chosen = spread, self._remembered(subset)
        return best, chosen

    def _deal(self, free: dict[int, int], takers: Sequence[int], rest: int) -> None:
        """Takes the remainder in rounds of a group per node. Raises Refused where the kubelet's loop does not end."""
        group = self.group
        while rest > 0:
            before = rest
            for node in takers:
                if rest == 0:
                    break
                if free[node] >= group:
                    free[node] -= group
                    rest -= group
            if rest == before:
                raise never_ends()

    def _remembered(self, combination: Slice) -> Slice:
        return Slice(combination.read(), combination.length) if self.copies else combination

    def _are_in_one_socket(self, nodes: Sequence[int]) -> bool:
        topology = self.topology
        return topology.sockets_in(sum(topology.numa_cpus[node] for node in nodes)) == 1

    def _dealt(self, numas: Mapping[int, Domain], available: CpuSet, count: int, best: _Best) -> CpuSet:
        nodes = best.nodes.read() if best.nodes is not None else []
        free = {node: (numas[node].cpus & available).bit_count() for node in nodes}
        part = self._part(free, nodes, count)
        rest = count - part * len(nodes)
        taken: CpuSet = 0

        def take(node: int, number: int) -> CpuSet:
            try:
                return take_packed(self.topology, numas[node].cpus & available & ~taken, number, self.packing)
            except Refused:
                # Upstream ignores this error; the accounting below then refuses the pod.
                return 0

        for node in nodes:
            taken |= take(node, part)
        takers = best.remainder.read() if best.remainder is not None else []
        while rest > 0:
            before = rest
            for node in takers:
                if rest == 0:
                    break
                if (numas[node].cpus & available & ~taken).bit_count() >= self.group:
                    taken |= take(node, self.group)
                    rest -= self.group
            if rest == before:
                raise never_ends()
        missing = count - taken.bit_count()
        if missing > 0:
            raise Refused(f"accounting error, not enough CPUs allocated, remaining: {missing}")
        return taken


def never_ends() -> Refused:
    """Returns the refusal for an endless loop in the kubelet, which would hold the CPU manager's lock forever."""
    return Refused(
        "the kubelet would search forever: full-pcpus-only with distribute-cpus-across-numa looks for whole cores "
        "that the remaining CPUs do not make up (kubernetes#140730)",
        NEVER_ENDS,
    )


def combinations(items: Sequence[int], size: int) -> Iterator[Slice]:
    """Yields iterateCombinations, with its slices.

    `append` grows an array to 1, 2, 4, 8, ... elements, and writes in place while there is capacity. So combinations
    with equal first three elements share the array of four, and each overwrites the previous fourth element.
    """

    def extend(start: int, prefix: Slice) -> Iterator[Slice]:
        if prefix.length == size:
            yield prefix
            return
        for index in range(start, len(items) - (size - prefix.length) + 1):
            yield from extend(index + 1, _append(prefix, items[index]))

    return extend(0, Slice([], 0))


def _append(prefix: Slice, item: int) -> Slice:
    array, length = prefix
    if length == len(array):
        array = array + [0] * max(1, length)
    array[length] = item
    return Slice(array, length + 1)


def deviation(values: Sequence[int]) -> float:
    """Returns the population standard deviation; mean and result are rounded to 3 decimals, half away from zero."""
    # The rounding decides between nearly equal combinations, so it is part of the behaviour.
    mean = _rounded(sum(values) / len(values))
    return _rounded(math.sqrt(sum((value - mean) * (value - mean) for value in values) / len(values)))


def _rounded(number: float) -> float:
    return math.floor(number * 1000 + 0.5) / 1000
