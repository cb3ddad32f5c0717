"""For whom a nominated pod does not count.

kube-scheduler nominates a pod while it evicts others for it, and one of a higher priority may have that room first. So
a question has to know of each node which pods are nominated there that are less important than its own.

Invariant: what is answered is of the nominations as they are now. A question costs the nodes on which nominations have
changed since the last one, whoever asked that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from topowise_scheduler.cluster.node.bookings import BookingState
from topowise_scheduler.cluster.node.history import Entry
from topowise_scheduler.cluster.rows.apart_rows import ApartNodes, ApartRows, Lesser, States
from topowise_scheduler.engine import Engine

_MAX_PRIORITIES: Final = 64
# From more on, what a node is without those nominated there is made when it changes, and not only when it is asked for:
# then there are too many nodes for one question.
_FEW: Final = 8
# Above the priority of any pod.
_HIGHEST: Final = 1 << 32


class LesserNominated:
    """`states` are those of a node without some pods, `expected` the pods that are expected on it; `nominated` has the
    node of each nominated pod, at any time."""

    def __init__(
        self,
        engine: Engine,
        states: States,
        expected: Callable[[str], Iterable[Entry]],
        nominated: Collection[str],
    ) -> None:
        self._expected = expected
        self._nominated = nominated
        self._rows = ApartRows(engine, states)
        # By priority, made when it is asked for; and the nodes on which nominations have changed since.
        self._by_priority: dict[int, Lesser] = {}
        self._changed: set[str] = set()

    def note(self, nodes: Collection[str]) -> None:
        """A nomination has come there or gone."""
        self._changed.update(nodes)

    def others(self, priority: int) -> Mapping[str, frozenset[str]]:
        """By node the pods that do not stand in the way of one of this priority."""
        return self._current(priority).others

    def apart(self, priority: int) -> ApartNodes | None:
        """Those nodes as they are without these pods; None without any."""
        lesser = self._current(priority)
        return self._rows.nodes(lesser) if lesser.others else None

    def prepare(self, node: str, count: int) -> None:
        """The node has changed, and `count` pods are nominated that may end in a preemption."""
        if count > _FEW and (nominated := self._on(node, _HIGHEST)):
            self._rows.prepare(node, nominated)

    def drop(self, node: str) -> None:
        """Nobody reports the node any more."""
        self._rows.drop(node)

    def _current(self, priority: int) -> Lesser:
        found = self._by_priority.get(priority)
        if found is None:
            if len(self._by_priority) >= _MAX_PRIORITIES:
                self._by_priority.clear()
            found = self._by_priority[priority] = Lesser()
            for node in set(self._nominated):
                found.put(node, self._on(node, priority))
        for node in self._changed:
            for one, lesser in self._by_priority.items():
                lesser.put(node, self._on(node, one))
            if not self._on(node, _HIGHEST):
                self._rows.drop(node)
        self._changed.clear()
        return found

    def _on(self, node: str, priority: int) -> frozenset[str]:
        return frozenset(
            entry.uid
            for entry in self._expected(node)
            if entry.state is BookingState.NOMINATED and entry.record.priority < priority
        )
