"""Shortens the answer of filter where the omitted nodes would not change kube-scheduler's decision.

kube-scheduler scores every remaining node by all its plug-ins and requests scores from the extender; with a single
remaining node it does neither.

- `merges_equal`: of nodes that all other score plug-ins cannot distinguish (equal_nodes.py), the answer names the best
  node by our scores. Each named node keeps the score that it has among all nodes that fit, so the sums are unchanged.
- `most`: the answer names only this number of nodes as fitting, the best by our scores, and the other scores are lost.

A pod gets all names

- if its spec has preferences, or volumes or claims, which kube-scheduler may score too;
- if it is filtered again: a retry must not get the same nodes forever;
- if NUMA placement does not matter for the pod;
- with `merges_equal`, if affinity terms of other pods may select the pod;
- with `most`, if a taint of a best node says `PreferNoSchedule`, or the devices of its claims are unknown there.

A member of a gang always gets a single node. kube-scheduler decides the next member with this member placed in its own
memory, and does not report the node. Without a choice, the ledger knows the node.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.ledger.answers import Answers, Question, Verdicts
from topowise_scheduler.ledger.equal_nodes import EqualNodes
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.serve.extender import wire
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import PREFER_NO_SCHEDULE

# As kube-scheduler's encoder writes them. In an annotation they only cost the pod its short list.
_PREFERENCES: Final = (b'"preferredDuringSchedulingIgnoredDuringExecution":[', b'"ScheduleAnyway"')
_ALSO_SCORED: Final = (b'"persistentVolumeClaim":{', b'"ephemeral":{', b'"image":{', b'"resourceClaims":[')
# Not with the prefix of refusals: such a node fits, and a pod that fails elsewhere does not wait for NUMA placement.
_NOT_AMONG_BEST: Final = "node would fit, but topowise named a better node"
# Bytes of the uids of pods; a forgotten pod may get a second short list.
_MAX_SHORTENED_BYTES: Final = 4 << 20


class Shortened(NamedTuple):
    """The nodes `among` which scores are computed, as indices of the question's nodes, and the nodes to name, as
    indices into `among`. The other nodes that fit are refused for `reason`, or left out beside equal nodes if it is
    ""."""

    among: NDArray[np.intp]
    chosen: NDArray[np.intp]
    reason: str = ""


class Shortlist:
    """Makes short lists, once per pod: of at most `most` nodes, or by `merges_equal`; with neither only for gangs."""

    def __init__(
        self, answers: Answers, ledger: Ledger, nodes: Nodes, most: int = 0, *, merges_equal: bool = False
    ) -> None:
        self._answers = answers
        self._ledger = ledger
        self._nodes = nodes
        self._most = most
        self._equal_nodes = EqualNodes(ledger, nodes) if merges_equal and not most else None
        self._shortened_uids: Bounded[str, bool] = Bounded(_MAX_SHORTENED_BYTES, lambda uid, _: len(uid))

    def of(self, question: Question, verdicts: Verdicts, body: bytes) -> Shortened | None:
        """Returns None for all nodes that fit; nodes of `most` are sorted, the best first."""
        if question.is_simulation or not question.requests.can_be_aligned:
            return None
        fitting = np.flatnonzero(verdicts.outcomes == Outcome.FITS)
        if question.record.group:
            return self._best(question, fitting, 1)
        uid = question.record.uid
        if not uid or uid in self._shortened_uids or any(text in body for text in _PREFERENCES):
            return None
        if self._most:
            shortened = self._best(question, fitting, self._most)
        else:
            shortened = self._merged(question, fitting, body)
        if shortened is not None:
            self._shortened_uids.put(uid, True)
        return shortened

    def _best(self, question: Question, fitting: NDArray[np.intp], most: int) -> Shortened | None:
        best = self._answers.best(question, fitting, most) if fitting.size > most else fitting[:0]
        if not best.size:
            return None
        is_left_open = self._are_avoided(question, best) or self._has_unknown_devices(question, best)
        if is_left_open and not question.record.group:
            return None
        return Shortened(best, np.arange(best.size), _NOT_AMONG_BEST)

    def _has_unknown_devices(self, question: Question, best: NDArray[np.intp]) -> bool:
        """Returns whether the devices of the pod's claims are unknown on a best node. The watch may bring the claim
        before kube-scheduler requests scores."""
        return not all(self._answers.is_certain(question.record, question.names[at]) for at in best.tolist())

    def _merged(self, question: Question, fitting: NDArray[np.intp], body: bytes) -> Shortened | None:
        record = question.record
        if (
            self._equal_nodes is None
            or self._ledger.attracting.reach(record.namespace)
            or any(text in body for text in _ALSO_SCORED)
        ):
            return None
        try:
            images = wire.decode_images(body)
        except wire.UNREADABLE:
            return None
        numbers = self._equal_nodes.of(record, images, question.rows[fitting])
        if numbers is None:
            return None
        merged = self._answers.best_of_each(question, fitting, numbers)
        # The answer for all nodes is often encoded already, a shorter answer is not.
        return Shortened(fitting, merged) if 0 < 2 * merged.size <= fitting.size else None

    def _are_avoided(self, question: Question, best: NDArray[np.intp]) -> bool:
        nodes = (self._nodes.get(question.names[at]) for at in best.tolist())
        return any(taint.effect == PREFER_NO_SCHEDULE for node in nodes if node is not None for taint in node.taints)
