"""The engine's rows of nodes for pods that need not heed all pods nominated there.

kube-scheduler nominates a pod while it evicts victims for the pod. A pod of a higher priority may take that room, so
for such a pod the node is in another state: without the nominated pods of lower priority, in all possible states. The
engine judges these states as nodes of their own, under names that no node can have.

Invariant: the rows agree with the nodes as the engine has them now. Only a node that has changed, or whose nominations
have changed, costs work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.verdicts.engine import Engine

Rows = NDArray[np.int32]
States = Callable[[str, frozenset[str]], Iterator[Kubelet]]
"""Copies of a node's state without some pods (NodeStates.states)."""

# A node has as many sets of ignored pods as its nominated pods have priorities.
_MAX_SETS: Final = 8


class _Without(NamedTuple):
    """The rows of a node without some pods, and the version of the node's own row of that time."""

    version: int
    rows: tuple[int, ...]


class ReducedNodes(NamedTuple):
    """`owners` (nodes,) are the rows of the nodes. `rows` (states,) are the rows of their states without the ignored
    pods, and `at` (states,) are indices of `owners`."""

    owners: Rows
    rows: Rows
    at: NDArray[np.intp]


_NO_NODES: Final = ReducedNodes(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.intp))


class Lesser:
    """By node the pods that do not count for pods of one priority (`ignored`), and the answer to the last question."""

    def __init__(self) -> None:
        self.ignored: dict[str, frozenset[str]] = {}
        self.changed: set[str] = set()
        """Nodes whose state or ignored pods have changed since the last question."""
        self.parts: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.nodes = _NO_NODES
        self.versions: NDArray[np.int64] = np.zeros(0, np.int64)
        self.valid_for = (-1, -1)

    def put(self, node: str, uids: frozenset[str]) -> None:
        """Sets the pods that do not count on a node."""
        if self.ignored.get(node, frozenset()) != uids:
            self.changed.add(node)
            if uids:
                self.ignored[node] = uids
            else:
                del self.ignored[node]


class ReducedRows:
    """The rows by node and ignored pods. A node must be in the engine as long as it has rows here."""

    def __init__(self, engine: Engine, states: States) -> None:
        self._engine = engine
        self._states = states
        self._by_node: dict[str, dict[frozenset[str], _Without]] = {}
        self._number = self._evictions = 0

    def nodes(self, priority: Lesser) -> ReducedNodes:
        """Returns all nodes that have ignored pods."""
        # Rows are reused for other nodes after `drop`, and evicted states have lost their rows.
        if priority.valid_for != (self._engine.membership, self._evictions):
            priority.valid_for = self._engine.membership, self._evictions
            priority.changed |= priority.ignored.keys() | priority.parts.keys()
        owners = priority.nodes.owners
        stale = np.flatnonzero(self._engine.versions(owners) != priority.versions)
        priority.changed.update(self._engine.names(owners[stale]))
        if priority.changed:
            self._renew(priority)
        return priority.nodes

    def _renew(self, priority: Lesser) -> None:
        parts = priority.parts
        for node in priority.changed:
            parts.pop(node, None)
            row = self._engine.row(node)
            if node in priority.ignored and row >= 0:
                parts[node] = row, self._rows(node, row, priority.ignored[node])
        priority.changed.clear()
        owners = np.array([row for row, _ in parts.values()], np.int32)
        rows = np.array([row for _, rows in parts.values() for row in rows], np.int32)
        at = np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts.values()])
        priority.nodes = ReducedNodes(owners, rows, at)
        priority.versions = self._engine.versions(owners)

    def prepare(self, node: str, uids: frozenset[str]) -> None:
        """Makes the rows of a node without these pods, before a question that is likely to come."""
        self._rows(node, self._engine.row(node), uids)

    def drop(self, node: str) -> None:
        """Forgets a node that is gone, or on which no pod is nominated any more."""
        for states in self._by_node.pop(node, {}).values():
            self._forget(states)

    def _rows(self, node: str, row: int, uids: frozenset[str]) -> tuple[int, ...]:
        version = self._engine.version(row)
        by_uids = self._by_node.setdefault(node, {})
        states = by_uids.pop(uids, None)
        if states is None or states.version != version:
            states = _Without(version, self._put(states, self._states(node, uids)))
        by_uids[uids] = states
        if len(by_uids) > _MAX_SETS:
            # Answers that have these rows are not valid any more.
            self._evictions += 1
            self._forget(by_uids.pop(next(iter(by_uids))))
        return states.rows

    def _put(self, before: _Without | None, states: Iterator[Kubelet]) -> tuple[int, ...]:
        """Writes states, over the rows of the states before as far as there are any."""
        # Rows are rewritten in place, so that the number of rows stays small in a burst.
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

    def _forget(self, states: _Without) -> None:
        for name in self._engine.names(np.array(states.rows, np.int32)):
            self._engine.drop(name)
