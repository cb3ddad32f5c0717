"""Whether each node takes a pod: kube-scheduler's checks of Node objects, and topowise's gates, as one verdict.

Every screen and metric reads these verdicts, so that all give the same answer about a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final, Literal, NamedTuple

import numpy as np

from topowise_scheduler.explain.explanation import Verdict
from topowise_scheduler.ledger.gates.gate import Draft, Question, Texts
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.kube_scheduler import Refusal

Obstacle = Literal["", "alignment", "resources", "excluded", "unconfirmed", "never"]

_OF_OTHER_PODS: Final = refusals.OF_DEVICES | refusals.OF_STEERING | refusals.OF_CLAIMS


class NodeVerdict(NamedTuple):
    """A node and a pod. `reason` is the same text for all nodes of a reason, "" for a node that takes the pod.

    `refusal` is kube-scheduler's own. `gate` is topowise's refusal, also of a node that kube-scheduler refuses.
    `otherwise` is the verdict without the exclusion (cordon, taint, selector), else equal to `verdict`.
    """

    name: str
    verdict: Verdict
    obstacle: Obstacle
    reason: str
    refusal: Refusal | None
    gate: str
    otherwise: Verdict

    @property
    def takes_pod(self) -> bool:
        """Whether the node takes the pod; topowise has nothing against a node without a report."""
        return self.verdict in ("fits", "not reported")


def node_verdicts(trial: Trial, question: Question) -> Iterator[NodeVerdict]:
    """Yields the verdict of each node of the question, in order; about 5 us each."""
    ledger, verdicts = trial.ledger, trial.answers.verdicts(question)
    outcomes, texts = verdicts.outcomes.tolist(), [verdicts.texts[word] for word in verdicts.words.tolist()]
    for at, outcome, word in _behind(ledger, question, texts):
        outcomes[at], texts[at] = outcome, verdicts.texts[word] or texts[at]
    for name, row, outcome, text in zip(question.names, question.rows.tolist(), outcomes, texts, strict=True):
        exclusion, short = trial.opposition(question.record, name)
        verdict, obstacle = _of_gates(outcome, text, ledger.gates.temporary, is_reported=row >= 0)
        if question.record.unreadable:
            verdict, obstacle, text = "never", "never", "annotations of the pod cannot be read"
        reason = text
        # "never" of the kubelet outweighs "not now" of the sums.
        if short is not None and (verdict != "never" or short.verdict == "never"):
            verdict, reason = short.verdict, short.words
            obstacle = "never" if verdict == "never" else "resources"
        if exclusion is None:
            yield NodeVerdict(name, verdict, obstacle, reason, short if reason is not text else None, text, verdict)
        else:
            yield NodeVerdict(name, "excluded", "excluded", exclusion.words, exclusion, text, verdict)


def _of_gates(outcome: int, text: str, temporary: Set[str], *, is_reported: bool) -> tuple[Verdict, Obstacle]:
    if not text:
        return ("fits" if is_reported else "not reported"), ""
    if text == refusals.UNCERTAIN or (text in temporary and outcome == Outcome.FITS):
        return "not now", "unconfirmed"
    if text in _OF_OTHER_PODS or outcome == Outcome.UNSCHEDULABLE:
        return "not now", "resources" if text == refusals.OUT_OF else "alignment"
    return "never", "never"


def _behind(ledger: Ledger, question: Question, texts: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yields index, outcome and text number of the capacity gate for the nodes that a gate refuses until a time.

    Such a node may be full too, or too small, which that gate does not say.
    """
    at = np.array([index for index, text in enumerate(texts) if text in ledger.gates.temporary], np.intp)
    if not len(at):
        return
    names = [question.names[index] for index in at.tolist()]
    closed = Question(question.record, question.requests, names, question.rows[at], is_simulation=True)
    draft = Draft(len(names), Texts())
    ledger.gates.capacity.verdicts(closed, draft)
    yield from zip(at.tolist(), draft.outcomes.tolist(), draft.words.tolist(), strict=True)
