"""What the pods of nodes request together, as kube-scheduler adds it up; kept until the node changes.

Invariant: an amount is that of all bookings of the node at `NodeStates.changed_at`; what a booking requests never
changes without that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topowise.pods import Amounts
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.node.history import Entry


class Requested:
    """By node. Not thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sums: dict[str, tuple[int, Amounts]] = {}

    def on(self, name: str, priority: int) -> Mapping[str, int]:
        """What is requested there, with the number of pods as "pods"; pods that are nominated and of a lower priority
        than this do not count."""
        node_state = self._ledger.node_states.of(name)
        entries = () if node_state is None else node_state.history.entries()
        lesser = self._ledger.gates.ignored.on("", priority, name)
        if lesser:
            return _sums(entry for entry in entries if entry.uid not in lesser)
        changed_at = self._ledger.node_states.changed_at(name)
        at, sums = self._sums.get(name, (-1, {}))
        if at != changed_at:
            sums = _sums(entries)
            self._sums[name] = changed_at, sums
        return sums

    def forget(self) -> None:
        """Nodes have gone."""
        self._sums.clear()


def _sums(entries: Iterable[Entry]) -> Amounts:
    used: Amounts = {"pods": 0}
    for entry in entries:
        used["pods"] += 1
        for resource, amount in entry.needs.requests.items():
            used[resource] = used.get(resource, 0) + amount
    return used
