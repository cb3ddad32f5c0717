"""Named sections of numbers, a column a node: the memory layout under the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

# A family of sections, and the resource, "" where there is only one.
Key = tuple[str, str]
Column = Mapping[Key, Sequence[int]]

_FIRST_COLUMNS: Final = 16
# More than any request, and eight of them do not overflow.
_MOST: Final = 1 << 58


class Grid:
    """int64 (places, columns): a section has its places one after another, and each place all nodes in one stretch.

    So a comparison over all nodes reads memory in order, and a node is written by one assignment. A section comes
    into being with the first node that has it; `absent` says what it holds for those that have not.
    """

    def __init__(self, absent: Callable[[Key], Sequence[int]]) -> None:
        self._absent = absent
        self._data: NDArray[np.int64] = np.zeros((0, _FIRST_COLUMNS), dtype=np.int64)
        self._defaults: dict[Key, Sequence[int]] = {}
        self._slices: dict[Key, slice] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._slices

    def names(self, family: str) -> list[str]:
        """The resources that have a section in a family."""
        return [name for first, name in self._slices if first == family]

    def section(self, key: Key) -> NDArray[np.int64]:
        """(places, columns), free columns too. Raises KeyError."""
        return self._data[self._slices[key]]

    def write(self, column: int, values: Column) -> None:
        """Fill a column."""
        for key in values:
            if key not in self._slices:
                self._add(key)
        if column >= self._data.shape[1]:
            self._widen(column)
        numbers: list[int] = []
        for key, default in self._defaults.items():
            numbers += values.get(key, default)
        try:
            self._data[:, column] = numbers
        except OverflowError:
            # Damage; no request is as large.
            self._data[:, column] = [max(-_MOST, min(_MOST, number)) for number in numbers]

    def move(self, source: int, target: int) -> None:
        """Copy a column over another."""
        self._data[:, target] = self._data[:, source]

    def _add(self, key: Key) -> None:
        height, width = self._data.shape
        default = self._absent(key)
        self._defaults[key] = default
        self._slices[key] = slice(height, height + len(default))
        rows = np.repeat(np.array(default, dtype=np.int64)[:, None], width, axis=1)
        self._data = np.concatenate([self._data, rows])

    def _widen(self, column: int) -> None:
        height, width = self._data.shape
        wider = np.zeros((height, max(2 * width, column + 1)), dtype=np.int64)
        wider[:, :width] = self._data
        self._data = wider
