"""Costs of a zone as a row of the distance table, and the speed of its memory where that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from topowise import cpuset, digits, nrt
from topowise.errors import ParseError

# The kernel's distances have a byte.
_MAX: Final = 1 << 20


def distances(costs: Iterable[nrt.Cost], ids: Sequence[int]) -> tuple[int, ...] | None:
    """The costs to these NUMA nodes, in their order; None unless there is one to each that can be.

    If there are costs to NUMA nodes that have no zone, and no gaps between the ids, the row is of all of them by id, as
    the kernel prints it: the kubelet reads it by id.
    """
    to = {cost.name: cost.value for cost in costs}
    every = range(len(to))
    if len(to) > len(ids) and all(nrt.zone_name(numa_id) in to for numa_id in every):
        ids = every
    row = [to.get(nrt.zone_name(numa_id)) for numa_id in ids]
    found = tuple([cost for cost in row if cost is not None and 0 <= cost <= _MAX])
    return found if len(found) == len(row) else None


def speed(texts: Sequence[str], ids: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
    """Initiators among these NUMA ids, read latency and bandwidth; 0 for what is not told. None of it decides whether
    a pod fits, so what cannot be read is not told."""
    if not texts:
        return (), 0, 0
    named, *figures = texts
    try:
        initiators = cpuset.parse(named)
    except ParseError:
        return (), 0, 0
    latency, bandwidth = (digits.natural(text) or 0 for text in figures)
    return tuple([numa_id for numa_id in ids if numa_id in initiators]), latency, bandwidth
