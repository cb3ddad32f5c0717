"""Nodes as rows of arrays: their topology domains, and which of them a pod selects or tolerates.

A node keeps its row until neither a Node object nor a pod refers to it. Arrays are made when a pod first needs them,
and follow each change of a node at the cost of that node. Each is as long as `capacity`, at least the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Node

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
# Each change of a node looks at every array.
_MOST_ARRAYS: Final = 128
_MAX_BYTES: Final = 8 << 20
_SPARE: Final = 64
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class NodeSource(Protocol):
    """The Node objects, as ledger/nodes.py has them."""

    @property
    def changes(self) -> int:
        """Number of changes so far."""

    def get(self, name: str) -> Node | None:
        """Returns a node, None if there is no such object."""

    def changed_since(self, changes: int) -> Iterator[str]:
        """Yields the names of nodes that were added, changed or deleted since."""


class Domains:
    """The domain of each row for a topology key: an index below `size`, -1 for a node without the label."""

    def __init__(self, key: str, capacity: int) -> None:
        self.key = key
        self.of_row = np.full(capacity, -1, np.intp)
        self._index: dict[str, int] = {}

    @property
    def size(self) -> int:
        """Number of values so far, also of those that no node has any more."""
        return len(self._index)

    def set(self, row: int, node: Node | None) -> None:
        """Reads the label of a node."""
        value = None if node is None else node.label(self.key)
        self.of_row[row] = -1 if value is None else self._index.setdefault(value, len(self._index))


class _NodeMask:
    """Whether a node of each row exists and passes a test."""

    def __init__(self, passes: Callable[[Node], bool], capacity: int) -> None:
        self._passes = passes
        self.of_row = np.zeros(capacity, np.bool_)

    def set(self, row: int, node: Node | None) -> None:
        self.of_row[row] = node is not None and self._passes(node)


class NodeRows:
    """Rows by the names of nodes. Not thread-safe. `refresh` before arrays are read."""

    def __init__(self, nodes: NodeSource) -> None:
        self._source = nodes
        self._seen = 0
        self._row: dict[str, int] = {}
        self._nodes: list[Node | None] = []
        # How many pods are on the node of each row.
        self._pods: list[int] = []
        self._names: list[str] = []
        self._free: list[int] = []
        self.capacity = _SPARE
        self._domains: Bounded[str, Domains] = Bounded(_MAX_BYTES, lambda *_: 8 * self.capacity, _MOST_ARRAYS)
        self._masks: Bounded[bytes, _NodeMask] = Bounded(_MAX_BYTES, lambda *_: self.capacity, _MOST_ARRAYS)
        self._resolved: tuple[tuple[str, ...], int, Rows] = ((), -1, np.zeros(0, np.intp))
        self._changes = 0

    def refresh(self) -> None:
        """Reads the nodes that have changed."""
        if self._seen == self._source.changes:
            return
        for name in list(self._source.changed_since(self._seen)):
            self._set(name, self._source.get(name))
        self._seen = self._source.changes

    def resolve(self, names: Sequence[str]) -> Rows:
        """Returns the rows of nodes, -1 for an unknown node. The last tuple is remembered, by identity."""
        last, changes, rows = self._resolved
        if last is names and changes == self._changes:
            return rows
        rows = np.fromiter((self._row.get(name, -1) for name in names), np.intp, len(names))
        if isinstance(names, tuple):
            self._resolved = names, self._changes, rows
        return rows

    def enter(self, name: str) -> int:
        """Returns the row of a node that a pod comes to."""
        row = self._row_of(name)
        self._pods[row] += 1
        return row

    def leave(self, name: str) -> int:
        """Returns the row of a node that a pod leaves. The row may go to another node."""
        row = self._row[name]
        self._pods[row] -= 1
        self._release(row)
        return row

    def row(self, name: str) -> int | None:
        """Returns the row of a node, None for an unknown node."""
        return self._row.get(name)

    def domains(self, key: str) -> Domains:
        """Returns the domains of a topology key."""
        domains = self._domains.get(key)
        # Values that no node has any more, as host names of replaced nodes.
        if domains is None or domains.size > 2 * self.capacity:
            domains = Domains(key, self.capacity)
            for row, node in enumerate(self._nodes):
                domains.set(row, node)
            self._domains.put(key, domains)
        return domains

    def existing(self) -> Mask:
        """Returns which rows have a Node object."""
        return self._mask(b"", lambda _: True)

    def selected(self, spec: kube_scheduler.Spec) -> Mask:
        """Returns which nodes match the nodeSelector and the required node affinity."""
        if not spec.nodeSelector and spec.affinity is None:
            return self.existing()
        key = _encode(["selected", spec.nodeSelector, spec.affinity])
        return self._mask(key, lambda node: kube_scheduler.is_selected(node, spec))

    def tolerated(self, spec: kube_scheduler.Spec) -> Mask:
        """Returns which nodes have no hard taint that the pod does not tolerate."""
        tolerations = spec.tolerations or ()
        return self._mask(
            _encode(["tolerated", tolerations]), lambda node: not kube_scheduler.is_tainted(node, tolerations)
        )

    def label(self, row: int, key: str) -> str | None:
        """Returns the value of a label, None without it."""
        node = self._nodes[row]
        return None if node is None else node.label(key)

    def _mask(self, key: bytes, passes: Callable[[Node], bool]) -> Mask:
        mask = self._masks.get(key)
        if mask is None:
            mask = _NodeMask(passes, self.capacity)
            for row, node in enumerate(self._nodes):
                mask.set(row, node)
            self._masks.put(key, mask)
        return mask.of_row

    def _set(self, name: str, node: Node | None) -> None:
        row = self._row.get(name, -1) if node is None else self._row_of(name)
        if row < 0:
            return
        self._nodes[row] = node
        for domains in self._domains.values():
            domains.set(row, node)
        for mask in self._masks.values():
            mask.set(row, node)
        self._release(row)

    def _row_of(self, name: str) -> int:
        row = self._row.get(name)
        if row is None:
            self._changes += 1
            if self._free:
                row = self._free.pop()
                self._names[row] = name
            else:
                row = len(self._names)
                self._names.append(name)
                self._nodes.append(None)
                self._pods.append(0)
                self._grow()
            self._row[name] = row
        return row

    def _release(self, row: int) -> None:
        """Frees the row of a node that neither an object nor a pod refers to."""
        if self._nodes[row] is None and not self._pods[row] and self._row.pop(self._names[row], None) is not None:
            self._changes += 1
            self._names[row] = ""
            self._free.append(row)

    def _grow(self) -> None:
        if len(self._names) <= self.capacity:
            return
        # Made again when they are needed.
        self.capacity *= 2
        self._domains.clear()
        self._masks.clear()
