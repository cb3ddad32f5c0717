"""Values of the whole picture that the layout needs before it places any part."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

import msgspec

from topowise_scheduler.explain.picture.captions import tag
from topowise_scheduler.explain.picture.contents import Picture, Zone
from topowise_scheduler.explain.picture.font_metrics import widest
from topowise_scheduler.explain.picture.measures import Measures


class Plan(msgspec.Struct, frozen=True):
    """`tag_x` is the width of a tag, `id_x` of a CPU's id (0 without ids), `largest` the full width of a memory."""

    picture: Picture
    measures: Measures
    tag_x: int
    id_x: int
    largest: Mapping[str, int]

    @property
    def cell_x(self) -> int:
        """The width of a CPU's cell."""
        measures = self.measures
        id_x = self.id_x + measures.cell_pad if measures.cell_ids and self.id_x else 0
        return id_x + self.tag_x + 2 * measures.cell_pad

    @property
    def core_x(self) -> int:
        """The width of a core."""
        return self.cell_x + 2 * self.measures.core_pad

    @property
    def label_x(self) -> int:
        """The width of what stands before a row of cells."""
        return 0 if self.measures.cell_ids or not self.id_x else self.id_x + 1

    def across(self, cores: int) -> int:
        """The width of so many cores in a row."""
        return cores * (self.core_x + self.measures.core_gap) - self.measures.core_gap


def make_plan(picture: Picture, measures: Measures) -> Plan:
    """The plan of a picture in a medium."""
    ids = [str(thread.id) for zone in picture.zones for thread in zone.threads if thread.id is not None]
    largest: dict[str, int] = {}
    for zone in picture.zones:
        for memory in zone.memory:
            largest[memory.type] = max(largest.get(memory.type, 0), memory.total)
    return Plan(
        picture=picture,
        measures=measures,
        tag_x=widest(measures.faces["tag"], ["A", *map(tag, range(len(picture.owners)))]),
        id_x=widest(measures.faces["id"], ids),
        largest=largest,
    )


def balanced(count: int, fit: int) -> int:
    """The columns that need no more rows than `fit` columns do, and leave the last row as full as can be."""
    rows = -(-count // fit)
    return -(-count // rows)


def wanted_zone(plan: Plan, across: int) -> int:
    """The width a zone wants, frame included, if so many lie side by side; all there is where that is limited."""
    measures = plan.measures
    if measures.width is not None:
        return measures.max_zone
    inner = max((_cpus_x(plan, zone, measures.cores_across[across - 1]) for zone in plan.picture.zones), default=0)
    least = measures.min_zone if across > 1 else measures.min_canvas - 2 * measures.margin
    return min(measures.max_zone, max(least, inner + 2 * measures.pad_x))


def _cpus_x(plan: Plan, zone: Zone, usual: int) -> int:
    """The width of the zone's CPUs: `usual` cores in a row, or more if there would be many more rows than that."""
    caches = [cache for socket in zone.sockets for cache in socket.caches]
    count = sum(len(cache.cores) for cache in caches)
    # Without ids a cell is half as wide, and a core half as high.
    row = max(usual, isqrt(2 * count)) if plan.id_x else max(2 * usual, isqrt(4 * count))
    largest = max((balanced(len(cache.cores), row) for cache in caches), default=0)
    if len(caches) < 2 or not largest:
        return plan.across(largest)
    measures = plan.measures
    side_by_side = min(len(caches), max(1, row // largest))
    return side_by_side * (plan.across(largest) + 2 * measures.cache_pad + measures.cache_gap) - measures.cache_gap
