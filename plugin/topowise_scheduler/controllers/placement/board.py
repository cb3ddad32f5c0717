"""The nodes that take pods of a class, and the best of them, maintained from pod to pod.

Between two pods of a burst a handful of nodes change. A board evaluates only these nodes, so the next choice costs the
same on 5,000 nodes as on 50. Similar nodes pass through the same states while they fill, so the level of a state is
reused for the next node in that state (ledger/rows/node_states.py).

Invariant: after `refresh`, the first of `best` is the node that an evaluation of all nodes would give. Nodes without a
report are not on a board.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.pods.scheduling_constraints import SchedulingConstraints
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import kube_scheduler

Levels = NDArray[np.int64]

_NONE: Final = int(np.iinfo(np.int64).max)
_MAX_STATES: Final = 8192
_MOST_NODES: Final = 1000
# Levels of Answers.levels are below 2 to the power of this, and what it adds below the level of a last resort.
_AVERSION: Final = 44
_MOST_AVERSION: Final = 1 << 15


def aversion(cluster: Trial, record: PodRecord, constraints: SchedulingConstraints, name: str) -> int | None:
    """Returns by how much the pod would rather not be on a node, None if kube-scheduler's own filters, as far as known
    here, keep it from the node."""
    node = cluster.nodes.get(name)
    if node is None or record.needs is None or constraints.excludes(node):
        return None
    if not kube_scheduler.has_room(node, record.needs, cluster.used(record, name)):
        return None
    return min(constraints.aversion(node), _MOST_AVERSION)


class Board:
    """The board of pods with the requests, constraints and priority of `record`. Not thread-safe."""

    def __init__(self, cluster: Trial, record: PodRecord, constraints: SchedulingConstraints) -> None:
        # Without identity: the pods of a board differ only in their names.
        self._record = msgspec.structs.replace(record, uid="", name="")
        self._constraints = constraints
        self._cluster = cluster
        self._levels: Levels = np.zeros(0, np.int64)
        # Names of nodes to evaluate.
        self._due: dict[str, None] = {}
        self._membership = -1
        self._seen_changes = (0, 0)
        # The level of each numbered node state.
        self._level_by_state: dict[int, int] = {}

    def refresh(self) -> Iterator[None]:
        """Evaluates the changed nodes, and yields after each thousand of them."""
        ledger, nodes = self._cluster.ledger, self._cluster.nodes
        if self._membership != ledger.engine.membership:
            self._membership = ledger.engine.membership
            self._cluster.requested.forget()
            self._due = dict.fromkeys(ledger.node_states.reported())
            self._levels = np.full(int(ledger.engine.rows(list(self._due)).max(initial=-1)) + 1, _NONE)
        else:
            self._due.update(dict.fromkeys(ledger.node_states.changed_since(self._seen_changes[0])))
            self._due.update(dict.fromkeys(nodes.changed_since(self._seen_changes[1])))
        self._seen_changes = ledger.node_states.changes, nodes.changes
        while names := list(islice(self._due, _MOST_NODES)):
            for name in names:
                del self._due[name]
            self._look_at(names)
            yield

    def best(self) -> Iterator[str]:
        """Yields the nodes that take such a pod, the best first."""
        levels = self._levels
        while levels.size and levels[row := int(levels.argmin())] != _NONE:
            yield self._cluster.ledger.engine.names(np.array([row], np.int32))[0]
            levels = levels.copy()
            levels[row] = _NONE

    def _look_at(self, names: Sequence[str]) -> None:
        engine = self._cluster.ledger.engine
        new: list[tuple[str, int]] = []
        averse: dict[str, int] = {}
        without_some = self._cluster.ledger.gates.ignored.of_lower_priority(self._record.priority)
        for name in names:
            row = engine.row(name)
            if row < 0:
                continue
            self._levels[row] = _NONE
            against = aversion(self._cluster, self._record, self._constraints, name)
            if against is None:
                continue
            averse[name] = against
            number = 0 if name in without_some else self._state_number(name)
            level = self._level_by_state.get(number)
            if level is None:
                new.append((name, number))
            else:
                self._levels[row] = level
        if new:
            self._evaluate(new)
        for name, against in averse.items():
            if against and self._levels[row := engine.row(name)] != _NONE:
                self._levels[row] += against << _AVERSION

    def _state_number(self, name: str) -> int:
        """Returns the number of the node's state, 0 if the state does not determine the verdict for this pod."""
        gates = self._cluster.ledger.gates
        if gates.standing(self._record, name):
            return 0
        return self._cluster.ledger.node_states.number(name)

    def _evaluate(self, new: Sequence[tuple[str, int]]) -> None:
        fitting_rows, levels = self._cluster.answers.levels(self._record, [name for name, _ in new])
        self._levels[fitting_rows] = levels
        if len(self._level_by_state) + len(new) > _MAX_STATES:
            self._level_by_state.clear()
        rows = self._cluster.ledger.engine.rows([name for name, _ in new])
        numbered = zip((number for _, number in new), self._levels[rows].tolist(), strict=True)
        self._level_by_state.update((number, level) for number, level in numbered if number)
