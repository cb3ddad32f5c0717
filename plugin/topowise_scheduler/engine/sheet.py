"""The columns of a grid that one judgement is about."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.grid import Grid, Key
from topowise_scheduler.engine.kinds import Kinds, Sizes

Columns = slice | NDArray[np.intp]


@dataclass(slots=True)
class Sheet:
    """`columns` of a grid; `kind` (nodes,) is the kind of each. Sections must not be written to."""

    grid: Grid
    columns: Columns
    kinds: Kinds
    kind: NDArray[np.int32]
    _sections: dict[Key, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def zones(self) -> int:
        return self.kinds.zones

    def __len__(self) -> int:
        return len(self.kind)

    def __contains__(self, key: Key) -> bool:
        """Whether any node of the grid has the section."""
        return key in self.grid

    def section(self, key: Key) -> NDArray[np.int64]:
        """(places, nodes)."""
        found = self._sections.get(key)
        if found is None:
            found = self._sections[key] = self.grid.section(key)[:, self.columns]
        return found

    def each(self, of_kinds: Sizes) -> Sizes:
        """(nodes,) from what was computed once a kind."""
        return of_kinds[self.kind]

    def fixed(self, key: Key) -> NDArray[np.int64]:
        """(places, nodes) of what never changes."""
        return self.kinds.fixed.section(key)[:, self.kind]
