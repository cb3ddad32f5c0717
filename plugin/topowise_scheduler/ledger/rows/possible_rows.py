"""The engine's rows of the states in which nodes may be beside the predicted states (possible_placements.py).

The engine judges the possible states of a node as nodes of their own, under names that no node can have.

States are kept by the number of the node's state (node_states.py), as other nodes come into the same state.

Invariant: an answer has a row for each possible state of each node of the question, and no other row. A change of a
node costs the rows of this node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.node.possible_placements import Possible
from topowise_scheduler.verdicts.engine import Engine

Rows = NDArray[np.int32]
Number = Callable[[str], int]
"""The number of a node's state (SameStates)."""

_NO_ROWS: Final[Rows] = np.zeros(0, np.int32)
_MOST_BYTES: Final = 8 << 20
# About the bytes of a copy of a node, and of a pod on it.
_NODE_BYTES: Final = 4096
_POD_BYTES: Final = 256


class PossibleRows:
    """The possible states of all nodes. A node must be in the engine as long as it has rows here."""

    def __init__(self, engine: Engine, number: Number) -> None:
        self._engine = engine
        self._number = number
        self._expected: dict[str, Possible] = {}
        self._counts: dict[str, int] = {}
        self._joined = JoinedRows()
        self._by_number: Bounded[int, list[Kubelet]] = Bounded(_MOST_BYTES, lambda _, states: bytes_of(states))

    def __contains__(self, node: str) -> bool:
        return node in self._expected

    @property
    def pods(self) -> int:
        """Returns the number of pods that may lie elsewhere than predicted."""
        return sum(len(possible.uncertain) + len(possible.moved) for possible in self._expected.values())

    def items(self) -> list[tuple[str, Possible]]:
        """Returns the nodes with such pods, and the states in which they may be."""
        return list(self._expected.items())

    def expected(self, node: str) -> Possible | None:
        """Returns the possible states of a node, None if the node is as predicted."""
        return self._expected.get(node)

    def put(self, node: str, expected: Possible | None) -> None:
        """Sets the possible states of a node, None if it is as predicted."""
        if expected is None or expected.is_sure:
            # The rows of a node that is as predicted would be judged for nothing.
            self._expected.pop(node, None)
            self._write(node, [])
            return
        self._expected[node] = expected
        self._write(node, self._by_number.once(self._number(node), expected.states))

    def of(self, rows: Sequence[int]) -> tuple[Rows, Rows]:
        """Returns the same as `all` for these nodes."""
        return self._joined.of(rows)

    def all(self) -> tuple[Rows, Rows]:
        """Returns the rows of all possible states, (states,), and for each the row of its node."""
        return self._joined.all()

    def _write(self, node: str, possible: Sequence[Kubelet]) -> None:
        """Writes the possible states of a node into the engine."""
        row, before = self._engine.row(node), self._counts.pop(node, 0)
        names = [f"{node}/{number}" for number in range(max(len(possible), before))]
        for name, kubelet in zip(names, possible, strict=False):
            self._engine.put(name, kubelet)
        for name in names[len(possible) :]:
            self._engine.drop(name)
        if possible:
            self._counts[node] = len(possible)
        # A new name gets its row only by the put.
        self._joined.put(row, [self._engine.row(name) for name in names[: len(possible)]])


class JoinedRows:
    """Rows of possible states and of their nodes, in no order, so that a row keeps its place until it goes."""

    def __init__(self) -> None:
        self._rows, self._owners = np.zeros(64, np.int32), np.zeros(64, np.int32)
        self._count = 0
        self._places: dict[int, list[int]] = {}

    def put(self, owner: int, rows: Sequence[int]) -> None:
        """Sets the rows of a node."""
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
        """Returns the rows of these nodes, (states,), and for each the row of its node."""
        places = [place for owner in owners for place in self._places.get(owner, ())]
        return (self._rows[places], self._owners[places]) if places else (_NO_ROWS, _NO_ROWS)

    def all(self) -> tuple[Rows, Rows]:
        """Returns the same for all nodes, valid until the next `put`."""
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
        """Frees a place, which the last row takes."""
        self._count = last = self._count - 1
        if place != last:
            self._rows[place], self._owners[place] = self._rows[last], self._owners[last]
            places = self._places[int(self._owners[last])]
            places[places.index(last)] = place


def bytes_of(states: Sequence[Kubelet]) -> int:
    """Returns about how many bytes the states have."""
    return sum([_NODE_BYTES + _POD_BYTES * len(state.active) for state in states])
