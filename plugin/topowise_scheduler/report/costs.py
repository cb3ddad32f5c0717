"""Parses a zone's costs into a row of the distance table, and the measured speed of its memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from topowise import cpuset, digits, nrt
from topowise.errors import ParseError

# A kernel distance has 8 bits. The bound is far above that and keeps sums of distances small.
_MAX: Final = 1 << 20


def distances(costs: Iterable[nrt.Cost], ids: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the costs to these NUMA nodes, in their order, or None unless each NUMA node has a valid cost.

    Costs may name NUMA nodes without a zone. If the ids have no gaps, the row then has an entry for every id, as the
    kernel prints it: the kubelet reads the row by id.
    """
    cost_by_name = {cost.name: cost.value for cost in costs}
    every = range(len(cost_by_name))
    if len(cost_by_name) > len(ids) and all(nrt.zone_name(numa_id) in cost_by_name for numa_id in every):
        ids = every
    row = [cost_by_name.get(nrt.zone_name(numa_id)) for numa_id in ids]
    valid = tuple([cost for cost in row if cost is not None and 0 <= cost <= _MAX])
    return valid if len(valid) == len(row) else None


def speed(texts: Sequence[str], ids: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
    """Returns the initiators among these NUMA ids, the read latency and the read bandwidth; 0 for an unreported figure.

    No verdict depends on them, so unreadable text counts as unreported.
    """
    if not texts:
        return (), 0, 0
    named, *figures = texts
    try:
        initiators = cpuset.parse(named)
    except ParseError:
        return (), 0, 0
    # Nanoseconds and MiB/s.
    latency, bandwidth = (digits.natural(text) or 0 for text in figures)
    # An initiator without a zone has no position, so it is dropped.
    return tuple([numa_id for numa_id in ids if numa_id in initiators]), latency, bandwidth
