"""The engine's rows of nodes as they are for pods that need not heed all of those nominated there.

kube-scheduler nominates a pod while it evicts others for it; a pod of a higher priority may have that room. So for such
pods the node is another: without the lesser pods, and that in all its possible placements. These are judged like nodes
of their own, whose names no node can have.

Invariant: what is given out is of the nodes as they are in the engine now. Only a node that has changed, or that others
are nominated on, costs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Engine
from topowise_scheduler.kubelet import Kubelet

Rows = NDArray[np.int32]
States = Callable[[str, frozenset[str]], Iterator[Kubelet]]
"""Copies of a node's state without some pods (NodeStates.states)."""

# So many sets of others are kept for a node: there are as many as its nominated pods have priorities.
_MAX_SETS: Final = 8


class _Without(NamedTuple):
    """A node without some pods: the version of its own row that this was made of, and the rows made."""

    version: int
    rows: tuple[int, ...]


class ApartNodes(NamedTuple):
    """`owners` (nodes,) are rows of the nodes, and what they are without others is `rows` (states,), one after another;
    `at` (states,) are indices of `owners`."""

    owners: Rows
    rows: Rows
    at: NDArray[np.intp]


_NO_NODES: Final = ApartNodes(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.intp))


class Lesser:
    """By node the pods that do not count for those of one priority, and what was given out for that."""

    def __init__(self) -> None:
        self.others: dict[str, frozenset[str]] = {}
        self.changed: set[str] = set()
        """Nodes that are another since then, or of which `others` says something else."""
        self.parts: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.nodes = _NO_NODES
        self.versions: NDArray[np.int64] = np.zeros(0, np.int64)
        self.made_at = (-1, -1)

    def put(self, node: str, others: frozenset[str]) -> None:
        """These do not count on a node."""
        if self.others.get(node, frozenset()) != others:
            self.changed.add(node)
            if others:
                self.others[node] = others
            else:
                del self.others[node]


class ApartRows:
    """A node must be in the engine as long as it has any rows here."""

    def __init__(self, engine: Engine, states: States) -> None:
        self._engine = engine
        self._states = states
        self._made: dict[str, dict[frozenset[str], _Without]] = {}
        self._number = self._evictions = 0

    def nodes(self, lesser: Lesser) -> ApartNodes:
        """All of them."""
        if lesser.made_at != (self._engine.membership, self._evictions):
            lesser.made_at = self._engine.membership, self._evictions
            lesser.changed |= lesser.others.keys() | lesser.parts.keys()
        owners = lesser.nodes.owners
        stale = np.flatnonzero(self._engine.versions(owners) != lesser.versions)
        lesser.changed.update(self._engine.names(owners[stale]))
        if lesser.changed:
            self._renew(lesser)
        return lesser.nodes

    def _renew(self, lesser: Lesser) -> None:
        parts = lesser.parts
        for node in lesser.changed:
            parts.pop(node, None)
            row = self._engine.row(node)
            if node in lesser.others and row >= 0:
                parts[node] = row, self._rows(node, row, lesser.others[node])
        lesser.changed.clear()
        owners = np.array([row for row, _ in parts.values()], np.int32)
        rows = np.array([row for _, rows in parts.values() for row in rows], np.int32)
        at = np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts.values()])
        lesser.nodes = ApartNodes(owners, rows, at)
        lesser.versions = self._engine.versions(owners)

    def prepare(self, node: str, others: frozenset[str]) -> None:
        """A question about the node without these will most likely come."""
        self._rows(node, self._engine.row(node), others)

    def drop(self, node: str) -> None:
        """The node is gone, or nobody is nominated there any more."""
        for made in self._made.pop(node, {}).values():
            self._forget(made)

    def _rows(self, node: str, row: int, others: frozenset[str]) -> tuple[int, ...]:
        version = self._engine.version(row)
        mine = self._made.setdefault(node, {})
        made = mine.pop(others, None)
        if made is None or made.version != version:
            made = _Without(version, self._put(made, self._states(node, others)))
        mine[others] = made
        if len(mine) > _MAX_SETS:
            # Whoever knows its rows must look again.
            self._evictions += 1
            self._forget(mine.pop(next(iter(mine))))
        return made.rows

    def _put(self, before: _Without | None, states: Iterator[Kubelet]) -> tuple[int, ...]:
        """Write states over the rows of others, as far as there are any."""
        spare = [] if before is None else self._engine.names(np.array(before.rows, np.int32))
        rows = []
        for state in states:
            name = spare.pop() if spare else self._new_name()
            self._engine.put(name, state)
            rows.append(self._engine.row(name))
        for name in spare:
            self._engine.drop(name)
        return tuple(rows)

    def _new_name(self) -> str:
        self._number += 1
        return f"apart/{self._number}"

    def _forget(self, made: _Without) -> None:
        for name in self._engine.names(np.array(made.rows, np.int32)):
            self._engine.drop(name)
