"""Why each node accepts or refuses a pod, and how many more copies it takes, for any node that a person names.

kube-scheduler calls the verbs only for nodes that its own plug-ins accept. So its own refusals (kube_scheduler.py) come
first here, with the requests of the pods in the ledger, and scores are made for the nodes that kube-scheduler would
ask about. No question changes the ledger.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from topowise.bounded import Bounded, size_of_json
from topowise.pods import Amounts
from topowise_scheduler.explain import explanation
from topowise_scheduler.explain.capacity import Filling
from topowise_scheduler.explain.explanation import NodeExplanation, Verdict
from topowise_scheduler.explain.node_verdicts import NodeVerdict, Opposition, node_verdicts
from topowise_scheduler.explain.refusal_texts import text
from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.pods.scheduling_constraints import constraints_of
from topowise_scheduler.ledger.requested import Requested
from topowise_scheduler.report import Report
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import NO_NODE, Objection, Pod
from topowise_scheduler.verdicts.refusals import Refusal

_OTHERWISE: Final[dict[Verdict, str]] = {
    "fits": "the pod would fit otherwise",
    "not now": "the pod would not fit now otherwise",
    "never": "the pod would never fit otherwise",
}
_MOST_BYTES: Final = 8 << 20
_BY_SUMS: Final = "not reported: only node allocatable was checked"


class ClusterView:
    """All nodes, reported or not. Every method raises ParseError for a pod whose amounts cannot be read."""

    def __init__(self, ledger: Ledger, answers: Answers, nodes: Nodes) -> None:
        self.ledger = ledger
        self._answers = answers
        self._nodes = nodes
        self.requested = Requested(ledger)
        self.opposition = Opposition(ledger, nodes, self.requested)
        self.waiting: Bounded[Hashable, tuple[tuple[int, int], float, Any]] = Bounded(_MOST_BYTES, size_of_json)
        """The views of waiting pods, with `changes` and the end of their validity (waiting.py)."""
        self._free: Bounded[str, tuple[int, list[Amounts]]] = Bounded(_MOST_BYTES, lambda _, free: 100 * len(free[1]))

    @property
    def names(self) -> list[str]:
        """Names of all nodes with a report or a Node object, sorted."""
        return sorted({*self.ledger.node_states.reported(), *self._nodes})

    def explanations(self, pod: Pod, names: Sequence[str], *, with_hints: bool = False) -> list[NodeExplanation]:
        """An explanation for each node, in order. Runs the one-node model; too slow for a verb."""
        return [
            explanation for explanation in self.explaining(pod, names, with_hints=with_hints) if explanation is not None
        ]

    def explaining(
        self, pod: Pod, names: Sequence[str], *, with_hints: bool = False
    ) -> Iterator[NodeExplanation | None]:
        """`explanations` in steps, because a whole cluster takes seconds; a step without a result yields None."""
        record = self.record(pod)
        yield from self._answers.steps(self._answers.about(record, names))
        verdicts = []
        for node_verdict in self.verdicts(record, names):
            verdicts.append(node_verdict)
            yield None
        scores = self._scores(pod, [node.name for node in verdicts if node.takes_pod])
        for node_verdict in verdicts:
            yield self.explain(record, node_verdict, scores.get(node_verdict.name, 0), with_hints=with_hints)

    def record(self, pod: Pod) -> PodRecord:
        """The record of a pod, with what it requires of nodes."""
        return msgspec.structs.replace(self._answers.record(pod), constraints=constraints_of(pod.spec))

    @property
    def changes(self) -> tuple[int, int]:
        """A value that differs once a node, its pods or its Node object has changed."""
        return self.ledger.node_states.changes, self._nodes.changes

    def steps(self, record: PodRecord, names: Sequence[str]) -> Iterator[None]:
        """The steps that `verdicts` would take long for."""
        return self._answers.fitting(record, names)

    def free_amounts(self, name: str, kubelet: Kubelet) -> list[Amounts]:
        """The free amounts by NUMA node, kept until the node changes."""
        changed_at = self.ledger.node_states.changed_at(name)
        kept = self._free.get(name)
        if kept is None or kept[0] != changed_at:
            kept = changed_at, free_amounts.by_position(kubelet)
            self._free.put(name, kept)
        return kept[1]

    def takes_without(self, record: PodRecord, name: str, leaving: Sequence[str]) -> bool:
        """Whether the node takes the pod once the pods `leaving` (UIDs) have left, cordons and the like aside."""
        node, needs = self.opposition.node(name), record.needs
        if needs is None:
            return False
        if node is not None and kube_scheduler.short(node, needs, self.opposition.used(record, name, leaving)):
            return False
        return not self.ledger.gates.all(record, name, leaving)

    def verdicts(self, record: PodRecord, names: Sequence[str]) -> Iterator[NodeVerdict]:
        """The verdict of each node, in order."""
        question = msgspec.structs.replace(self._answers.about(record, names), is_simulation=True)
        return node_verdicts(self.ledger, self._answers, self.opposition, question)

    def refusals(self, pod: Pod, names: Sequence[str]) -> dict[str, str]:
        """kube-scheduler's own refusal of each node, in the words of its event; "" if it accepts the node."""
        return {name: objection.words if objection else "" for name, objection in self.against(pod, names).items()}

    def against(self, pod: Pod, names: Sequence[str]) -> dict[str, Objection | None]:
        """kube-scheduler's own refusal of each node, None if it accepts the node."""
        return dict(self.opposing(pod, names))

    def opposing(self, pod: Pod, names: Sequence[str]) -> Iterator[tuple[str, Objection | None]]:
        """`against` node by node, because a whole cluster takes long."""
        record = self.record(pod)
        for name in names:
            exclusion, short = self.opposition.of(record, name)
            yield name, exclusion or short

    def lacks(self, pod: Pod, name: str, change: Mapping[str, int]) -> str:
        """kube-scheduler's refusal by sums if the pods on the node requested `change` more, "" if there is none.

        `change` has amounts by resource, and the number of pods as "pods".
        """
        node = self.opposition.node(name)
        if node is None:
            return NO_NODE.words if self.opposition.is_known else ""
        record = self._answers.record(pod)
        used = dict(self.opposition.used(record, name))
        for resource, amount in change.items():
            used[resource] = used.get(resource, 0) + amount
        refusal = None if record.needs is None else kube_scheduler.short(node, record.needs, used)
        return "" if refusal is None else refusal.words

    def kubelet_refusals(self, pod: Pod, names: Sequence[str]) -> dict[str, Refusal | None]:
        """The extender's refusal of each node, None if it accepts the node."""
        verdicts = self._answers.verdicts(self._answers.question(pod, names, is_simulation=True))
        return {name: verdicts.refusal(at) for at, name in enumerate(names)}

    def best(self, pod: Pod, names: Sequence[str]) -> str:
        """The node that the strategy scores highest, the first of equal nodes. The pod must fit on all of `names`."""
        scores = self._scores(pod, names)
        return max(names, key=scores.__getitem__)

    def fillings(self, pod: Pod, names: Sequence[str]) -> Iterator[Filling]:
        """Each node, ready to be filled with copies of the pod. Nodes are independent of each other."""
        record = self.record(pod)
        question = self._answers.question(pod, names, is_simulation=True)
        for verdict in self.verdicts(record, names):
            name = verdict.name
            node, precision = self.opposition.node(name), self.precision(name)
            used = self.opposition.used(record, name)
            by_sums = None if node is None else kube_scheduler.room(node, question.requests.needs, used)
            if not verdict.takes_pod:
                yield Filling(name, record, limit=text(verdict.reason))
            elif precision:
                states = list(self._answers.states_for(question, name))
                expected = self._answers.as_expected(record, name)
                affinity = partial(self._answers.affinity_refusal, expected, name)
                yield Filling(name, expected, states, by_sums, is_exact=precision == "exact", affinity=affinity)
            else:
                yield Filling(name, record, count=by_sums[0] if by_sums else 0, limit=_BY_SUMS)

    def precision(self, name: str) -> str:
        """The precision of a node's report, "" without a report."""
        report = self._report(name)
        return "" if report is None else report.precision

    def _report(self, name: str) -> Report | None:
        node_state = self.ledger.node_states.of(name)
        return None if node_state is None else node_state.report

    def _scores(self, pod: Pod, names: Sequence[str]) -> dict[str, int]:
        """Scores of nodes on which the pod fits: kube-scheduler asks about these, and scores are spread over them."""
        question = self._answers.question(pod, names, is_simulation=True)
        return dict(zip(names, self._answers.scores(question).tolist(), strict=True))

    def explain(
        self, record: PodRecord, node: NodeVerdict, score: int = 0, *, with_hints: bool = False
    ) -> NodeExplanation:
        """The explanation of a verdict; runs the one-node model."""
        unexamined = () if record.constraints is None else record.constraints.unexamined
        explained = self._by_kubelet(record, node, score, with_hints=with_hints)
        words = explained.text
        if node.objection is not None:
            words, unless = node.objection.text, _OTHERWISE.get(node.otherwise, "")
            words = f"{words}; {unless}" if node.verdict == "excluded" and unless else words
        return msgspec.structs.replace(
            explained,
            verdict=node.verdict,
            otherwise=node.otherwise if node.verdict == "excluded" else "",
            text=words,
            precision="" if node.objection is not None else explained.precision,
            score=score if node.takes_pod else 0,
            not_looked_at=unexamined if explained.claims is None else _without_claims(unexamined),
        )

    def _by_kubelet(self, record: PodRecord, node: NodeVerdict, score: int, *, with_hints: bool) -> NodeExplanation:
        name, over_budget = node.name, self.ledger.reports.over_budget.get(node.name, "")
        if record.is_too_large:
            return explanation.too_large(name, record.problem)
        question = self._answers.about(record, [name])
        state = next(self._answers.states_for(question, name), None)
        if state is None:
            return explanation.not_reported(name, text(node.gate)).beside(over_budget)
        choice = self.ledger.gates.numa_node.choice(record, name)
        claims = self.ledger.gates.claims
        judged = claims.judge(record, name) if claims.applies(record) else None
        full = record.numa_node if choice.refusal is Refusal.NUMA_NODE_FULL else None
        record = msgspec.structs.replace(record, steered=full if choice.numa is None else choice.numa)
        return (
            explanation.explain(
                name,
                state,
                record.view(state),
                precision=self.precision(name),
                refusal=text(node.gate),
                never=node.otherwise == "never",
                score=score,
                unconfirmed=self.ledger.gates.unconfirmed.why(name),
                report=self._report(name),
                with_hints=with_hints,
                by_chance=node.otherwise == "fits" and self._answers.may_be_refused(record, name),
            )
            .steered_by(choice)
            .with_affinity(self._answers.affinity(msgspec.structs.replace(question, record=record), name))
            .with_claims(judged)
            .beside(over_budget)
        )


def _without_claims(unexamined: Sequence[str]) -> tuple[str, ...]:
    return tuple([words for words in unexamined if words != kube_scheduler.RESOURCE_CLAIMS])
