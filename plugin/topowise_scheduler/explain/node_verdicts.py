"""Whether each node takes a pod: kube-scheduler's checks of Node objects, and topowise's gates, as one verdict.

Every screen and metric reads these verdicts, so that all give the same answer about a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from topowise_scheduler.explain.explanation import Verdict
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import NO_NODE, Objection
from topowise_scheduler.verdicts.refusals import Reason, Refusal

Obstacle = Literal["", "alignment", "resources", "other pods", "excluded", "unconfirmed", "never"]

_OF_OTHER_PODS: Final = refusals.OF_DEVICES | refusals.OF_STEERING | refusals.OF_CLAIMS


class NodeVerdict(NamedTuple):
    """A node and a pod. `objection` is kube-scheduler's. `gate` is topowise's refusal, also of a node that
    kube-scheduler refuses.

    `otherwise` is the verdict without the exclusion (cordon, taint, selector) or the constraint between pods, else
    equal to `verdict`.
    """

    name: str
    verdict: Verdict
    obstacle: Obstacle
    objection: Objection | None
    gate: Refusal | None
    otherwise: Verdict

    @property
    def reason(self) -> Reason | None:
        """What refuses the node, the same for all nodes of a reason, None for a node that takes the pod."""
        return self.gate if self.objection is None else self.objection.words

    @property
    def takes_pod(self) -> bool:
        """Whether the node takes the pod; topowise has nothing against a node without a report."""
        return self.verdict in ("fits", "not reported")


def node_verdicts(trial: Trial, question: Question) -> Iterator[NodeVerdict]:
    """Yields the verdict of each node of the question, in order; about 5 us each."""
    ledger, verdicts = trial.ledger, trial.answers.verdicts(question)
    problem = question.record.problem
    others = trial.between_pods(question.record, question.names)
    outcomes, gates = verdicts.outcomes.tolist(), [verdicts.refusal(at) for at in range(len(question.names))]
    for at, outcome, refusal in _behind(ledger, question, gates):
        outcomes[at], gates[at] = outcome, refusal or gates[at]
    nodes = zip(question.names, question.rows.tolist(), outcomes, gates, strict=True)
    for at, (name, row, outcome, gate) in enumerate(nodes):
        exclusion, short = trial.opposition(question.record, name)
        verdict, obstacle = _of_gates(outcome, gate, is_reported=row >= 0)
        if problem is not None and problem.of == "annotations":
            verdict, obstacle, gate = "never", "never", Refusal.UNREADABLE
        objection = None
        # "never" of the kubelet outweighs "not now" of the sums.
        if short is not None and (verdict != "never" or short.verdict == "never"):
            verdict, objection = short.verdict, short
            obstacle = "never" if verdict == "never" else "resources"
        # Where something else is against the node too, room has to be made first.
        has_room = exclusion is None and verdict in ("fits", "not reported")
        between = others.objection(at) if has_room and others is not None else None
        if exclusion is not None:
            yield NodeVerdict(name, "excluded", "excluded", exclusion, gate, verdict)
        elif between is not None and between is not NO_NODE:
            yield NodeVerdict(name, between.verdict, "other pods", between, gate, verdict)
        else:
            yield NodeVerdict(name, verdict, obstacle, objection, gate, verdict)


def _of_gates(outcome: int, gate: Refusal | None, *, is_reported: bool) -> tuple[Verdict, Obstacle]:
    if gate is None:
        return ("fits" if is_reported else "not reported"), ""
    if gate is Refusal.UNCERTAIN or (gate in refusals.TEMPORARY and outcome == Outcome.FITS):
        return "not now", "unconfirmed"
    if gate in _OF_OTHER_PODS or outcome == Outcome.UNSCHEDULABLE:
        return "not now", "resources" if gate is Refusal.OUT_OF else "alignment"
    return "never", "never"


def _behind(
    ledger: Ledger, question: Question, gates: Sequence[Refusal | None]
) -> Iterator[tuple[int, int, Refusal | None]]:
    """Yields index, outcome and refusal of the capacity gate for the nodes that a gate refuses until a time.

    Such a node may be full too, or too small, which that gate does not say.
    """
    at = np.array([index for index, gate in enumerate(gates) if gate in refusals.TEMPORARY], np.intp)
    if not len(at):
        return
    names = [question.names[index] for index in at.tolist()]
    closed = Question(question.record, question.requests, names, question.rows[at], is_simulation=True)
    draft = Draft(len(names))
    ledger.gates.capacity.verdicts(closed, draft)
    yield from zip(at.tolist(), draft.outcomes.tolist(), map(refusals.numbered, draft.refusals.tolist()), strict=True)
