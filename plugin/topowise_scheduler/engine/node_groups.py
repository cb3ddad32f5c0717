"""The counts of all nodes as arrays: nodes whose kubelets count alike are one group, a column each.

Invariants: the columns of a group are dense (the last one moves where one is removed), a column holds what
`counts.read` said of its node last, and what never changes on a node is kept, and computed, once for all nodes with
equal hardware: a cluster has many nodes and few kinds of hardware.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.engine import mask_arrays
from topowise_scheduler.engine.node_vector import CORES, Hardware, Key, Traits
from topowise_scheduler.engine.node_arrays import FIRST_COLUMNS, NodeVector, NodeArrays, Numbers
from topowise_scheduler.engine.mask_arrays import Masks
from topowise_scheduler.engine.verdicts import CAUSE
from topowise_scheduler.shape import Amounts

Columns = slice | NDArray[np.intp]
_HardwareKey = tuple[tuple[object, ...], ...]

# Entries of a column in a group that nodes with several sets of resources share, and how many of them one node may
# bring: some sixty resources of two NUMA nodes, or thirty of eight.
_MOST_SHARED: Final = 512
_MOST_ADDED: Final = 192
# Requests whose preferred sizes are kept.
_MAX_SIZES_BYTES: Final = 2 << 20


class HardwareKinds:
    """The kinds of hardware in a group: `empty` has them with nothing held, `fixed` what never changes, a column each.

    `versions` grows whenever a column is taken for another kind. No two kinds of any group ever have the same version,
    because the number of a group without nodes is given to another group.
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
        """The column of a node's hardware, which has one node more now."""
        key = (*_frozen(hardware.empty), *_frozen(hardware.fixed))
        kind = self._known.get(key)
        if kind is None:
            kind = self._new(key, hardware)
        self._uses[kind] += 1
        return kind

    def join(self, kind: int) -> None:
        """The kind has one node more."""
        self._uses[kind] += 1

    def leave(self, kind: int) -> None:
        """The kind has one node less; without any it is forgotten."""
        self._uses[kind] -= 1
        key = self._keys[kind]
        if not self._uses[kind] and key is not None:
            del self._known[key]
            self._keys[kind] = None
            self._free.append(kind)
            self.empty.free(kind)
            self.fixed.free(kind)

    def cpu_sizes(self, requested: int) -> Masks:
        """(kinds,) the fewest NUMA nodes whose CPUs, busy ones too, reach the request (CpuTopology.smallest_mask)."""
        return self._sizes.once(
            ("cpu", requested), lambda: _smallest(self.fixed.section(CORES)[: self.zones, : self.count], requested)
        )

    def device_sizes(self, resource: str, requested: int) -> Masks:
        """(kinds,) the fewest NUMA nodes that have so many devices (DeviceTable.smallest_mask)."""
        return self._sizes.once(
            ("device", resource, requested),
            lambda: _smallest_hinted(self.fixed.section(("devices", resource))[:, : self.count], requested),
        )

    def memory_sizes(self, requested: Amounts) -> Masks:
        """(kinds,) the fewest NUMA nodes that could hold all of it (MemoryPolicy.smallest_mask)."""
        return self._sizes.once(("memory", requested), lambda: self._memory_sizes(requested))

    def _memory_sizes(self, requested: Amounts) -> Masks:
        free = [self.empty.section(("memory", name))[: self.zones, : self.count] for name, _ in requested]
        single = np.ones((self.zones, self.count), dtype=np.bool_)
        for amounts, (_, size) in zip(free, requested, strict=True):
            single &= amounts >= size
        sizes = np.ones(self.count, dtype=np.uint8)
        several = np.flatnonzero(~single.any(axis=0))
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
        self._sizes.clear()
        return kind


