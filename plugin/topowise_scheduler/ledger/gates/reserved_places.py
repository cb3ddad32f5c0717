"""Pods of a job that was admitted as a whole: each goes to the node where a copy of its template was reserved for it.

Pods that were placed together need not fit in another distribution: a pod that takes a better node may leave the
remaining capacity in pieces.

Invariant: a place ends by time, with the reservation that it comes from.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.pods.records import PodRecord
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
