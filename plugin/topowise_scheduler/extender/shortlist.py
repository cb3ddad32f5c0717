"""Shortens the answer of filter to the best nodes, where the other nodes would not change the decision.

kube-scheduler scores every remaining node by all its plug-ins and requests scores from the extender; with a single
remaining node it does neither. A few nodes suffice where only NUMA placement decides, and cost both sides almost
nothing. Other scores may matter in these cases, so a pod gets all names

- if its spec has preferences, or a taint of a best node says `PreferNoSchedule`;
- if the pod is filtered again: a retry must not get the same best node forever;
- if NUMA placement does not matter for the pod.

A member of a gang always gets a single node. kube-scheduler decides the next member with this member placed in its own
memory, and does not report the node. Without a choice, the ledger knows the node.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.answers import Answers, Question, Verdicts
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.engine import Outcome

# As kube-scheduler's encoder writes them. In an annotation they only cost the pod its short list.
_PREFERENCES: Final = (b'"preferredDuringSchedulingIgnoredDuringExecution":[', b'"ScheduleAnyway"')
_AVOIDED: Final = "PreferNoSchedule"
# Bytes of the uids of pods; a forgotten pod may get a second short list.
_MAX_SHORTENED_BYTES: Final = 4 << 20


class Shortlist:
    """Makes short lists of at most `most` nodes, once per pod; 0 means only for gangs."""

    def __init__(self, answers: Answers, nodes: Nodes, most: int) -> None:
        self._answers = answers
        self._nodes = nodes
        self._most = most
        self._shortened_uids: Bounded[str, bool] = Bounded(_MAX_SHORTENED_BYTES, lambda uid, _: len(uid))

    def of(self, question: Question, verdicts: Verdicts, body: bytes) -> NDArray[np.intp] | None:
        """Indices of the question's nodes, best first; None for all nodes that fit."""
        if question.is_simulation or not question.requests.can_be_aligned:
            return None
        if question.record.group:
            return self._best(question, verdicts, 1)
        uid = question.record.uid
        if not self._most or not uid or uid in self._shortened_uids or any(text in body for text in _PREFERENCES):
            return None
        best = self._best(question, verdicts, self._most)
        if best is None or self._are_avoided(question, best):
            return None
        self._shortened_uids.put(uid, True)
        return best

    def _best(self, question: Question, verdicts: Verdicts, most: int) -> NDArray[np.intp] | None:
        fitting = np.flatnonzero(verdicts.outcomes == Outcome.FITS)
        best = self._answers.best(question, fitting, most) if fitting.size > most else fitting[:0]
        return best if best.size else None

    def _are_avoided(self, question: Question, best: NDArray[np.intp]) -> bool:
        nodes = (self._nodes.get(question.names[at]) for at in best.tolist())
        return any(taint.effect == _AVOIDED for node in nodes if node is not None for taint in node.taints)
