"""Which CPUs with distribute-cpus-across-numa: the fewest NUMA nodes, evenly.

Upstream: takeByTopologyNUMADistributed in pkg/kubelet/cm/cpumanager/cpu_assignment.go.

The search goes over all combinations of k nodes, takes an equal part from each, gives the remainder to some of them,
and keeps what leaves the free CPUs of the machine most even. One thing is reproduced that is a mistake upstream:
Go's `append` lets combinations share memory, so a remembered combination of four nodes or more can change
afterwards, see `combinations`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from topowise_scheduler.kubelet.cpu_packing import sorted_numas, take_packed
from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology, Domain
from topowise_scheduler.kubelet.hints import Refused


class Slice(NamedTuple):
    """A Go slice: the first `length` elements of an array that others may write to."""

    array: list[int]
    length: int

    def read(self) -> list[int]:
        """The elements as they are now."""
        return self.array[: self.length]


class _Balanced(NamedTuple):
    deviation: float
    nodes: Slice | None
    remainder: Slice | None


def take_distributed(topology: CpuTopology, available: CpuSet, count: int, group: int, spread: bool) -> CpuSet:
    """`count` CPUs in groups of `group`, evenly over NUMA nodes. Raises Refused."""
    if group < 1 or count % group:
        return take_packed(topology, available, count, spread=spread)
    if count == 0:
        return 0
    free = available.bit_count()
    if count > free:
        raise Refused(f"not enough cpus available to satisfy request: requested={count}, available={free}")
    numas = {numa.id: numa for numa in sorted_numas(topology, available)}
    groups_total = (topology.cpus.bit_count() - 1) // group + 1
    per_numa = (groups_total - 1) // len(topology.numas) + 1
    groups_needed = (count - 1) // group + 1
    for size in range((groups_needed - 1) // per_numa + 1, min(groups_needed, len(numas)) + 1):
        best = _most_balanced(numas, available, count, group, size)
        if best.nodes is not None:
            return _take(topology, numas, available, count, group, spread, best)
    return take_packed(topology, available, count, spread=spread)


def combinations(items: Sequence[int], size: int) -> Iterator[Slice]:
    """iterateCombinations, with its slices.

    `append` grows an array to 1, 2, 4, 8, ... places and writes in place where there is room. So combinations with
    the same first three elements share the array of four, and the next one overwrites the fourth element of the last
    one.
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
    """Population standard deviation; mean and result are rounded to 3 decimals, half away from zero."""
    mean = _rounded(sum(values) / len(values))
    return _rounded(math.sqrt(sum((value - mean) * (value - mean) for value in values) / len(values)))


def _rounded(number: float) -> float:
    return math.floor(number * 1000 + 0.5) / 1000


def _most_balanced(numas: dict[int, Domain], available: CpuSet, count: int, group: int, size: int) -> _Balanced:
    """The combination of `size` NUMA nodes that leaves the most even rest; nodes None if none can hold the request."""
    free = {node: (numa.cpus & available).bit_count() for node, numa in numas.items()}
    part = (count // size // group) * group
    rest = count - part * size
    best = _Balanced(math.inf, None, None)
    for combination in combinations(list(numas), size):
        if best.deviation == 0:
            break
        nodes = combination.read()
        if sum(free[node] for node in nodes) < count:
            continue
        if group * sum(free[node] // group for node in nodes) < count:
            continue
        if any(free[node] < part for node in nodes):
            continue
        after = dict(free)
        for node in nodes:
            after[node] -= part
        spread, remainder = _best_remainder(after, nodes, rest, group)
        if spread < best.deviation:
            best = _Balanced(spread, combination, remainder)
    return best


def _best_remainder(after: dict[int, int], nodes: Sequence[int], rest: int, group: int) -> tuple[float, Slice | None]:
    if rest == 0:
        return deviation(list(after.values())), None
    able = [node for node in nodes if after[node] >= group]
    best, chosen = math.inf, None
    for size in range(len(able), 0, -1):
        for subset in combinations(able, size):
            takers = subset.read()
            if sum(after[node] for node in takers) < rest:
                continue
            trial = dict(after)
            if not _deal(trial, takers, rest, group):
                continue
            spread = deviation(list(trial.values()))
            if spread < best:
                best, chosen = spread, subset
    return best, chosen


def _deal(free: dict[int, int], takers: Sequence[int], rest: int, group: int) -> bool:
    """Take the rest in rounds of one group a node; False where the kubelet's loop would never end."""
    while rest > 0:
        before = rest
        for node in takers:
            if rest == 0:
                break
            if free[node] >= group:
                free[node] -= group
                rest -= group
        if rest == before:
            return False
    return True


def _take(
    topology: CpuTopology,
    numas: dict[int, Domain],
    available: CpuSet,
    count: int,
    group: int,
    spread: bool,
    best: _Balanced,
) -> CpuSet:
    nodes = best.nodes.read() if best.nodes is not None else []
    part = (count // len(nodes) // group) * group
    rest = count - part * len(nodes)
    taken: CpuSet = 0

    def take(node: int, wanted: int) -> CpuSet:
        try:
            return take_packed(topology, numas[node].cpus & available & ~taken, wanted, spread=spread)
        except Refused:
            return 0

    for node in nodes:
        taken |= take(node, part)
    takers = best.remainder.read() if best.remainder is not None else []
    while rest > 0:
        before = rest
        for node in takers:
            if rest == 0:
                break
            if (numas[node].cpus & available & ~taken).bit_count() >= group:
                taken |= take(node, group)
                rest -= group
        if rest == before:
            break
    missing = count - taken.bit_count()
    if missing > 0:
        raise Refused(f"accounting error, not enough CPUs allocated, remaining: {missing}")
    if missing < 0:
        raise Refused(f"accounting error, too many CPUs allocated, remaining: {missing}")
    return taken