class NodesView:
    """The nodes one decision is about: some `columns` of an array; `hardware` (nodes,) is the kind of each.

    Nobody writes to what it gives.
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

    def __contains__(self, key: Key) -> bool:
        """Whether any node of the array has the section."""
        return key in self._array

    def names(self, family: str) -> list[str]:
        """The resources that have a section in a family."""
        return self._array.names(family)

    def section(self, key: Key) -> Numbers:
        """(entries, nodes)."""
        found = self._sections.get(key)
        if found is None:
            found = self._sections[key] = self._array.section(key)[:, self._columns]
        return found

    def allocatable(self, key: Key) -> Numbers:
        """(zones, nodes) what the zones have of a resource with nothing held."""
        return self._kinds.empty.section(key)[: self.zones, self.hardware]

    def cores(self, entries: int | slice = slice(None)) -> Numbers:
        """(entries, nodes) of the section `CORES`, or (nodes,) of one entry of it."""
        return self._kinds.fixed.section(CORES)[entries, self.hardware]

    def cpu_sizes(self, requested: int) -> Masks:
        """(nodes,) the preferred size of a hint for so many CPUs."""
        return self._kinds.cpu_sizes(requested)[self.hardware]

    def device_sizes(self, resource: str, requested: int) -> Masks:
        """(nodes,) the preferred size of a hint for so many devices."""
        return self._kinds.device_sizes(resource, requested)[self.hardware]

    def memory_sizes(self, requested: Amounts) -> Masks:
        """(nodes,) the preferred size of a hint for so much memory."""
        return self._kinds.memory_sizes(requested)[self.hardware]


class NodeGroup:
    """Nodes with the same traits. `sections` are those that all of them have, none for a group that nodes with several
    sets of resources share. `rows` (columns,) says which row of the engine a column is, `hardware` which column
    of `kinds` is the node's, and `cause` why it cannot be judged by counts, a number of verdicts.CAUSES.
    """

    def __init__(self, traits: Traits, sections: frozenset[Key] = frozenset()) -> None:
        self.traits = traits
        self.sections = sections
        self.kinds = HardwareKinds(traits.zones)
        self.counts = NodeArrays(traits.zones)
        self.count = 0
        self.rows: NDArray[np.int32] = np.zeros(FIRST_COLUMNS, dtype=np.int32)
        self.hardware: NDArray[np.int32] = np.zeros(FIRST_COLUMNS, dtype=np.int32)
        self.cause: NDArray[np.int8] = np.zeros(FIRST_COLUMNS, dtype=np.int8)

    def has_room_for(self, sections: Collection[Key]) -> bool:
        """Whether a node with these sections makes the arrays little higher, as all other nodes pay for it."""
        added = self.counts.height_with(sections)
        return not added or (added <= _MOST_ADDED and self.counts.height + added <= _MOST_SHARED)

    def append(self, row: int, hardware: Hardware, now: NodeVector) -> int:
        """A new node; its column."""
        column = self._new_column(row, now)
        self._enter(column, hardware)
        return column

    def append_like(self, other: int, row: int, now: NodeVector) -> int:
        """A new node with the hardware of one in another column; its own column."""
        column = self._new_column(row, now)
        self.hardware[column], self.cause[column] = self.hardware[other], self.cause[other]
        self.kinds.join(int(self.hardware[column]))
        return column

    def _new_column(self, row: int, now: NodeVector) -> int:
        column = self.count
        self.count += 1
        if column >= len(self.rows):
            self.rows, self.hardware, self.cause = (
                np.concatenate([one, np.zeros_like(one)]) for one in (self.rows, self.hardware, self.cause)
            )
        self.rows[column] = row
        self.counts.write(column, now)
        return column

    def replace(self, column: int, hardware: Hardware | None, now: NodeVector) -> None:
        """The node has other counts; None: its hardware is as it was."""
        if hardware is not None:
            before = int(self.hardware[column])
            self._enter(column, hardware)
            self.kinds.leave(before)
        self.counts.write(column, now)

    def remove(self, column: int) -> int:
        """The node is gone; the row whose column is this one now, -1 if none has moved."""
        self.kinds.leave(int(self.hardware[column]))
        self.count -= 1
        last = self.count
        if column == last:
            self.counts.free(column)
            return -1
        self.counts.move(last, column)
        for one in (self.rows, self.hardware, self.cause):
            one[column] = one[last]
        return int(self.rows[column])

    def view(self, columns: Columns) -> NodesView:
        """Some columns as they are now."""
        return NodesView(self.counts, columns, self.kinds, self.hardware[columns])

    def empty_view(self, kinds: NDArray[np.int32]) -> NodesView:
        """Nodes of these kinds with nothing held."""
        return NodesView(self.kinds.empty, kinds.astype(np.intp), self.kinds, kinds)

    def _enter(self, column: int, hardware: Hardware) -> None:
        self.hardware[column] = self.kinds.enter(hardware)
        self.cause[column] = CAUSE[hardware.cause]


def _frozen(counts: NodeVector) -> list[tuple[object, ...]]:
    return [(key, *numbers) for key, numbers in counts.items()]


def _smallest_hinted(capacity: Numbers, requested: int) -> Masks:
    """The same of devices: all nodes that hints look at if they have too few, though some of them have none."""
    hinted = capacity >= 0
    largest = np.cumsum(-np.sort(-np.maximum(capacity, 0), axis=0), axis=0)
    least = 1 + (largest < requested).sum(axis=0)
    sizes: Masks = np.minimum(least, hinted.sum(axis=0)).astype(np.uint8)
    return sizes


def _smallest(capacity: Numbers, requested: int) -> Masks:
    """From (zones, kinds) the least k whose k largest reach the request; all that have any if they do not."""
    largest = np.cumsum(-np.sort(-capacity, axis=0), axis=0)
    least = 1 + (largest < requested).sum(axis=0)
    sizes: Masks = np.minimum(least, (capacity > 0).sum(axis=0)).astype(np.uint8)
    return sizes
