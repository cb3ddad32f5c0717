"""All nodes for one kind of pod: which of them take it, and which of those is the best, kept from pod to pod.

Between two pods of a burst a handful of nodes change. So a board looks only at those, and the next choice costs as much
on 5,000 nodes as on 50. Nodes of a kind come into the same states one after the other as they are filled: what was said
of a state is true of the next node that comes into it (same_states.py).

Invariant: after `refresh`, `best` is the node that the same questions about all nodes would give. Nodes that nobody has
reported are not on it: of those kube-scheduler decides.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise_scheduler import kube_scheduler
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.cluster.pods.scheduling_constraints import SchedulingConstraints
from topowise_scheduler.leader.nominator.requested import Requested

Levels = NDArray[np.int64]

_NONE: Final = int(np.iinfo(np.int64).max)
_MOST_STATES: Final = 8192


class Cluster(msgspec.Struct, frozen=True):
    """What a choice is made of."""

    ledger: Ledger
    answers: Answers
    nodes: Nodes
    requested: Requested
    respects_preferences: bool

    def takes(self, record: PodRecord, constraints: SchedulingConstraints, name: str) -> bool:
        """Whether kube-scheduler itself would let such a pod onto a node."""
        node = self.nodes.get(name)
        if (
            node is None
            or record.needs is None
            or constraints.excludes(node, with_preferences=self.respects_preferences)
        ):
            return False
        return kube_scheduler.has_room(node, record.needs, self.requested.on(name, record.priority))


class Board:
    """Of pods that ask for the same as this one, and have its priority. Not thread-safe."""

    def __init__(self, cluster: Cluster, record: PodRecord, constraints: SchedulingConstraints) -> None:
        # Nobody's: the pods of a board share all but their names.
        self._record = msgspec.structs.replace(record, uid="", name="")
        self._constraints = constraints
        self._cluster = cluster
        self._levels: Levels = np.zeros(0, np.int64)
        # Nodes that are to be looked at.
        self._due: dict[str, None] = {}
        self._of = -1
        self._seen = (0, 0)
        # By the number of a node's state.
        self._known: dict[int, int] = {}

    def refresh(self, most: int = sys.maxsize) -> bool:
        """Look at what has changed since, at `most` nodes. False if some are left for the next time."""
        ledger, nodes = self._cluster.ledger, self._cluster.nodes
        if self._of != ledger.engine.membership:
            self._of = ledger.engine.membership
            self._cluster.requested.forget()
            self._due = dict.fromkeys(ledger.node_states.reported())
            self._levels = np.full(int(ledger.engine.rows(list(self._due)).max(initial=-1)) + 1, _NONE)
        else:
            self._due.update(dict.fromkeys(ledger.node_states.changed_since(self._seen[0])))
            self._due.update(dict.fromkeys(nodes.changed_since(self._seen[1])))
        self._seen = ledger.node_states.changes, nodes.changes
        names = list(itertools.islice(self._due, most))
        for name in names:
            del self._due[name]
        if names:
            self._look_at(names)
        return not self._due

    def best(self) -> str:
        """The best node, "" if none takes such a pod."""
        if not self._levels.size:
            return ""
        row = int(self._levels.argmin())
        return "" if self._levels[row] == _NONE else self._cluster.ledger.engine.names(np.array([row], np.int32))[0]

    def _look_at(self, names: Sequence[str]) -> None:
        engine = self._cluster.ledger.engine
        new: list[tuple[str, int]] = []
        for name in names:
            row = engine.row(name)
            if row < 0:
                continue
            self._levels[row] = _NONE
            if self._cluster.takes(self._record, self._constraints, name):
                number = self._number(name)
                level = self._known.get(number)
                if level is None:
                    new.append((name, number))
                else:
                    self._levels[row] = level
        if new:
            self._judge(new)

    def _number(self, name: str) -> int:
        """The one of the node's state, 0 if that does not tell all."""
        gates = self._cluster.ledger.gates
        if name in gates.ignored.of_lower_priority(self._record.priority) or gates.standing(self._record, name):
            return 0
        return self._cluster.ledger.node_states.number(name)

    def _judge(self, new: Sequence[tuple[str, int]]) -> None:
        found, levels = self._cluster.answers.levels(self._record, [name for name, _ in new])
        self._levels[found] = levels
        if len(self._known) + len(new) > _MOST_STATES:
            self._known.clear()
        rows = self._cluster.ledger.engine.rows([name for name, _ in new])
        numbered = zip((number for _, number in new), self._levels[rows].tolist(), strict=True)
        self._known.update((number, level) for number, level in numbered if number)
