"""The vectors of many nodes in an array: sections of rows, and a column for each node.

Invariant: a section exists while a column has it. A column without the section has `node_vector.absent` there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine.node_vector import Key, absent

Numbers = NDArray[np.int64]
NodeVector = Mapping[Key, Sequence[int]]

# A node with unusual resources has a separate group, so the arrays start small.
FIRST_COLUMNS: Final = 2
# Up to this number of unused rows the arrays are not compacted.
_FEW_ROWS: Final = 64
# More than any request, and the sum of eight does not overflow.
_MOST: Final = 1 << 58


class _Set:
    """The set of sections that `columns` columns have."""

    __slots__ = ("columns", "keys")

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self.keys = keys
        self.columns = 0


_NONE: Final = _Set(())


class NodeArrays:
    """int64 (entries, columns): the entries of a section are adjacent rows, the nodes are contiguous in each row.

    So a comparison over all nodes reads memory sequentially, and a node is written by an assignment. Rows and columns
    grow by doubling. Rows of unused sections are released when they outnumber the used rows.
    """

    def __init__(self, zones: int) -> None:
        self._zones = zones
        self._data: Numbers = np.zeros((0, FIRST_COLUMNS), dtype=np.int64)
        self._slices: dict[Key, slice] = {}
        # In the order of the rows, with unused sections.
        self._defaults: dict[Key, Sequence[int]] = {}
        # Most columns share a set of sections, so uses of a section are counted by set.
        self._sets: dict[tuple[Key, ...], _Set] = {}
        self._set_of: list[_Set] = []
        self._uses: dict[Key, int] = {}
        self._height = self._unused = 0

    def __contains__(self, key: Key) -> bool:
        return self._uses.get(key, 0) > 0

    @property
    def height(self) -> int:
        """The number of entries of used sections."""
        return self._height - self._unused

    def height_with(self, keys: Collection[Key]) -> int:
        """The number of entries that these sections add."""
        if tuple(keys) in self._sets:
            return 0
        return sum([len(absent(key, self._zones)) for key in keys if key not in self])

    def names(self, family: str) -> list[str]:
        """The resources with a section in a family."""
        return [name for (first, name), uses in self._uses.items() if uses and first == family]

    def section(self, key: Key) -> Numbers:
        """(entries, columns), with free columns."""
        rows = self._slices.get(key)
        if rows is None:
            # A section may disappear between the steps of a decision.
            return np.repeat(np.array(absent(key, self._zones), dtype=np.int64)[:, None], self._data.shape[1], axis=1)
        return self._data[rows]

    def write(self, column: int, values: NodeVector) -> None:
        """Writes a column."""
        keys = tuple(values)
        while column >= len(self._set_of):
            self._set_of.append(_NONE)
        if self._set_of[column].keys != keys:
            self._use(column, keys)
        if column >= self._data.shape[1]:
            self._resize(self._data.shape[0], max(2 * self._data.shape[1], column + 1))
        numbers: list[int] = []
        for key, default in self._defaults.items():
            numbers += values.get(key, default)
        try:
            self._data[: self._height, column] = numbers
        except OverflowError:
            # A damaged report; no request is as large.
            self._data[: self._height, column] = [max(-_MOST, min(_MOST, number)) for number in numbers]

    def move(self, source: int, target: int) -> None:
        """Moves a column to the position of another column."""
        self._data[:, target] = self._data[:, source]
        self._use(target, self._set_of[source].keys)
        self.free(source)

    def free(self, column: int) -> None:
        """Frees a column."""
        self._use(column, ())

    def _use(self, column: int, keys: tuple[Key, ...]) -> None:
        """Sets the sections of a column."""
        before = self._set_of[column]
        if before.keys == keys:
            return
        after = self._sets.get(keys, _NONE)
        if after is _NONE and keys:
            after = self._sets[keys] = _Set(keys)
            for key in keys:
                if key not in self._slices:
                    self._add(key)
                self._unused -= 0 if self._uses[key] else len(self._defaults[key])
                self._uses[key] += 1
        self._set_of[column] = after
        after.columns += 1
        before.columns -= 1
        if before.keys and not before.columns:
            del self._sets[before.keys]
            for key in before.keys:
                self._uses[key] -= 1
                self._unused += 0 if self._uses[key] else len(self._defaults[key])
            if self._unused > max(_FEW_ROWS, self._height // 2):
                self._compact()

    def _add(self, key: Key) -> None:
        default = absent(key, self._zones)
        first, self._height = self._height, self._height + len(default)
        if self._height > self._data.shape[0]:
            self._resize(max(self._height, 2 * self._data.shape[0]), self._data.shape[1])
        self._defaults[key], self._slices[key], self._uses[key] = default, slice(first, self._height), 0
        self._unused += len(default)
        self._data[first : self._height] = np.array(default, dtype=np.int64)[:, None]

    def _compact(self) -> None:
        """Releases the rows of unused sections."""
        used = {key: default for key, default in self._defaults.items() if self._uses[key]}
        self._data = np.concatenate([self._data[self._slices[key]] for key in used] or [self._data[:0]])
        self._slices, first = {}, 0
        for key, default in used.items():
            self._slices[key] = slice(first, first + len(default))
            first += len(default)
        self._defaults, self._uses = used, {key: self._uses[key] for key in used}
        self._height, self._unused = first, 0

    def _resize(self, height: int, width: int) -> None:
        larger = np.zeros((height, width), dtype=np.int64)
        larger[: self._data.shape[0], : self._data.shape[1]] = self._data
        self._data = larger
