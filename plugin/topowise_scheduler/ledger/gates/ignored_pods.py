"""Pods on a node that a verdict for another pod does not count.

A pod does not count against itself. kube-scheduler nominates a pod while it evicts victims for the pod, and a pod of a
higher priority may take that capacity first: for such a pod nominated pods of lower priority do not count.

Invariant: every answer is of the pods as they are booked now.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.node.history import Entry
from topowise_scheduler.ledger.pods.pod_states import BookingState, PodStates
from topowise_scheduler.verdicts.engine import Engine

_MAX_PRIORITIES: Final = 64
# With more nominated pods, the states without them are made when a node changes and not for a question, which would
# have to make too many.
_FEW: Final = 8
# Above the priority of any pod.
_HIGHEST: Final = 1 << 32
# A node has as many sets of ignored pods as its nominated pods have priorities.
_MAX_SETS: Final = 8

Rows = NDArray[np.int32]
States = Callable[[str, frozenset[str]], Iterator[Kubelet]]
"""Copies of a node's state without some pods (NodeStates.states)."""


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
    """The engine's rows of nodes by ignored pods. A node must be in the engine as long as it has rows here.

    For a pod that ignores nominated pods a node is in another state: without these pods, in all possible states. The
    engine judges these states as nodes of their own, under names that no node can have.

    Invariant: the rows agree with the nodes as the engine has them now. Only a node that has changed, or whose
    nominations have changed, costs work.
    """

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


class LowerPriorityPods:
    """Nominated pods that do not count for a pod of a higher priority.

    kube-scheduler nominates a pod while it evicts victims for the pod, and a pod of a higher priority may take that
    room first. So a question needs, by node, the nominated pods of a lower priority than its pod.

    Invariant: an answer agrees with the present nominations. A question costs the nodes whose nominations have changed
    since the last question.

    `states` gives the states of a node without some pods, `expected` the pods that are expected on a node, and
    `nominated` the nodes of all nominated pods.
    """

    def __init__(
        self, engine: Engine, states: States, expected: Callable[[str], Iterable[Entry]], nominated: Collection[str]
    ) -> None:
        self._expected = expected
        self._nominated = nominated
        self._rows = ReducedRows(engine, states)
        # Few entries bound this map: an entry grows with the nominations, which are bounded themselves.
        self._by_priority: Bounded[int, Lesser] = Bounded(sys.maxsize, lambda *_: 0, _MAX_PRIORITIES)
        self._changed: set[str] = set()

    def note(self, nodes: Collection[str]) -> None:
        """Notes nodes whose nominations have changed."""
        self._changed.update(nodes)

    def others(self, priority: int) -> Mapping[str, frozenset[str]]:
        """Returns by node the pods that do not count for a pod of this priority."""
        return self._current(priority).ignored

    def apart(self, priority: int) -> ReducedNodes | None:
        """Returns the nodes without the pods that do not count, None if there are no such pods."""
        current = self._current(priority)
        return self._rows.nodes(current) if current.ignored else None

    def prepare(self, node: str, count: int) -> None:
        """Notes that a node has changed, while `count` pods are nominated that may end in a preemption."""
        if count > _FEW and (nominated := self._on(node, _HIGHEST)):
            self._rows.prepare(node, nominated)

    def drop(self, node: str) -> None:
        """Forgets a node without a report."""
        self._rows.drop(node)

    def _current(self, priority: int) -> Lesser:
        current = self._by_priority.get(priority)
        if current is None:
            current = Lesser()
            # A PriorityClass that is new here; later changes come through `note`.
            self._by_priority.put(priority, current)
            for node in set(self._nominated):
                current.put(node, self._on(node, priority))
        for node in self._changed:
            for limit, ignored in self._by_priority.items():
                ignored.put(node, self._on(node, limit))
            if not self._on(node, _HIGHEST):
                self._rows.drop(node)
        self._changed.clear()
        return current

    def _on(self, node: str, priority: int) -> frozenset[str]:
        return frozenset(
            entry.uid
            for entry in self._expected(node)
            if entry.state is BookingState.NOMINATED and entry.record.priority < priority
        )


_NO_PODS: Final[frozenset[str]] = frozenset()


class IgnoredPods:
    """Ignored pods, by the pod of a question. UIDs are strings, priorities are those of PriorityClasses."""

    def __init__(self, pods: PodStates, lower_priority: LowerPriorityPods) -> None:
        self._pods = pods
        self._lower_priority = lower_priority

    def on(self, uid: str, priority: int, name: str) -> Set[str]:
        """Returns the pods on a node that do not count for this pod."""
        lower = self.of_lower_priority(priority).get(name, _NO_PODS)
        pod = self._pods.of(uid)
        return lower | {uid} if name in (pod.node, pod.nominated) else lower

    def on_own_nodes(self, uid: str, priority: int) -> Mapping[str, Set[str]]:
        """Returns, by each node where the pod itself is or is expected, the pods that do not count there."""
        pod = self._pods.of(uid)
        if not (pod.node or pod.nominated):
            return {}
        lower = self.of_lower_priority(priority)
        return {name: lower.get(name, frozenset()) | {uid} for name in {pod.node, pod.nominated} - {""}}

    def everywhere(self, uid: str, priority: int) -> Mapping[str, Set[str]]:
        """Returns the pods that do not count, by each node that has any."""
        return {**self.of_lower_priority(priority), **self.on_own_nodes(uid, priority)}

    def of_lower_priority(self, priority: int) -> Mapping[str, Set[str]]:
        """Returns the nominated pods of a lower priority, by node."""
        return self._lower_priority.others(priority)

    def rows(self, priority: int) -> ReducedNodes | None:
        """Returns the engine's rows of nodes without their nominated pods of a lower priority, None without any."""
        return self._lower_priority.apart(priority)
