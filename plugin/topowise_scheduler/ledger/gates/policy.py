"""Nodes whose Topology Manager policy is not the policy that the annotations of a pod ask for."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.refusals import Refusal


class PolicyGate:
    """A node without a report has no known policy, and is refused too."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        for accepted, refusal in question.record.demand.rules():
            suits = np.zeros(len(question.names), np.bool_)
            known = question.rows >= 0
            suits[known] = np.isin(self._engine.policies[question.rows[known]], accepted)
            # The profile of a group has a policy, and its refusal is in the question.
            suits[list(question.templates)] = True
            draft.refuse(~suits, refusal)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        for accepted, refusal in record.demand.rules():
            row = self._engine.row(name)
            if row < 0 or self._engine.policies[row] not in accepted:
                return refusal
        return None
