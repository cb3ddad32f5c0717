"""Why each node accepts or refuses a pod, and how many more copies it takes, for any node that a person names.

kube-scheduler calls the verbs only for nodes that its own plug-ins accept. So its own refusals (kube_scheduler.py) come
first here, with the requests of the pods in the ledger, and scores are made for the nodes that kube-scheduler would
ask about. No question changes the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from topowise.pods import Amounts
from topowise_scheduler import kube_scheduler, refusals
from topowise_scheduler.answers import Answers, Question, Verdicts
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.engine import Outcome
from topowise_scheduler.kube_scheduler import Pod, Refusal
from topowise_scheduler.presentation.explain import explanation
from topowise_scheduler.presentation.explain.capacity import Filling
from topowise_scheduler.presentation.explain.explanation import NodeExplanation
from topowise_scheduler.report import Report

_UNKNOWN: Final = Refusal("excluded", kube_scheduler.NO_NODE, kube_scheduler.NO_NODE)
# Refusals that evictions do not end, but time does.
_PASSING: Final = frozenset(
    (
        refusals.QUARANTINED,
        refusals.UNCONFIRMED,
        refusals.EXPORTER_DOWN,
        refusals.NOT_NEAR,
        refusals.NOT_SURELY_NEAR,
        refusals.PLACES_UNKNOWN,
    )
)
_BY_SUMS: Final = "not reported: only node allocatable was checked"


class ClusterView:
    """All nodes, reported or not. Every method raises ParseError for a pod whose amounts cannot be read."""

    def __init__(self, ledger: Ledger, answers: Answers, nodes: Nodes) -> None:
        self._ledger = ledger
        self._answers = answers
        self._nodes = nodes

    @property
    def names(self) -> list[str]:
        """Names of all nodes with a report or a Node object, sorted."""
        return sorted({*self._ledger.node_states.reported(), *self._nodes})

    def explanations(self, pod: Pod, names: Sequence[str], *, with_hints: bool = False) -> list[NodeExplanation]:
        """An explanation for each node, in order. Runs the one-node model; too slow for a verb."""
        return [
            explanation for explanation in self.explaining(pod, names, with_hints=with_hints) if explanation is not None
        ]

    def explaining(
        self, pod: Pod, names: Sequence[str], *, with_hints: bool = False
    ) -> Iterator[NodeExplanation | None]:
        """`explanations` in steps, because a whole cluster takes seconds; a step without a result yields None."""
        yield from self._answers.steps(self._answers.question(pod, names, is_simulation=True))
        question, verdicts = self._ask(pod, names)
        against: list[Refusal | None] = []
        for refusal in self._against(pod, question):
            against.append(refusal)
            yield None
        fits = [name for at, name in enumerate(names) if not (against[at] or verdicts.text(at))]
        scores = self._scores(pod, fits)
        not_looked_at = kube_scheduler.unexamined(pod.spec)
        for at, (name, refusal) in enumerate(zip(question.names, against, strict=True)):
            node_explanation = self._by_kubelet(question, at, verdicts, scores.get(name, 0), with_hints).after(refusal)
            yield msgspec.structs.replace(node_explanation, not_looked_at=not_looked_at)

    def refusals(self, pod: Pod, names: Sequence[str]) -> dict[str, str]:
        """kube-scheduler's own refusal of each node, in the words of its event; "" if it accepts the node."""
        return {name: refusal.words if refusal else "" for name, refusal in self.against(pod, names).items()}

    def against(self, pod: Pod, names: Sequence[str]) -> dict[str, Refusal | None]:
        """kube-scheduler's own refusal of each node, None if it accepts the node."""
        return dict(self.opposing(pod, names))

    def opposing(self, pod: Pod, names: Sequence[str]) -> Iterator[tuple[str, Refusal | None]]:
        """`against` node by node, because a whole cluster takes long."""
        return zip(names, self._against(pod, self._answers.question(pod, names, is_simulation=True)), strict=True)

    def lacks(self, pod: Pod, name: str, change: Mapping[str, int]) -> str:
        """kube-scheduler's refusal by sums if the pods on the node requested `change` more, "" if there is none.

        `change` has amounts by resource, and the number of pods as "pods".
        """
        node = self._nodes.get(name)
        if node is None:
            return kube_scheduler.NO_NODE if len(self._nodes) else ""
        question = self._answers.question(pod, [name], is_simulation=True)
        used = dict(_Used(self._ledger, question.record).on(name))
        for resource, amount in change.items():
            used[resource] = used.get(resource, 0) + amount
        refusal = kube_scheduler.short(node, question.requests.needs, used)
        return "" if refusal is None else refusal.words

    def kubelet_refusals(self, pod: Pod, names: Sequence[str]) -> dict[str, str]:
        """The extender's refusal of each node, "" if it accepts the node."""
        verdicts = self._answers.verdicts(self._answers.question(pod, names, is_simulation=True))
        return {name: verdicts.text(at) for at, name in enumerate(names)}

    def best(self, pod: Pod, names: Sequence[str]) -> str:
        """The node that the strategy scores highest, the first of equal nodes. The pod must fit on all of `names`."""
        scores = self._scores(pod, names)
        return max(names, key=scores.__getitem__)

    def fillings(self, pod: Pod, names: Sequence[str]) -> Iterator[Filling]:
        """Each node, ready to be filled with copies of the pod. Nodes are independent of each other."""
        question, verdicts = self._ask(pod, names)
        used = _Used(self._ledger, question.record)
        for at, (name, refusal) in enumerate(zip(names, self._against(pod, question), strict=True)):
            node, precision = self._nodes.get(name), self.precision(name)
            words = verdicts.text(at) if refusal is None else refusal.words
            by_sums = None if node is None else kube_scheduler.room(node, question.requests.needs, used.on(name))
            if words:
                yield Filling(name, question.record, limit=words)
            elif precision:
                states = list(self._answers.states_for(question, name))
                affinity = partial(self._answers.affinity_refusal, question.record, name)
                yield Filling(name, question.record, states, by_sums, is_exact=precision == "exact", affinity=affinity)
            else:
                yield Filling(name, question.record, count=by_sums[0] if by_sums else 0, limit=_BY_SUMS)

    def precision(self, name: str) -> str:
        """The precision of a node's report, "" without a report."""
        report = self._report(name)
        return "" if report is None else report.precision

    def _report(self, name: str) -> Report | None:
        node_state = self._ledger.node_states.of(name)
        return None if node_state is None else node_state.report

    def _ask(self, pod: Pod, names: Sequence[str]) -> tuple[Question, Verdicts]:
        question = self._answers.question(pod, names, is_simulation=True)
        return question, self._answers.verdicts(question)

    def _against(self, pod: Pod, question: Question) -> Iterator[Refusal | None]:
        """kube-scheduler's own refusal of each node of the question; None if no Node objects are known."""
        used = _Used(self._ledger, question.record)
        for name in question.names:
            node = self._nodes.get(name)
            if node is not None:
                yield kube_scheduler.refusal(node, pod.spec, question.requests.needs, used.on(name))
            else:
                yield _UNKNOWN if len(self._nodes) else None

    def _scores(self, pod: Pod, names: Sequence[str]) -> dict[str, int]:
        """Scores of nodes on which the pod fits: kube-scheduler asks about these, and scores are spread over them."""
        question = self._answers.question(pod, names, is_simulation=True)
        return dict(zip(names, self._answers.scores(question).tolist(), strict=True))

    def _by_kubelet(
        self, question: Question, at: int, verdicts: Verdicts, score: int, with_hints: bool
    ) -> NodeExplanation:
        name = question.names[at]
        if question.record.is_too_large:
            return explanation.too_large(name, question.record.problem)
        state = next(self._answers.states_for(question, name), None)
        if state is None:
            explained = explanation.not_reported(name, verdicts.text(at))
            return explained.beside(self._ledger.reports.over_budget.get(name, ""))
        words = verdicts.text(at)
        explained = explanation.explain(
            name,
            state,
            question.record.view(state),
            precision=self.precision(name),
            refusal=words,
            never=bool(verdicts.outcomes[at] == Outcome.UNRESOLVABLE) and words not in _PASSING,
            score=score,
            unconfirmed=self._ledger.gates.unconfirmed.why(name),
            report=self._report(name),
            with_hints=with_hints,
            by_chance=verdicts.outcomes[at] == Outcome.FITS and self._answers.may_be_refused(question.record, name),
        )
        return explained.with_affinity(self._answers.affinity(question, name)).beside(
            self._ledger.reports.over_budget.get(name, "")
        )


class _Used:
    """Requested amounts by node, without pods that may not count against this pod (Ledger.exceptions)."""

    def __init__(self, ledger: Ledger, record: PodRecord) -> None:
        self._ledger = ledger
        self._aside = ledger.gates.ignored.everywhere(record.uid, record.priority)

    def on(self, name: str) -> Mapping[str, int]:
        """The sums by resource, with the number of pods as "pods"."""
        node_state = self._ledger.node_states.of(name)
        aside = self._aside.get(name, ())
        counted = (
            [entry for entry in node_state.history.entries() if entry.uid not in aside]
            if node_state is not None
            else []
        )
        used: Amounts = {"pods": len(counted)}
        for booking in counted:
            for resource, amount in booking.needs.requests.items():
                used[resource] = used.get(resource, 0) + amount
        return used
