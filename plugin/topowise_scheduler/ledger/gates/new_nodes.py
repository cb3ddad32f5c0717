"""New nodes that an exporter will soon report for the first time.

A new node is Ready seconds before its first report. Until then nothing is known of its NUMA nodes, so its kubelet may
refuse a pod to align, for good. Such pods wait for the report, for a limited time since the creation of the Node: a
node on which no exporter can run takes them after that time.

Invariant: a node is in this gate at most for `first_report_s` after the service has first seen it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import numpy as np

from topowise_scheduler.ledger.gates.gate import Draft, Question, may_get_exclusive
from topowise_scheduler.ledger.pods.exporter_pods import ExporterPods, ExporterSettings, selects
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.kube_scheduler import Node
from topowise_scheduler.verdicts.refusals import Refusal


class NewNodes:
    """Nodes by name with the end of the wait (seconds, monotonic). Not thread-safe."""

    def __init__(self, engine: Engine, exporters: ExporterPods, settings: ExporterSettings) -> None:
        self._engine = engine
        self._exporters = exporters
        self._settings = settings
        self.until: dict[str, float] = {}
        """To be read."""
        # Nodes in `until` that the nodeSelector of the exporter selects.
        self._selected: set[str] = set()

    def __len__(self) -> int:
        return sum([self._waits(name) for name in self.until])

    def put(self, node: Node, *, is_first: bool, wall: float, now: float) -> None:
        """Takes a Node event. The age of the Node counts when the service sees the Node first, so that a clock that
        differs from the API server's clock does not extend the wait. `wall`: seconds since 1970; `now`: monotonic."""
        if is_first:
            rest = self._settings.first_report_s - max(0.0, wall - _created(node))
            if rest > 0:
                self.until[node.name] = now + rest
        if node.name in self.until and selects(self._settings.node_selector, node):
            self._selected.add(node.name)
        else:
            # A label that the nodeSelector requires may come later, or go.
            self._selected.discard(node.name)

    def drop(self, name: str) -> None:
        """Drops a deleted node."""
        self.until.pop(name, None)
        self._selected.discard(name)

    def expire(self, now: float) -> list[str]:
        """Ends the waits that are over. Returns their nodes."""
        late = [name for name, until in self.until.items() if until <= now]
        for name in late:
            self.drop(name)
        return late

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if not self.until or not may_get_exclusive(question.record):
            return
        is_new = np.zeros(len(question.names), np.bool_)
        for at in np.flatnonzero(question.rows < 0).tolist():
            is_new[at] = self._waits(question.names[at])
        if is_new.any():
            draft.refuse(is_new, Refusal.NEW_NODE)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        return Refusal.NEW_NODE if name in self.until and may_get_exclusive(record) and self._waits(name) else None

    def _waits(self, name: str) -> bool:
        if name not in self.until or self._engine.row(name) >= 0:
            return False
        # The DaemonSet controller takes minutes to create the pods of many new nodes, so a pod elsewhere is enough.
        return self._exporters.is_covered(name) or (self._exporters.is_known and name in self._selected)


def _created(node: Node) -> float:
    """Returns the creation time in seconds since 1970, 0 if unknown."""
    try:
        return datetime.fromisoformat(node.created).timestamp()
    except ValueError:
        return 0.0
