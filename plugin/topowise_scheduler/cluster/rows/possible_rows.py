"""The engine's rows of what nodes may be beside what is predicted (possible_placements.py).

The engine judges the possible placements of a node as nodes of their own, whose names no node can have.

A burst that is nominated changes many nodes about which nobody asks soon, so their rows are made when they are asked
for. A few wait for that at most: a question of all nodes has to make them all. What was made for a state is kept by its
number, as others will come into it too.

Invariant: what is given out has a row for each possible placement of each node that it is about, and no other; a
change of one node costs what that node has, not what all have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.cluster.node.possible_placements import Possible
from topowise_scheduler.engine import Engine
from topowise_scheduler.kubelet import Kubelet

Rows = NDArray[np.int32]
Number = Callable[[str], int]
"""The one of a node's state (SameStates)."""

_NO_ROWS: Final[Rows] = np.zeros(0, np.int32)
_MOST_LATER: Final = 16
_MOST_BYTES: Final = 8 << 20
# Of a copy of a node, and of a pod in it.
_NODE_BYTES: Final = 4096
_POD_BYTES: Final = 256


class PossibleRows:
    """The possible placements of all nodes. A node must be in the engine as long as it has any here."""

    def __init__(self, engine: Engine, number: Number) -> None:
        self._engine = engine
        self._number = number
        # Of the nodes on which pods may lie elsewhere, and how many placements of each are in the engine.
        self._expected: dict[str, Possible] = {}
        self._counts: dict[str, int] = {}
        self._later: dict[str, None] = {}
        self._joined = JoinedRows()
        self._made: OrderedDict[int, list[Kubelet]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, node: str) -> bool:
        return node in self._expected

    @property
    def pods(self) -> int:
        """Pods that may lie elsewhere than predicted."""
        return sum(len(one.uncertain) + len(one.moved) for one in self._expected.values())

    def items(self) -> list[tuple[str, Possible]]:
        """Returns the nodes with such pods, and the states in which they may be."""
        return list(self._expected.items())

    def expected(self, node: str) -> Possible | None:
        """What a node is taken for; None without such pods."""
        return self._expected.get(node)

    def put(self, node: str, expected: Possible | None, *, later: bool = False) -> None:
        """What the node may be, None if it is as predicted; `later`: nobody is likely to ask soon."""
        if expected is None or expected.is_sure:
            self._expected.pop(node, None)
            self._write(node, [])
            return
        self._expected[node] = expected
        # One that is filled pod after pod has its turn when that is over.
        self._later.pop(node, None)
        self._later[node] = None
        while len(self._later) > (_MOST_LATER if later else 0):
            self._make(next(iter(self._later)))

    def of(self, rows: Sequence[int]) -> tuple[Rows, Rows]:
        """As `all`, of these nodes."""
        if self._later:
            for node in self._engine.names(np.array(rows, np.int32)):
                if node in self._later:
                    self._make(node)
        return self._joined.of(rows)

    def all(self) -> tuple[Rows, Rows]:
        """(possible,) the rows of all of them, and for each the row of its node."""
        for node in list(self._later):
            self._make(node)
        return self._joined.all()

    def _make(self, node: str) -> None:
        number = self._number(node)
        made = self._made.pop(number, None)
        if made is None:
            made = self._expected[node].states()
            self._bytes += _size(made)
        self._made[number] = made
        while self._bytes > _MOST_BYTES and len(self._made) > 1:
            self._bytes -= _size(self._made.popitem(last=False)[1])
        self._write(node, made)

    def _write(self, node: str, possible: Sequence[Kubelet]) -> None:
        """These are what it may be."""
        self._later.pop(node, None)
        row, before = self._engine.row(node), self._counts.pop(node, 0)
        names = [f"{node}/{number}" for number in range(max(len(possible), before))]
        for name, kubelet in zip(names, possible, strict=False):
            self._engine.put(name, kubelet)
        for name in names[len(possible) :]:
            self._engine.drop(name)
        if possible:
            self._counts[node] = len(possible)
        self._joined.put(row, [self._engine.row(name) for name in names[: len(possible)]])


class JoinedRows:
    """Rows of possible placements and of their nodes, in no order, so that each has its place until it goes."""

    def __init__(self) -> None:
        self._rows, self._owners = np.zeros(64, np.int32), np.zeros(64, np.int32)
        self._count = 0
        # By row of a node.
        self._places: dict[int, list[int]] = {}

    def put(self, owner: int, rows: Sequence[int]) -> None:
        """These are the node's, and no others."""
        places = self._places.setdefault(owner, [])
        while len(places) > len(rows):
            self._free(places.pop())
        while len(places) < len(rows):
            places.append(self._new(owner))
        if places:
            self._rows[places] = rows
        else:
            del self._places[owner]

    def of(self, owners: Sequence[int]) -> tuple[Rows, Rows]:
        """(possible,) the rows of these nodes, and for each the row of its node."""
        places = [place for owner in owners for place in self._places.get(owner, ())]
        return (self._rows[places], self._owners[places]) if places else (_NO_ROWS, _NO_ROWS)

    def all(self) -> tuple[Rows, Rows]:
        """The same of all, as they are until the next `put`."""
        return self._rows[: self._count], self._owners[: self._count]

    def _new(self, owner: int) -> int:
        place = self._count
        if place == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._owners = np.concatenate([self._owners, np.zeros_like(self._owners)])
        self._owners[place] = owner
        self._count += 1
        return place

    def _free(self, place: int) -> None:
        """The last takes the place that is free now."""
        self._count = last = self._count - 1
        if place != last:
            self._rows[place], self._owners[place] = self._rows[last], self._owners[last]
            places = self._places[int(self._owners[last])]
            places[places.index(last)] = place


def _size(made: Sequence[Kubelet]) -> int:
    """Bytes, about."""
    return sum([_NODE_BYTES + _POD_BYTES * len(one.active) for one in made])
