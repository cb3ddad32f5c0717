"""The engine's rows of what nodes may be beside what is predicted (caution.py).

The engine judges the worlds of a node as nodes of their own, whose names no node can have.
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


class WorldRows:
    """The worlds of all nodes. A node must be in the engine as long as it has any here."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By node: how many pods may lie elsewhere, and how many worlds that makes.
        self._unsure: dict[str, tuple[int, int]] = {}
        self._rows: dict[int, Rows] = {}
        self._all: tuple[Rows, Rows] | None = None

    def __contains__(self, node: str) -> bool:
        return node in self._unsure

    @property
    def pods(self) -> int:
        """Pods that may lie elsewhere than predicted."""
        return sum(pods for pods, _ in self._unsure.values())

    @property
    def unsettled(self) -> Container[int]:
        """The engine's rows of nodes on which there are such pods."""
        return self._rows.keys()

    def counts(self) -> list[tuple[str, int]]:
        """Nodes with such pods, and how many they are."""
        return [(node, pods) for node, (pods, _) in self._unsure.items()]

    def put(self, node: str, worlds: Sequence[Kubelet], pods: int) -> None:
        """What the node may be, because of so many pods; none if it is as predicted."""
        row = self._engine.row(node)
        _, before = self._unsure.pop(node, (0, 0))
        self._rows.pop(row, None)
        self._all = None
        names = [f"{node}/{number}" for number in range(max(len(worlds), before))]
        for name, world in zip(names, worlds, strict=False):
            self._engine.put(name, world)
        for name in names[len(worlds) :]:
            self._engine.drop(name)
        if pods:
            self._unsure[node] = pods, len(worlds)
            self._rows[row] = np.array([self._engine.row(name) for name in names[: len(worlds)]], np.int32)

    def all(self) -> tuple[Rows, Rows]:
        """(worlds,) the rows of all worlds, and for each the row of its node."""
        if self._all is None:
            rows = [_NO_ROWS, *self._rows.values()]
            owners = np.repeat(np.fromiter(self._rows, np.int32, len(self._rows)), [len(one) for one in rows[1:]])
            self._all = np.concatenate(rows), owners
        return self._all
