"""Kinds of nodes: what nodes with equal hardware and reservations have in common.

A cluster has many nodes and few kinds. What never changes on a node is kept, and computed, once a kind: the fewest
NUMA nodes a request needs, and whether a node of the kind could ever run a pod.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import lattice
from topowise_scheduler.engine.counts import CORES, Column, Standing, absent
from topowise_scheduler.engine.grid import Grid
from topowise_scheduler.engine.shape import Amounts

Sizes = NDArray[np.uint8]
_Key = tuple[tuple[object, ...], ...]

# Requests whose sizes are remembered.
_REMEMBERED = 1024


class Kinds:
    """The kinds of one table. `empty` has them with nothing held, `fixed` what never changes, a column a kind.

    `versions` grows whenever a column is taken for another kind.
    """

    def __init__(self, zones: int) -> None:
        self.zones = zones
        self.empty = Grid(lambda key: absent(key, zones))
        self.fixed = Grid(lambda key: absent(key, zones))
        self.versions: NDArray[np.int64] = np.zeros(16, dtype=np.int64)
        self.count = 0
        self._version = 0
        self._known: dict[_Key, int] = {}
        self._keys: list[_Key | None] = []
        self._uses: list[int] = []
        self._free: list[int] = []
        self._sizes: dict[tuple[object, ...], Sizes] = {}

    def enter(self, standing: Standing) -> int:
        """The kind of a node, which has one node more now."""
        key = (*_frozen(standing.empty), *_frozen(standing.fixed))
        kind = self._known.get(key)
        if kind is None:
            kind = self._new(key, standing)
        self._uses[kind] += 1
        return kind

    def leave(self, kind: int) -> None:
        """The kind has one node less; without any it is forgotten."""
        self._uses[kind] -= 1
        key = self._keys[kind]
        if not self._uses[kind] and key is not None:
            del self._known[key]
            self._keys[kind] = None
            self._free.append(kind)

    def cpu_sizes(self, requested: int) -> Sizes:
        """(kinds,) the fewest NUMA nodes whose CPUs, busy ones too, reach the request (CpuTopology.smallest_mask)."""
        return self._remembered(
            ("cpu", requested), lambda: _smallest(self.fixed.section(CORES)[: self.zones, : self.count], requested)
        )

    def device_sizes(self, resource: str, requested: int) -> Sizes:
        """(kinds,) the fewest NUMA nodes that have so many devices (DeviceTable.smallest_mask)."""
        return self._remembered(
            ("device", resource, requested),
            lambda: _smallest(self.fixed.section(("devices", resource))[:, : self.count], requested),
        )

    def memory_sizes(self, requested: Amounts) -> Sizes:
        """(kinds,) the fewest NUMA nodes that could hold all of it (MemoryPolicy.smallest_mask)."""
        return self._remembered(("memory", requested), lambda: self._memory_sizes(requested))

    def _memory_sizes(self, requested: Amounts) -> Sizes:
        free = [self.empty.section(("memory", name))[: self.zones, : self.count] for name, _ in requested]
        single = np.ones((self.zones, self.count), dtype=np.bool_)
        for amounts, (_, size) in zip(free, requested, strict=True):
            single &= amounts >= size
        sizes = np.ones(self.count, dtype=np.uint8)
        several = np.flatnonzero(~single.any(axis=0))
        if len(several):
            fits = np.ones((1 << self.zones, len(several)), dtype=np.bool_)
            for amounts, (_, size) in zip(free, requested, strict=True):
                fits &= lattice.reaching(amounts[:, several], size)
            least = lattice.marked(fits, lattice.popcounts(self.zones)[:, None]).min(axis=0)
            sizes[several] = np.minimum(least, self.zones)
        return sizes

    def _remembered(self, key: tuple[object, ...], compute: Callable[[], Sizes]) -> Sizes:
        found = self._sizes.get(key)
        if found is None:
            if len(self._sizes) >= _REMEMBERED:
                self._sizes.clear()
            found = self._sizes[key] = compute()
        return found

    def _new(self, key: _Key, standing: Standing) -> int:
        if self._free:
            kind = self._free.pop()
            self._keys[kind] = key
        else:
            kind = self.count
            self.count += 1
            self._keys.append(key)
            self._uses.append(0)
            if kind >= len(self.versions):
                self.versions = np.concatenate([self.versions, np.zeros_like(self.versions)])
        self._known[key] = kind
        self.empty.write(kind, standing.empty)
        self.fixed.write(kind, standing.fixed)
        self._version += 1
        self.versions[kind] = self._version
        self._sizes.clear()
        return kind


def _frozen(column: Column) -> list[tuple[object, ...]]:
    return [(key, *numbers) for key, numbers in column.items()]


def _smallest(capacity: NDArray[np.int64], requested: int) -> Sizes:
    """From (zones, kinds) the least k whose k largest reach the request; all that have any if they do not."""
    largest = np.cumsum(-np.sort(-capacity, axis=0), axis=0)
    least = 1 + (largest < requested).sum(axis=0)
    sizes: Sizes = np.minimum(least, (capacity > 0).sum(axis=0)).astype(np.uint8)
    return sizes
