"""Pods on a node that a verdict for another pod does not count.

A pod does not count against itself. kube-scheduler nominates a pod while it evicts victims for the pod, and a pod of a
higher priority may take that capacity first: for such a pod nominated pods of lower priority do not count.

Invariant: every answer is of the pods as they are booked now.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Final

from topowise.bounded import Bounded
from topowise_scheduler.ledger.node.history import Entry
from topowise_scheduler.ledger.pods.pod_states import BookingState, PodStates
from topowise_scheduler.ledger.rows.reduced_rows import Lesser, ReducedNodes, ReducedRows, States
from topowise_scheduler.verdicts.engine import Engine

_MAX_PRIORITIES: Final = 64
# With more nominated pods, the states without them are made when a node changes and not for a question, which would
# have to make too many.
_FEW: Final = 8
# Above the priority of any pod.
_HIGHEST: Final = 1 << 32


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


class IgnoredPods:
    """Ignored pods, by the pod of a question. UIDs are strings, priorities are those of PriorityClasses."""

    def __init__(self, pods: PodStates, lower_priority: LowerPriorityPods) -> None:
        self._pods = pods
        self._lower_priority = lower_priority

    def on(self, uid: str, priority: int, name: str) -> Set[str]:
        """Returns the pods on a node that do not count for this pod."""
        of_pod = self.on_own_nodes(uid, priority)
        return of_pod[name] if name in of_pod else self.of_lower_priority(priority).get(name, frozenset())

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
