"""A pod and the nodes, as people ask about them: why each node says yes or no, and how many more it has room for.

The verbs are asked about nodes that have passed kube-scheduler's own filters; people name any node. So what
kube-scheduler has against a node (kube_scheduler.py) comes first here, with the requests of the pods that the ledger
knows there, and what is scored is what kube-scheduler would have scored. No question leaves a trace.
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
# Refusals that evictions do not help against, and that pass all the same.
_PASSING: Final = frozenset(
    (refusals.QUARANTINED, refusals.UNCONFIRMED, refusals.NOT_NEAR, refusals.NOT_SURELY_NEAR, refusals.PLACES_UNKNOWN)
)
_BY_SUMS: Final = "not reported: node allocatable alone is looked at"


class ClusterView:
    """All nodes, reported or not. Every question raises ParseError for a pod whose amounts cannot be read."""

    def __init__(self, ledger: Ledger, answers: Answers, nodes: Nodes) -> None:
        self._ledger = ledger
        self._answers = answers
        self._nodes = nodes

    @property
    def names(self) -> list[str]:
        """All nodes that have been reported or have a Node object, sorted."""
        return sorted({*self._ledger.node_states.reported(), *self._nodes})

    def explanations(self, pod: Pod, names: Sequence[str], *, with_hints: bool = False) -> list[NodeExplanation]:
        """Per node, in order. Asks the one-node model; for people, not for speed."""
        return [one for one in self.explaining(pod, names, with_hints=with_hints) if one is not None]

    def explaining(
        self, pod: Pod, names: Sequence[str], *, with_hints: bool = False
    ) -> Iterator[NodeExplanation | None]:
        """The same in steps, None for one that has come to nothing yet: a whole cluster takes seconds."""
        yield from self._answers.steps(self._answers.question(pod, names, is_simulation=True))
        asked, verdicts = self._ask(pod, names)
        against: list[Refusal | None] = []
        for refusal in self._against(pod, asked):
            against.append(refusal)
            yield None
        fits = [name for at, name in enumerate(names) if not (against[at] or verdicts.text(at))]
        scores = self._scores(pod, fits)
        not_looked_at = kube_scheduler.unexamined(pod.spec)
        for at, (name, refusal) in enumerate(zip(asked.names, against, strict=True)):
            mine = self._by_kubelet(asked, at, verdicts, scores.get(name, 0), with_hints).after(refusal)
            yield msgspec.structs.replace(mine, not_looked_at=not_looked_at)

    def refusals(self, pod: Pod, names: Sequence[str]) -> dict[str, str]:
        """What kube-scheduler itself has against each node, "" if nothing, in the words with which it sums up."""
        return {name: refusal.words if refusal else "" for name, refusal in self.against(pod, names).items()}

    def against(self, pod: Pod, names: Sequence[str]) -> dict[str, Refusal | None]:
        """The same with all that is known of it; None if there is nothing."""
        return dict(self.opposing(pod, names))

    def opposing(self, pod: Pod, names: Sequence[str]) -> Iterator[tuple[str, Refusal | None]]:
        """The same node by node, as a whole cluster takes long."""
        return zip(names, self._against(pod, self._answers.question(pod, names, is_simulation=True)), strict=True)

    def lacks(self, pod: Pod, name: str, change: Mapping[str, int]) -> str:
        """What the sums lack for a pod on a node if this more was requested there, and "pods" more were; "" if nothing,
        in the words of kube-scheduler."""
        node = self._nodes.get(name)
        if node is None:
            return kube_scheduler.NO_NODE if len(self._nodes) else ""
        asked = self._answers.question(pod, [name], is_simulation=True)
        used = dict(_Used(self._ledger, asked.record).on(name))
        for resource, amount in change.items():
            used[resource] = used.get(resource, 0) + amount
        refusal = kube_scheduler.short(node, asked.requests.needs, used)
        return "" if refusal is None else refusal.words

    def kubelet_refusals(self, pod: Pod, names: Sequence[str]) -> dict[str, str]:
        """What the extender would have against each of these nodes, "" if nothing."""
        verdicts = self._answers.verdicts(self._answers.question(pod, names, is_simulation=True))
        return {name: verdicts.text(at) for at, name in enumerate(names)}

    def best(self, pod: Pod, names: Sequence[str]) -> str:
        """The node of these, on all of which the pod fits, that the strategy prefers; of equal ones the first."""
        scores = self._scores(pod, names)
        return max(names, key=scores.__getitem__)

    def fitting(self, pod: Pod, names: Sequence[str]) -> Iterator[str | None]:
        """Those of these nodes on which the pod would fit now, in steps, None for one that has come to nothing."""
        yield from self._answers.steps(self._answers.question(pod, names, is_simulation=True))
        _, verdicts = self._ask(pod, names)
        left = [name for at, name in enumerate(names) if not verdicts.text(at)]
        against = self._against(pod, self._answers.question(pod, left, is_simulation=True))
        for name, refusal in zip(left, against, strict=True):
            yield name if refusal is None else None

    def fillings(self, pod: Pod, names: Sequence[str]) -> Iterator[Filling]:
        """Each of these nodes, to be filled with copies of the pod. Nodes do not depend on each other."""
        asked, verdicts = self._ask(pod, names)
        used = _Used(self._ledger, asked.record)
        for at, (name, refusal) in enumerate(zip(names, self._against(pod, asked), strict=True)):
            node, precision = self._nodes.get(name), self.precision(name)
            words = verdicts.text(at) if refusal is None else refusal.words
            by_sums = None if node is None else kube_scheduler.room(node, asked.requests.needs, used.on(name))
            if words:
                yield Filling(name, asked.record, limit=words)
            elif precision:
                states = list(self._answers.states_for(asked, name))
                affinity = partial(self._answers.affinity_refusal, asked.record, name)
                yield Filling(name, asked.record, states, by_sums, is_exact=precision == "exact", affinity=affinity)
            else:
                yield Filling(name, asked.record, count=by_sums[0] if by_sums else 0, limit=_BY_SUMS)

    def precision(self, name: str) -> str:
        """How exactly a node is known, "" if nobody has reported it."""
        report = self._report(name)
        return "" if report is None else report.precision

    def _report(self, name: str) -> Report | None:
        node_state = self._ledger.node_states.of(name)
        return None if node_state is None else node_state.report

    def _ask(self, pod: Pod, names: Sequence[str]) -> tuple[Question, Verdicts]:
        asked = self._answers.question(pod, names, is_simulation=True)
        return asked, self._answers.verdicts(asked)

    def _against(self, pod: Pod, asked: Question) -> Iterator[Refusal | None]:
        """What kube-scheduler itself has against each node of the question; nothing where nobody told of nodes."""
        used = _Used(self._ledger, asked.record)
        for name in asked.names:
            node = self._nodes.get(name)
            if node is not None:
                yield kube_scheduler.refusal(node, pod.spec, asked.requests.needs, used.on(name))
            else:
                yield _UNKNOWN if len(self._nodes) else None

    def _scores(self, pod: Pod, names: Sequence[str]) -> dict[str, int]:
        """Of the nodes on which the pod fits: kube-scheduler asks about those, and scores are spread over them."""
        asked = self._answers.question(pod, names, is_simulation=True)
        return dict(zip(names, self._answers.scores(asked).tolist(), strict=True))

    def _by_kubelet(
        self, asked: Question, at: int, verdicts: Verdicts, score: int, with_hints: bool
    ) -> NodeExplanation:
        name = asked.names[at]
        if asked.record.is_too_large:
            return explanation.too_large(name, asked.record.problem)
        state = next(self._answers.states_for(asked, name), None)
        if state is None:
            return explanation.not_reported(name).beside(self._ledger.reports.over_budget.get(name, ""))
        words = verdicts.text(at)
        explained = explanation.explain(
            name,
            state,
            asked.record.view(state),
            precision=self.precision(name),
            refusal=words,
            never=bool(verdicts.outcomes[at] == Outcome.UNRESOLVABLE) and words not in _PASSING,
            score=score,
            unconfirmed=self._ledger.gates.unconfirmed.why(name),
            report=self._report(name),
            with_hints=with_hints,
            by_chance=verdicts.outcomes[at] == Outcome.FITS and self._answers.may_be_refused(asked.record, name),
        )
        return explained.with_affinity(self._answers.affinity(asked, name)).beside(
            self._ledger.reports.over_budget.get(name, "")
        )


class _Used:
    """What the pods of nodes request, without those that do not stand in the way of this one (Ledger.exceptions)."""

    def __init__(self, ledger: Ledger, record: PodRecord) -> None:
        self._ledger = ledger
        self._aside = ledger.gates.ignored.everywhere(record.uid, record.priority)

    def on(self, name: str) -> Mapping[str, int]:
        """Their sums, and their number as "pods"."""
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
