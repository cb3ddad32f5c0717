"""Nodes whose kubelet would take too long to decide a pod, because it tries every set of its NUMA nodes.

A kubelet decides pods one at a time, so a pod that takes minutes (kubelet/cost.py) stops its node. The time depends on
what is free. The estimate is that of the empty node, which is the longest, so that verdicts do not fluctuate.

Invariant: a reported node is in this gate exactly if it has more NUMA nodes than every kubelet decides quickly, and a
limit is configured.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import Kubelet, cost
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.refusals import Refusal

_MAX_BYTES: Final = 4 << 20

Rows = NDArray[np.int32]


class SlowAdmissions:
    """`limit_s` in seconds; 0: no admission is too long. Not thread-safe."""

    def __init__(self, engine: Engine, limit_s: float) -> None:
        self._engine = engine
        self._limit_s = limit_s
        self._nodes: dict[str, Kubelet] = {}
        # By shape of pod, estimated once for identical nodes; cleared when a slow node changes.
        self._rows: Bounded[bytes, Rows] = Bounded(_MAX_BYTES, lambda _, rows: rows.nbytes)

    def put(self, node: str, empty: Kubelet | None) -> None:
        """Sets the empty state of a node, one object for identical nodes; None if the node has no report any more."""
        slow = empty if self._limit_s and empty is not None and not cost.is_quick(empty) else None
        if self._nodes.get(node) is not slow:
            self._rows.clear()
            if slow is None:
                del self._nodes[node]
            else:
                self._nodes[node] = slow

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        # Most clusters have no such node, so no pod shape needs memory.
        if self._nodes and (rows := self._closed(question.record)).size:
            draft.refuse_rows(question, rows, Refusal.TOO_SLOW)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        if not self._nodes:
            return None
        rows = self._closed(record)
        return Refusal.TOO_SLOW if self._engine.row(name) in rows[rows >= 0] else None

    def _closed(self, record: PodRecord) -> Rows:
        """Returns the engine's rows of nodes that would take too long with the pod."""
        return self._rows.once(record.shape, lambda: self._estimated(record))

    def _estimated(self, record: PodRecord) -> Rows:
        seconds = {id(empty): cost.estimate(empty, record.view(empty)).seconds for empty in self._distinct()}
        return self._engine.rows([name for name, empty in self._nodes.items() if seconds[id(empty)] > self._limit_s])

    def _distinct(self) -> list[Kubelet]:
        return list({id(empty): empty for empty in self._nodes.values()}.values())
