"""The vectors of all nodes in arrays: nodes with equal traits form a group with a column for each node.

Invariants: the columns of a group are dense (the last column moves to a removed column's position). A column has the
latest `vector_of` its node. Constant sections are stored and computed by kind of hardware, because a cluster has many
nodes and few kinds of hardware.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.report.shape import Amounts
from topowise_scheduler.verdicts.engine import mask_arrays
from topowise_scheduler.verdicts.engine.mask_arrays import Masks
from topowise_scheduler.verdicts.engine.node_arrays import FIRST_COLUMNS, NodeArrays, NodeVector, Numbers
from topowise_scheduler.verdicts.engine.node_vector import CORES, Hardware, Key, Traits
from topowise_scheduler.verdicts.engine.verdicts import CAUSE

Columns = slice | NDArray[np.intp]
_HardwareKey = tuple[tuple[object, ...], ...]

# The entries of a column in a shared group, and the entries that a node may add: about sixty resources of two NUMA
# nodes, or thirty of eight.
_MOST_SHARED: Final = 512
_MOST_ADDED: Final = 192
# Bytes of cached preferred sizes.
_MAX_SIZES_BYTES: Final = 2 << 20


class HardwareKinds:
    """The kinds of hardware in a group, a column each: `empty` has empty nodes, `fixed` the constant sections.

    `versions` (kinds,) changes when a column is reused for another kind. Versions are unique over all groups, because
    cached verdicts refer to a group by a number that another group can reuse.
    """

    _version: ClassVar[Iterator[int]] = count(1)

    def __init__(self, zones: int) -> None:
        self.zones = zones
        self.empty = NodeArrays(zones)
        self.fixed = NodeArrays(zones)
        self.versions: Numbers = np.zeros(FIRST_COLUMNS, dtype=np.int64)
        self.count = 0
        self._known: dict[_HardwareKey, int] = {}
        self._keys: list[_HardwareKey | None] = []
        self._uses: list[int] = []
        self._free: list[int] = []
        self._sizes: Bounded[tuple[object, ...], Masks] = Bounded(_MAX_SIZES_BYTES, lambda _, sizes: sizes.nbytes)

    def enter(self, hardware: Hardware) -> int:
        """Adds a node with this hardware; returns the column of its kind."""
        key = (*_frozen(hardware.empty), *_frozen(hardware.fixed))
        kind = self._known.get(key)
        if kind is None:
            kind = self._new(key, hardware)
        self._uses[kind] += 1
        return kind

    def join(self, kind: int) -> None:
        """Adds a node of this kind."""
        self._uses[kind] += 1

    def leave(self, kind: int) -> None:
        """Removes a node of this kind, and the kind with its last node."""
        self._uses[kind] -= 1
        key = self._keys[kind]
        if not self._uses[kind] and key is not None:
            del self._known[key]
            self._keys[kind] = None
            # The next new kind reuses the column.
            self._free.append(kind)
            self.empty.free(kind)
            self.fixed.free(kind)

    def cpu_sizes(self, requested: int) -> Masks:
        """(kinds,) the fewest NUMA nodes whose CPUs, free or not, reach the request (generateCPUTopologyHints)."""
        return self._sizes.once(
            ("cpu", requested), lambda: _smallest(self.fixed.section(CORES)[: self.zones, : self.count], requested)
        )

    def device_sizes(self, resource: str, requested: int) -> Masks:
        """(kinds,) the fewest NUMA nodes with this number of devices (generateDeviceTopologyHints)."""
        return self._sizes.once(
            ("device", resource, requested),
            lambda: _smallest_hinted(self.fixed.section(("devices", resource))[:, : self.count], requested),
        )

    def memory_sizes(self, requested: Amounts) -> Masks:
        """(kinds,) the fewest NUMA nodes whose allocatable memory reaches the request (calculateHints)."""
        return self._sizes.once(("memory", requested), lambda: self._memory_sizes(requested))

    def _memory_sizes(self, requested: Amounts) -> Masks:
        free = [self.empty.section(("memory", name))[: self.zones, : self.count] for name, _ in requested]
        single = np.ones((self.zones, self.count), dtype=np.bool_)
        for amounts, (_, size) in zip(free, requested, strict=True):
            single &= amounts >= size
        sizes = np.ones(self.count, dtype=np.uint8)
        several = np.flatnonzero(~single.any(axis=0))
        # Most requests fit a single NUMA node; only the rest needs the table of masks.
        if len(several):
            fits = np.ones((1 << self.zones, len(several)), dtype=np.bool_)
            for amounts, (_, size) in zip(free, requested, strict=True):
                fits &= mask_arrays.masks_reaching(amounts[:, several], size)
            least = mask_arrays.where_fits(fits, mask_arrays.popcounts(self.zones)[:, None]).min(axis=0)
            sizes[several] = np.minimum(least, self.zones)
        return sizes

    def _new(self, key: _HardwareKey, hardware: Hardware) -> int:
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
        self.empty.write(kind, hardware.empty)
        self.fixed.write(kind, hardware.fixed)
        self.versions[kind] = next(self._version)
        # Cached sizes have an entry for each kind.
        self._sizes.clear()
        return kind


class NodesView:
    """The nodes of a decision: some `columns` of an array; `hardware` (nodes,) is the kind of each.

    The returned arrays are read-only by convention, as they may be views.
    """

    __slots__ = ("_array", "_columns", "_kinds", "_sections", "hardware", "zones")

    def __init__(self, array: NodeArrays, columns: Columns, kinds: HardwareKinds, hardware: NDArray[np.int32]) -> None:
        self._array = array
        self._columns = columns
        self._kinds = kinds
        self._sections: dict[Key, Numbers] = {}
        self.hardware = hardware
        self.zones = kinds.zones

    def __len__(self) -> int:
        return len(self.hardware)

    def names(self, family: str) -> list[str]:
        """The resources with a section in a family."""
        return self._array.names(family)

    def section(self, key: Key) -> Numbers:
        """(entries, nodes)."""
        section = self._sections.get(key)
        if section is None:
            section = self._sections[key] = self._array.section(key)[:, self._columns]
        return section

    def find(self, key: Key) -> Numbers | None:
        """(entries, nodes), None if no node of the array has the section."""
        if key in self._sections:
            return self._sections[key]
        return self.section(key) if key in self._array else None

    def allocatable(self, key: Key) -> Numbers:
        """(zones, nodes) the amount of a resource that each zone of the empty node has."""
        return self._kinds.empty.section(key)[: self.zones, self.hardware]

    def cores(self, entries: int | slice = slice(None)) -> Numbers:
        """(entries, nodes) of the section `CORES`, or (nodes,) of a single entry."""
        return self._kinds.fixed.section(CORES)[entries, self.hardware]

    def cpu_sizes(self, requested: int) -> Masks:
        """(nodes,) the preferred size of a hint for this number of CPUs."""
        return self._kinds.cpu_sizes(requested)[self.hardware]

    def device_sizes(self, resource: str, requested: int) -> Masks:
        """(nodes,) the preferred size of a hint for this number of devices."""
        return self._kinds.device_sizes(resource, requested)[self.hardware]

    def memory_sizes(self, requested: Amounts) -> Masks:
        """(nodes,) the preferred size of a hint for these amounts of memory."""
        return self._kinds.memory_sizes(requested)[self.hardware]


class NodeGroup:
    """Nodes with the same traits. `sections` are the sections of all nodes, none for a shared group. `rows` (columns,)
    is the engine's row of each column, `hardware` its column in `kinds`, and `cause` why amounts do not decide (an
    index of verdicts.CAUSES).
    """

    def __init__(self, traits: Traits, sections: frozenset[Key] = frozenset()) -> None:
        self.traits = traits
        self.sections = sections
        self.kinds = HardwareKinds(traits.zones)
        self.arrays = NodeArrays(traits.zones)
        self.count = 0
        self.rows: NDArray[np.int32] = np.zeros(FIRST_COLUMNS, dtype=np.int32)
        self.hardware: NDArray[np.int32] = np.zeros(FIRST_COLUMNS, dtype=np.int32)
        self.cause: NDArray[np.int8] = np.zeros(FIRST_COLUMNS, dtype=np.int8)

    def has_room_for(self, sections: Collection[Key]) -> bool:
        """Whether a node with these sections adds few rows to the arrays; a row takes space for every node."""
        added = self.arrays.height_with(sections)
        return not added or (added <= _MOST_ADDED and self.arrays.height + added <= _MOST_SHARED)

    def append(self, row: int, hardware: Hardware, vector: NodeVector) -> int:
        """Adds a node; returns its column."""
        column = self._new_column(row, vector)
        self._enter(column, hardware)
        return column

    def append_like(self, template: int, row: int, vector: NodeVector) -> int:
        """Adds a node with the hardware of the node in column `template`; returns its column."""
        column = self._new_column(row, vector)
        self.hardware[column], self.cause[column] = self.hardware[template], self.cause[template]
        self.kinds.join(int(self.hardware[column]))
        return column

    def _new_column(self, row: int, vector: NodeVector) -> int:
        column = self.count
        self.count += 1
        if column >= len(self.rows):
            self.rows, self.hardware, self.cause = (
                np.concatenate([entries, np.zeros_like(entries)]) for entries in (self.rows, self.hardware, self.cause)
            )
        self.rows[column] = row
        self.arrays.write(column, vector)
        return column

    def replace(self, column: int, hardware: Hardware | None, vector: NodeVector) -> None:
        """Writes a changed node; None for unchanged hardware."""
        if hardware is not None:
            # Entered before the old kind is left, so that equal hardware keeps its column.
            before = int(self.hardware[column])
            self._enter(column, hardware)
            self.kinds.leave(before)
        self.arrays.write(column, vector)

    def remove(self, column: int) -> int:
        """Removes a node; returns the row that has moved to its column, -1 for none."""
        self.kinds.leave(int(self.hardware[column]))
        self.count -= 1
        last = self.count
        if column == last:
            self.arrays.free(column)
            return -1
        self.arrays.move(last, column)
        for entries in (self.rows, self.hardware, self.cause):
            entries[column] = entries[last]
        return int(self.rows[column])

    def view(self, columns: Columns) -> NodesView:
        """The current vectors of some columns."""
        return NodesView(self.arrays, columns, self.kinds, self.hardware[columns])

    def empty_view(self, kinds: NDArray[np.int32]) -> NodesView:
        """Empty nodes of these kinds."""
        return NodesView(self.kinds.empty, kinds.astype(np.intp), self.kinds, kinds)

    def _enter(self, column: int, hardware: Hardware) -> None:
        self.hardware[column] = self.kinds.enter(hardware)
        self.cause[column] = CAUSE[hardware.cause]


def _frozen(vector: NodeVector) -> list[tuple[object, ...]]:
    return [(key, *numbers) for key, numbers in vector.items()]


def _smallest_hinted(capacity: Numbers, requested: int) -> Masks:
    """`_smallest` for devices. If all devices are too few, all hinted NUMA nodes, with or without devices."""
    # ABSENT is negative: hints leave the NUMA node out.
    hinted = capacity >= 0
    largest = np.cumsum(-np.sort(-np.maximum(capacity, 0), axis=0), axis=0)
    least = 1 + (largest < requested).sum(axis=0)
    sizes: Masks = np.minimum(least, hinted.sum(axis=0)).astype(np.uint8)
    return sizes


def _smallest(capacity: Numbers, requested: int) -> Masks:
    """(kinds,) from (zones, kinds): the least k so that the k largest entries reach the request.

    If all entries are too few, the number of positive entries.
    """
    largest = np.cumsum(-np.sort(-capacity, axis=0), axis=0)
    least = 1 + (largest < requested).sum(axis=0)
    sizes: Masks = np.minimum(least, (capacity > 0).sum(axis=0)).astype(np.uint8)
    return sizes
