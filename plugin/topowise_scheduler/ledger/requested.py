"""The summed requests of the pods on a node, as kube-scheduler sums them; cached until the node changes.

Invariant: a sum covers all bookings of the node at `NodeStates.changed_at`. The requests of a booking never change
without a change of the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topowise.bounded import Bounded
from topowise.pods import Amounts
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.history import Entry
from topowise_scheduler.verdicts import kube_scheduler

_MOST_BYTES: Final = 16 << 20


class Requested:
    """Sums by node. Not thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sums: Bounded[str, tuple[int, Amounts]] = Bounded(_MOST_BYTES, lambda _, sums: 100 * len(sums[1]))

    def on(self, name: str, priority: int, uid: str = "") -> Mapping[str, int]:
        """Returns the requests on a node, with the number of pods as "pods".

        The pod `uid` and nominated pods of a lower priority than `priority` do not count.
        """
        node_state = self._ledger.node_states.of(name)
        ignored = self._ledger.gates.ignored.on(uid, priority, name)
        # A node without a report notes no changes.
        if ignored or node_state is None or node_state.report is None:
            entries = () if node_state is None else node_state.history.entries()
            return _sums(entry for entry in entries if entry.uid not in ignored)
        changed_at = self._ledger.node_states.changed_at(name)
        at, sums = self._sums.get(name) or (-1, {})
        if at != changed_at:
            sums = _sums(node_state.history.entries())
            self._sums.put(name, (changed_at, sums))
        return sums

    def forget(self) -> None:
        """Drops all sums, because nodes were removed."""
        self._sums.clear()


def _sums(entries: Iterable[Entry]) -> Amounts:
    used: Amounts = {"pods": 0}
    for entry in entries:
        kube_scheduler.add(used, entry.needs)
    return used
