"""Why each node accepts or refuses a pod, and how many more copies it takes, for any node that a person names.

Verdicts are those of overlay/trial.py and the gates. Scores are made for the nodes that kube-scheduler would ask about.
Copies are placed until the kubelet or the node's sums refuse.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import msgspec

from topowise.bounded import Bounded, size_of_json
from topowise.pods import Amounts
from topowise_scheduler.explain import explanation
from topowise_scheduler.explain.explanation import NodeExplanation, Verdict
from topowise_scheduler.explain.node_verdicts import NodeVerdict, node_verdicts
from topowise_scheduler.explain.refusal_texts import text, value
from topowise_scheduler.kubelet import Kubelet, allocated_nodes, free_amounts
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.options.device_affinity.gate import DeviceAffinityOption
from topowise_scheduler.options.device_affinity.outcomes import NO_TERMS
from topowise_scheduler.options.steering.annotation import NO_DEMAND
from topowise_scheduler.options.steering.choice import Choice
from topowise_scheduler.options.steering.gate import SteeringOption
from topowise_scheduler.overlay.overlay import Overlay, Unfit
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Pod
from topowise_scheduler.verdicts.refusals import Refusal

MOST: Final = 1000
"""Copies tried on a node: more than any kubelet takes (maxPods), which is not known of every node."""
_NO_FURTHER: Final = f"not tried beyond {MOST}"
_BY_SUMS: Final = "not reported: only node allocatable was checked"
_OTHERWISE: Final[dict[Verdict, str]] = {
    "fits": "the pod would fit otherwise",
    "not now": "the pod would not fit now otherwise",
    "never": "the pod would never fit otherwise",
}
_MOST_BYTES: Final = 8 << 20


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """The number of copies that fit on a node, the NUMA nodes of the first copy, and the reason for the end.

    `refusal` is the refusing check as in `NodeExplanation`, "" where node allocatable or `MOST` ends the count.
    """

    node: str
    count: int
    first: str = "-"
    limit: str = ""
    refusal: str = ""


def room_on(trial: Trial, record: PodRecord, verdict: NodeVerdict) -> Room:
    """Returns the room for copies of a pod on the node of a verdict about the pod."""
    name, node, precision = verdict.name, trial.node(verdict.name), trial.precision(verdict.name)
    if not verdict.takes_pod or record.needs is None:
        return Room(name, 0, limit=text(verdict.reason), refusal=value(verdict.reason))
    by_sums = None if node is None else kube_scheduler.room(node, record.needs, trial.used(record, name))
    if not precision:
        return Room(name, by_sums[0] if by_sums else 0, limit=_BY_SUMS)
    most, last = by_sums if by_sums is not None and by_sums[0] <= MOST else (MOST, _NO_FURTHER)
    overlay, first = Overlay(trial), "-"
    for count in range(most):
        placed = overlay.place(record, name)
        if isinstance(placed, Unfit):
            limit = _explained(name, placed, precision)
            return Room(name, count, first=first, limit=limit, refusal=value(placed.reason))
        overlay = placed.overlay
        if not count:
            containers = allocated_nodes.placements(placed.state, placed.record.uid, is_exact=precision == "exact")
            first = allocated_nodes.in_words(containers)
    return Room(name, most, first=first, limit=last)


def _explained(name: str, unfit: Unfit, precision: str) -> str:
    if unfit.state is None or unfit.record is None:
        return text(unfit.reason)
    return explanation.explain(name, unfit.state, unfit.record.view(unfit.state), precision=precision).text


class ClusterView:
    """All nodes, reported or not. Every method raises ParseError for a pod whose amounts cannot be read."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.ledger = trial.ledger
        self._answers = trial.answers
        self.waiting: Bounded[Hashable, tuple[tuple[int, int, int], float, Any]] = Bounded(_MOST_BYTES, size_of_json)
        """The views of waiting pods, with `changes` and the end of their validity (waiting.py)."""
        self._free: Bounded[str, tuple[int, list[Amounts]]] = Bounded(_MOST_BYTES, lambda _, free: 100 * len(free[1]))

    def explanations(self, pod: Pod, names: Sequence[str], *, with_hints: bool = False) -> list[NodeExplanation]:
        """An explanation for each node, in order. Runs the one-node model; too slow for a verb."""
        return [
            explanation for explanation in self.explaining(pod, names, with_hints=with_hints) if explanation is not None
        ]

    def explaining(
        self, pod: Pod, names: Sequence[str], *, with_hints: bool = False
    ) -> Iterator[NodeExplanation | None]:
        """`explanations` in steps, because a whole cluster takes seconds; a step without a result yields None."""
        record = self.trial.record(pod)
        yield from self._answers.steps(self._answers.about(record, names))
        verdicts = []
        for node_verdict in self.verdicts(record, names):
            verdicts.append(node_verdict)
            yield None
        scores = self._scores(pod, [node.name for node in verdicts if node.takes_pod])
        for node_verdict in verdicts:
            yield self.explain(record, node_verdict, scores.get(node_verdict.name, 0), with_hints=with_hints)

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

    def verdicts(self, record: PodRecord, names: Sequence[str]) -> Iterator[NodeVerdict]:
        """The verdict of each node, in order."""
        question = msgspec.structs.replace(self._answers.about(record, names), is_simulation=True)
        return node_verdicts(self.trial, question)

    def kubelet_refusals(self, pod: Pod, names: Sequence[str]) -> dict[str, Refusal | None]:
        """The extender's refusal of each node, None if it accepts the node."""
        verdicts = self._answers.verdicts(self._answers.question(pod, names, is_simulation=True))
        return {name: verdicts.refusal(at) for at, name in enumerate(names)}

    def best(self, pod: Pod, names: Sequence[str]) -> str:
        """The node that the strategy scores highest, the first of equal nodes. The pod must fit on all of `names`."""
        scores = self._scores(pod, names)
        return max(names, key=scores.__getitem__)

    def rooms(self, pod: Pod, names: Sequence[str]) -> list[Room]:
        """How many copies of the pod fit on each node. Nodes are independent of each other."""
        record = self.trial.question(pod, names).record
        return [room_on(self.trial, record, verdict) for verdict in self.verdicts(record, names)]

    def _scores(self, pod: Pod, names: Sequence[str]) -> dict[str, int]:
        """Scores of nodes on which the pod fits: kube-scheduler asks about these, and scores are spread over them."""
        question = self._answers.question(pod, names, is_simulation=True)
        return dict(zip(names, self._answers.scores(question).tolist(), strict=True))

    def explain(
        self, record: PodRecord, node: NodeVerdict, score: int = 0, *, with_hints: bool = False
    ) -> NodeExplanation:
        """The explanation of a verdict; runs the one-node model."""
        explained = self._by_kubelet(record, node, score, with_hints=with_hints)
        unexamined = self.trial.unexamined(record)
        if explained.claims is not None:
            unexamined = tuple([words for words in unexamined if words != kube_scheduler.RESOURCE_CLAIMS])
        words = explained.text
        if node.objection is not None:
            words, unless = node.objection.text, _OTHERWISE.get(node.otherwise, "")
            words = f"{words}; {unless}" if node.obstacle in ("excluded", "other pods") and unless else words
        return msgspec.structs.replace(
            explained,
            verdict=node.verdict,
            otherwise=node.otherwise if node.verdict == "excluded" else "",
            refusal=value(node.reason),
            text=words,
            precision="" if node.objection is not None else explained.precision,
            score=score if node.takes_pod else 0,
            not_looked_at=unexamined,
        )

    def _by_kubelet(self, record: PodRecord, node: NodeVerdict, score: int, *, with_hints: bool) -> NodeExplanation:
        name, over_budget = node.name, self.ledger.reports.over_budget.get(node.name, "")
        if record.is_too_large:
            return explanation.too_large(name, str(record.problem))
        question = self._answers.about(record, [name])
        state = next(self._answers.states_for(question, name), None)
        node_state = self.ledger.node_states.of(name)
        report = None if node_state is None else node_state.report
        if state is None:
            return explanation.not_reported(name, text(node.gate)).beside(over_budget)
        gates = self.ledger.gates
        steering, claims = gates.option(SteeringOption), gates.option(ClaimOption)
        near = gates.option(DeviceAffinityOption) if record.demand(NO_TERMS).terms else None
        choice = Choice() if steering is None else steering.choice(record, name)
        judged = claims.judge(record, name) if claims is not None and claims.nodes.applies(record) else None
        full = record.demand(NO_DEMAND).numa_node if choice.refusal is Refusal.NUMA_NODE_FULL else None
        record = msgspec.structs.replace(record, steered=full if choice.numa is None else choice.numa)
        return (
            explanation.explain(
                name,
                state,
                record.view(state),
                precision=self.trial.precision(name),
                refusal=text(node.gate),
                never=node.otherwise == "never",
                score=score,
                unconfirmed=self.ledger.gates.unconfirmed.why(name),
                report=report,
                with_hints=with_hints,
                by_chance=node.otherwise == "fits" and self._answers.may_be_refused(record, name),
            )
            .steered_by(choice)
            .with_affinity(None if near is None else near.of(record, name))
            .with_claims(judged)
            .beside(over_budget)
        )
