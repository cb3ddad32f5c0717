"""Whether each node takes a pod: kube-scheduler's checks of Node objects, and topowise's gates, as one verdict.

Every screen and metric reads these verdicts, so that all give the same answer about a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from topowise_scheduler.explain.explanation import Verdict
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.requested import Requested
from topowise_scheduler.verdicts import kube_scheduler, refusals
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import NO_NODE, Node, Objection, Spec
from topowise_scheduler.verdicts.refusals import Reason, Refusal

Obstacle = Literal["", "alignment", "resources", "excluded", "unconfirmed", "never"]

_NO_SPEC: Final = Spec()
_OF_OTHER_PODS: Final = refusals.OF_DEVICES | refusals.OF_STEERING | refusals.OF_CLAIMS


class NodeVerdict(NamedTuple):
    """A node and a pod. `objection` is kube-scheduler's. `gate` is topowise's refusal, also of a node that
    kube-scheduler refuses.

    `otherwise` is the verdict without the exclusion (cordon, taint, selector), else equal to `verdict`.
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


class Opposition:
    """kube-scheduler's own refusals, with the requests of the pods in the ledger; none if no Node object is known."""

    def __init__(self, ledger: Ledger, nodes: Nodes, requested: Requested) -> None:
        self._ledger = ledger
        self._nodes = nodes
        self._requested = requested

    def used(self, record: PodRecord, name: str, leaving: Sequence[str] = ()) -> Mapping[str, int]:
        """The requests on the node that count against the pod once the pods `leaving` have left."""
        used = self._requested.on(name, record.priority, record.uid)
        node_state = self._ledger.node_states.of(name) if leaving else None
        if node_state is None:
            return used
        left = {**used}
        for entry in node_state.history.entries():
            if entry.uid in leaving:
                left["pods"] -= 1
                for resource, amount in entry.needs.requests.items():
                    left[resource] = left.get(resource, 0) - amount
        return left

    def of(self, record: PodRecord, name: str) -> tuple[Objection | None, Objection | None]:
        """Why the node is excluded for the pod, and which sums, or devices of claims, it lacks."""
        node, needs = self._nodes.get(name), record.needs
        if node is None:
            return (NO_NODE if len(self._nodes) else None), None
        short = None if needs is None else kube_scheduler.short(node, needs, self.used(record, name))
        if short is None and record.claims:
            short = self._ledger.gates.claimed.shortage(record, name)
        return kube_scheduler.exclusion_of(node, spec_of(record)), short

    @property
    def is_known(self) -> bool:
        """Whether any Node object is known."""
        return bool(len(self._nodes))

    def node(self, name: str) -> Node | None:
        """The Node object."""
        return self._nodes.get(name)


def spec_of(record: PodRecord) -> Spec:
    """What selects nodes in the pod."""
    return _NO_SPEC if record.constraints is None else record.constraints.spec


def node_verdicts(
    ledger: Ledger, answers: Answers, opposition: Opposition, question: Question
) -> Iterator[NodeVerdict]:
    """Yields the verdict of each node of the question, in order; about 5 us each."""
    verdicts = answers.verdicts(question)
    outcomes, gates = verdicts.outcomes.tolist(), [verdicts.refusal(at) for at in range(len(question.names))]
    for at, outcome, refusal in _behind(ledger, question, gates):
        outcomes[at], gates[at] = outcome, refusal or gates[at]
    for name, row, outcome, gate in zip(question.names, question.rows.tolist(), outcomes, gates, strict=True):
        exclusion, short = opposition.of(question.record, name)
        verdict, obstacle = _of_gates(outcome, gate, is_reported=row >= 0)
        if question.record.unreadable:
            verdict, obstacle, gate = "never", "never", Refusal.UNREADABLE
        objection = None
        # "never" of the kubelet outweighs "not now" of the sums.
        if short is not None and (verdict != "never" or short.verdict == "never"):
            verdict, objection = short.verdict, short
            obstacle = "never" if verdict == "never" else "resources"
        if exclusion is None:
            yield NodeVerdict(name, verdict, obstacle, objection, gate, verdict)
        else:
            yield NodeVerdict(name, "excluded", "excluded", exclusion, gate, verdict)


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
