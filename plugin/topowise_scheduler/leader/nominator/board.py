"""All nodes for one kind of pod: which of them take it, and which of those is the best, kept from pod to pod.

Between two pods of a burst a handful of nodes change. So a board looks only at those, and the next choice costs as much
on 5,000 nodes as on 50.

Invariant: after `refresh`, `best` is the node that the same questions about all nodes would give. Nodes that nobody has
reported are not on it: of those kube-scheduler decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise_scheduler import kube_scheduler
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.asks import Asks
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.leader.nominator.requested import Requested

Levels = NDArray[np.int64]

_NONE: Final = np.iinfo(np.int64).max


class Cluster(msgspec.Struct, frozen=True):
    """What a choice is made of."""

    ledger: Ledger
    answers: Answers
    nodes: Nodes
    requested: Requested
    respects_preferences: bool

    def takes(self, record: PodRecord, asks: Asks, name: str) -> bool:
        """Whether kube-scheduler itself would let such a pod onto a node."""
        node = self.nodes.get(name)
        if node is None or record.needs is None or asks.keeps_off(node, with_preferences=self.respects_preferences):
            return False
        return kube_scheduler.has_room(node, record.needs, self.requested.on(name, record.priority))


class Board:
    """Of pods that ask for the same as this one, and have its priority. Not thread-safe."""

    def __init__(self, cluster: Cluster, record: PodRecord, asks: Asks) -> None:
        # Nobody's: the pods of a board share all but their names.
        self._record = msgspec.structs.replace(record, uid="", name="")
        self._asks = asks
        self._cluster = cluster
        self._levels: Levels = np.zeros(0, np.int64)
        self._of = -1
        self._seen = (0, 0)

    def refresh(self) -> None:
        """Look at what has changed since."""
        ledger, nodes = self._cluster.ledger, self._cluster.nodes
        names: Collection[str]
        if self._of != ledger.engine.membership:
            self._of = ledger.engine.membership
            self._cluster.requested.forget()
            names = ledger.reported()
            self._levels = np.full(int(ledger.engine.rows(names).max(initial=-1)) + 1, _NONE)
        else:
            names = {*ledger.changed_since(self._seen[0]), *nodes.changed_since(self._seen[1])}
        self._seen = ledger.changes, nodes.changes
        if names:
            self._look_at(list(names))

    def best(self) -> str:
        """The best node, "" if none takes such a pod."""
        if not self._levels.size:
            return ""
        row = int(self._levels.argmin())
        return "" if self._levels[row] == _NONE else self._cluster.ledger.engine.names(np.array([row], np.int32))[0]

    def _look_at(self, names: Sequence[str]) -> None:
        rows = self._cluster.ledger.engine.rows(names)
        known = [(name, row) for name, row in zip(names, rows.tolist(), strict=True) if row >= 0]
        self._levels[[row for _, row in known]] = _NONE
        taken = [name for name, _ in known if self._cluster.takes(self._record, self._asks, name)]
        if taken:
            found, levels = self._cluster.answers.levels(self._record, taken)
            self._levels[found] = levels
