"""Nodes whose free devices a nominated pod of a higher priority needs.

A nomination reserves amounts in kube-scheduler, and no devices of claims. So a pod of a lower priority could take the
device of a pod that was evicted for the nominated pod, and the eviction would be in vain.

Invariant: a node is refused only while the nominated pod would get its devices there now, and would not after the pod.
"""

from __future__ import annotations

from collections.abc import Collection

from topowise_scheduler.ledger.gates.claimed_nodes import ClaimedNodes
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.pods.booking_state import BookingState
from topowise_scheduler.ledger.pods.pod_states import PodStates
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.verdicts.refusals import Refusal


class ReservedDevices:
    """See `Gate`."""

    def __init__(self, node_states: NodeStates, pods: PodStates, claimed: ClaimedNodes) -> None:
        self._node_states = node_states
        self._pods = pods
        self._claimed = claimed

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if self._pods.nominated and self._claimed.applies(question.record):
            nodes = set(self._pods.nominated.values())
            draft.refuse_each(question, lambda record, name: self.refusal(record, name) if name in nodes else None)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        node_state = self._node_states.of(name)
        if node_state is None or not self._claimed.applies(record):
            return None
        for entry in node_state.history.expected:
            # Of equal priorities, neither pod waits for the other.
            is_first = entry.state is BookingState.NOMINATED and entry.record.priority > record.priority
            if is_first and self._claimed.applies(entry.record) and self._takes(record, entry.record, name, leaving):
                return Refusal.DEVICES_RESERVED
        return None

    def _takes(self, record: PodRecord, nominated: PodRecord, name: str, leaving: Collection[str]) -> bool:
        """Returns whether the pod would take a device that the nominated pod needs."""
        taken = [result for part in self._claimed.of(record, name, leaving).devices.results.values() for result in part]
        if not taken or self._claimed.of(nominated, name, leaving).devices.problem:
            return False
        return self._claimed.once_placed(nominated, name, leaving, taken).devices.is_short
