"""Costs of a zone as a row of the distance table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from topowise import nrt

# The kernel's distances have a byte.
_MAX: Final = 1 << 20


def distances(costs: Iterable[nrt.Cost], ids: Sequence[int]) -> tuple[int, ...] | None:
    """The costs to these NUMA nodes, in their order; None unless there is one to each that can be."""
    to = {cost.name: cost.value for cost in costs}
    row = [to.get(nrt.zone_name(numa_id)) for numa_id in ids]
    found = tuple([cost for cost in row if cost is not None and 0 <= cost <= _MAX])
    return found if len(found) == len(row) else None
