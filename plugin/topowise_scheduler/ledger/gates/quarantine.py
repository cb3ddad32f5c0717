"""Nodes whose kubelet has refused a pod that this service predicted to fit: pods of equal requests stay off the node
until its next report, or until its Node shows other allocatable amounts, another boot, kubelet or readiness.

Invariant: every pair of shape and node expires, and neither a shape nor a node without pairs is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Final

from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.refusals import Refusal

# An exporter writes nothing if a refusal has changed nothing, so a quarantine ends by itself too.
QUARANTINE_S: Final = 300.0
# Bound of pairs, of some 200 bytes each; above it the oldest node is released. A large cluster stays below the bound
# unless every kubelet refuses a dozen kinds of pods within five minutes.
_MOST: Final = 1 << 16


class Quarantine:
    """Pairs of shape and node, each with its end (seconds, monotonic)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._until: dict[bytes, dict[str, float]] = {}
        # In the order of the first pair of each node.
        self._shapes: dict[str, set[bytes]] = {}
        self._pairs = 0

    def __len__(self) -> int:
        return self._pairs

    @property
    def all_nodes(self) -> Set[str]:
        """Returns the nodes with a pair."""
        return self._shapes.keys()

    def nodes(self, shape: bytes) -> Mapping[str, float]:
        """Returns the nodes that do not get pods of this shape, each with the end of the pair."""
        return self._until.get(shape, {})

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if self._until and (nodes := self.nodes(question.record.shape)):
            draft.refuse_rows(question, self._engine.rows(list(nodes)), Refusal.QUARANTINED)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        return Refusal.QUARANTINED if self._until and name in self.nodes(record.shape) else None

    def put(self, shape: bytes, node: str, now: float) -> None:
        """Starts or extends the quarantine of a node for pods of this shape."""
        nodes = self._until.setdefault(shape, {})
        self._pairs += node not in nodes
        nodes[node] = now + QUARANTINE_S
        self._shapes.setdefault(node, set()).add(shape)
        while self._pairs > _MOST:
            self.release(next(iter(self._shapes)))

    def release(self, node: str, before: float = float("inf")) -> None:
        """Ends the pairs of a node that would end before a time."""
        for shape in [shape for shape in self._shapes.get(node, ()) if self._until[shape][node] < before]:
            nodes = self._until[shape]
            del nodes[node]
            if not nodes:
                del self._until[shape]
            self._pairs -= 1
            self._shapes[node].discard(shape)
            if not self._shapes[node]:
                del self._shapes[node]

    def expire(self, now: float) -> set[str]:
        """Ends the pairs that are over. Returns their nodes."""
        late = {node for nodes in self._until.values() for node, until in nodes.items() if until < now}
        for node in late:
            self.release(node, before=now)
        return late
