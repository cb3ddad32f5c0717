"""Nodes whose kubelet has refused a pod, kept from pods that ask for the same until they report anew.

Invariant: every pair ends by itself, and a shape without nodes is not kept.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

# An exporter writes nothing if a refusal has changed nothing, so a quarantine ends by itself too.
QUARANTINE_S: Final = 300.0


class Quarantine:
    """Pairs of shape and node, each with its end. Times are seconds, monotonic."""

    def __init__(self) -> None:
        self._until: dict[bytes, dict[str, float]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._until.values()))

    def nodes(self, shape: bytes) -> Collection[str]:
        """The nodes that are kept from pods of this shape."""
        return self._until.get(shape, ())

    def put(self, shape: bytes, node: str, now: float) -> None:
        """The kubelet of a node has refused a pod of this shape."""
        self._until.setdefault(shape, {})[node] = now + QUARANTINE_S

    def release(self, node: str, before: float = float("inf")) -> None:
        """End what would end before a time on a node."""
        for shape, nodes in list(self._until.items()):
            if nodes.get(node, before) < before:
                del nodes[node]
            if not nodes:
                del self._until[shape]

    def expire(self, now: float) -> set[str]:
        """End what is over by now; the nodes of it."""
        late = {node for nodes in self._until.values() for node, until in nodes.items() if until < now}
        for node in late:
            self.release(node, before=now)
        return late
