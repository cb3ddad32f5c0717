"""The engine's rows of what nodes may be beside what is predicted (possible_placements.py).

The engine judges the possible placements of a node as nodes of their own, whose names no node can have.

Invariant: the engine has a row for each possible placement of each node in here, and for no other. The joint array is
kept until the next `put`: rows stay their node's as long as it is in the engine.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Engine
from topowise_scheduler.kubelet import Kubelet

Rows = NDArray[np.int32]

_NO_ROWS: Final[Rows] = np.zeros(0, np.int32)


class PossibleRows:
    """The possible placements of all nodes. A node must be in the engine as long as it has any here."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By node: how many pods may lie elsewhere, and how many possible placements that makes.
        self._uncertain: dict[str, tuple[int, int]] = {}
        self._rows: dict[int, Rows] = {}
        self._all: tuple[Rows, Rows] | None = None

    def __contains__(self, node: str) -> bool:
        return node in self._uncertain

    @property
    def pods(self) -> int:
        """Pods that may lie elsewhere than predicted."""
        return sum(pods for pods, _ in self._uncertain.values())

    @property
    def uncertain(self) -> Container[int]:
        """The engine's rows of nodes on which there are such pods."""
        return self._rows.keys()

    def counts(self) -> list[tuple[str, int]]:
        """Nodes with such pods, and how many they are."""
        return [(node, pods) for node, (pods, _) in self._uncertain.items()]

    def put(self, node: str, possible: Sequence[Kubelet], pods: int) -> None:
        """What the node may be, because of so many pods; none if it is as predicted."""
        row = self._engine.row(node)
        _, before = self._uncertain.pop(node, (0, 0))
        self._rows.pop(row, None)
        self._all = None
        names = [f"{node}/{number}" for number in range(max(len(possible), before))]
        for name, kubelet in zip(names, possible, strict=False):
            self._engine.put(name, kubelet)
        for name in names[len(possible) :]:
            self._engine.drop(name)
        if pods:
            self._uncertain[node] = pods, len(possible)
            self._rows[row] = np.array([self._engine.row(name) for name in names[: len(possible)]], np.int32)

    def of(self, row: int) -> tuple[Rows, Rows]:
        """As `all`, of one node."""
        found = self._rows.get(row, _NO_ROWS)
        return found, np.full(len(found), row, np.int32)

    def all(self) -> tuple[Rows, Rows]:
        """(possible,) the rows of all of them, and for each the row of its node."""
        if self._all is None:
            rows = [_NO_ROWS, *self._rows.values()]
            owners = np.repeat(np.fromiter(self._rows, np.int32, len(self._rows)), [len(one) for one in rows[1:]])
            self._all = np.concatenate(rows), owners
        return self._all
