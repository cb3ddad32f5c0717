"""The nodes with the same traits: their counts, a column each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.counts import Column, Standing, absent
from topowise_scheduler.engine.decisions import CAUSE
from topowise_scheduler.engine.grid import Grid
from topowise_scheduler.engine.kinds import Kinds
from topowise_scheduler.engine.sheet import Columns, Sheet
from topowise_scheduler.engine.traits import Traits


class Table:
    """Columns are dense: the last one moves where one is removed.

    `rows` (columns,) says which row of the engine a column is, `kind` of which kind the node is, and `odd` why it
    cannot be judged by counts, a place in decisions.CAUSES.
    """

    def __init__(self, traits: Traits) -> None:
        self.traits = traits
        self.kinds = Kinds(traits.zones)
        self.grid = Grid(lambda key: absent(key, traits.zones))
        self.count = 0
        self.rows: NDArray[np.int32] = np.zeros(16, dtype=np.int32)
        self.kind: NDArray[np.int32] = np.zeros(16, dtype=np.int32)
        self.odd: NDArray[np.int8] = np.zeros(16, dtype=np.int8)

    def append(self, row: int, standing: Standing, now: Column) -> int:
        """A new node; its column."""
        column = self.count
        self.count += 1
        if column >= len(self.rows):
            self.rows, self.kind, self.odd = (
                np.concatenate([one, np.zeros_like(one)]) for one in (self.rows, self.kind, self.odd)
            )
        self.rows[column] = row
        self._enter(column, standing)
        self.grid.write(column, now)
        return column

    def replace(self, column: int, standing: Standing | None, now: Column) -> None:
        """The node has other counts; None: what stays has stayed."""
        if standing is not None:
            before = int(self.kind[column])
            self._enter(column, standing)
            self.kinds.leave(before)
        self.grid.write(column, now)

    def remove(self, column: int) -> int:
        """The node is gone; the row whose column is this one now, -1 if none has moved."""
        self.kinds.leave(int(self.kind[column]))
        self.count -= 1
        last = self.count
        if column == last:
            return -1
        self.grid.move(last, column)
        for one in (self.rows, self.kind, self.odd):
            one[column] = one[last]
        return int(self.rows[column])

    def sheet(self, columns: Columns) -> Sheet:
        """Some columns as they are now."""
        return Sheet(self.grid, columns, self.kinds, self.kind[columns])

    def empty_sheet(self, kinds: NDArray[np.int32]) -> Sheet:
        """Nodes of these kinds with nothing held."""
        return Sheet(self.kinds.empty, kinds.astype(np.intp), self.kinds, kinds)

    def _enter(self, column: int, standing: Standing) -> None:
        self.kind[column] = self.kinds.enter(standing)
        self.odd[column] = CAUSE[standing.odd]
