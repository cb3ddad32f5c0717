"""Pods of a job that was admitted as a whole: each goes to the node where a copy of its template was reserved for it.

Pods that were placed together need not fit in another distribution: a pod that takes a better node may leave the
remaining capacity in pieces.

Invariant: a place ends by time, with the reservation that it comes from.

Nodes whose free devices a nominated pod of a higher priority needs.

A nomination reserves amounts in kube-scheduler, and no devices of claims. So a pod of a lower priority could take the
device of a pod that was evicted for the nominated pod, and the eviction would be in vain.

Invariant: a node is refused only while the nominated pod would get its devices there now, and would not after the pod.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from topowise_scheduler.ledger.gates.claimed_nodes import ClaimedNodes
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.pods.pod_states import BookingState, PodStates
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.verdicts.refusals import Refusal


class ReservedPlaces:
    """By UID of the pod: the node, and the end of the place (seconds, monotonic)."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[str, float]] = {}

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if not self.places or (place := self.places.get(question.record.uid)) is None:
            return
        draft.refuse(np.array([name != place[0] for name in question.names], np.bool_), Refusal.RESERVED_ELSEWHERE)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        node, _ = self.places.get(record.uid, (name, 0.0))
        return None if node == name else Refusal.RESERVED_ELSEWHERE

    def expire(self, now: float) -> None:
        """Ends the places whose time is over."""
        self.places = {uid: place for uid, place in self.places.items() if place[1] > now}


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
