"""Nodes whose devices would not be as near each other as the pod requires, for every choice that the kubelet may make.

Invariant: a cached verdict is used only until its node changes. Its key has the shape of the pod, like that of every
verdict, the pod's affinity terms, and the pods that do not count for the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods
from topowise_scheduler.ledger.gates.option import ChangedNode, Cluster, Option
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import CacheUntilChange
from topowise_scheduler.options.device_affinity.affinity_terms import AffinityTerm
from topowise_scheduler.options.device_affinity.choices import may_refuse
from topowise_scheduler.options.device_affinity.outcomes import NO_TERMS, AffinityVerdict, Devices, Settings, judge
from topowise_scheduler.options.steering.choice import Demand
from topowise_scheduler.options.steering.gate import Source
from topowise_scheduler.verdicts.engine import Ratings
from topowise_scheduler.verdicts.refusals import Refusal
from topowise_scheduler.verdicts.strategies import Rated, ranks

# The best nodes that are checked for a refusal by the kubelet's own choice of devices.
_MOST_DRAWS: Final = 8

Terms: TypeAlias = tuple[AffinityTerm, ...]
Steers: TypeAlias = Callable[[PodRecord, str], bool]
"""Returns whether a node has markers that the pod requests."""
_Key: TypeAlias = tuple[str, bytes, Terms, frozenset[str]]


class DeviceAffinityOption(Option, Source):
    """See `Option`. The one-node model decides pod by pod and node by node.

    Fewer pods on a node need not bring its devices nearer to each other, so preemption does not help against this gate.
    """

    def __init__(self, cluster: Cluster, settings: Settings, steers: Steers) -> None:
        self._node_states = cluster.node_states
        self._ignored = cluster.ignored
        self._settings = settings
        self._steers = steers
        # Bytes: a verdict on each affinity term.
        self._judged = CacheUntilChange[AffinityVerdict, _Key](cluster.node_states, lambda key: 512 * (1 + len(key[2])))

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if question.record.demand(NO_TERMS).is_required:
            draft.refuse_each(question, self.refusal)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        node_state = self._node_states.of(name)
        is_as_judged = record.steered is None and node_state is not None and node_state.is_as_judged(record.uid)
        if is_as_judged or not _terms(record):
            return None
        if not leaving:
            # With a label, the gate of NUMA nodes decides.
            return None if self.requires_label(record, name) else self.of(record, name).refusal(self._settings.admits)
        ignored = self._ignored.on(record.uid, record.priority, name)
        return self.refusal_in(record, name, self._node_states.states(name, {record.uid, *ignored, *leaving}))

    def minds_order(self, record: PodRecord, name: str) -> bool:
        """See `Option`."""
        return record.steered is None and record.demand(NO_TERMS).is_required

    def graded(self, question: Question, ratings: Ratings, changed: Mapping[str, ChangedNode]) -> Ratings:
        """See `Option`. Within a rank, the more terms are met the better."""
        record, terms = question.record, _terms(question.record)
        if not terms:
            return ratings
        grades = [self._of(record, question.names[at], changed).grade for at in ratings.at.tolist()]
        return ratings._replace(ranks=ranks.refined(ratings.ranks, np.array(grades, np.int64), 2 * len(terms)))

    # A source of steering (steering/gate.py)

    def may_be_shared(self, record: PodRecord) -> bool:
        """See `Source`. The distances between devices are not in the number of a node's state."""
        return not _terms(record)

    def requires_label(self, record: PodRecord, name: str) -> bool:
        """Returns whether the node does not meet the required terms by the choice of its kubelet alone, but may with a
        label on its markers."""
        is_required = record.demand(NO_TERMS).is_required
        if record.steered is not None or not is_required or not self._steers(record, name):
            return False
        judged = self.of(record, name)
        return judged.required in ("possible", "impossible") and bool(judged.refusal(self._settings.admits))

    def demands(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], leaving: Collection[str]
    ) -> Iterator[Demand]:
        """Yields what the affinity terms demand of the NUMA nodes of a node: the NUMA nodes on which a label makes, or
        keeps, each term sure."""
        if not _terms(record):
            return
        alone = self._judge(record, name, states)
        by_numa = {
            numa: self._judge(msgspec.structs.replace(record, steered=numa), name, states)
            for numa in states[0].node_ids
        }
        admitted = {"sure", self._settings.admits}
        for at, term in enumerate(_terms(record)):
            why = f"device-affinity {term}"
            outcome, outcomes = alone.outcomes[at], {numa: judged.outcomes[at] for numa, judged in by_numa.items()}
            accepted = frozenset([numa for numa, of_numa in outcomes.items() if of_numa in admitted])
            sure = frozenset([numa for numa, of_numa in outcomes.items() if of_numa == "sure"])
            if term.strength == "require":
                refusal = alone.refusal(self._settings.admits) or Refusal.NOT_SURELY_NEAR
                yield Demand(accepted, why, needs_label=outcome not in admitted, refusal=refusal)
            if sure and (term.strength == "prefer" or sure != accepted):
                yield Demand(sure, why, is_required=False, needs_label=outcome != "sure")

    def refusal_in(
        self, record: PodRecord, name: str, states: Iterable[Kubelet], guessed: Collection[str] = ()
    ) -> Refusal | None:
        """See `Option`."""
        if not _terms(record):
            return None
        return self._judge(record, name, states, guessed).refusal(self._settings.admits)

    def refusal_of_new(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], guessed: Collection[str]
    ) -> Refusal | None:
        """See `Option`."""
        return self.refusal_in(record, name, states, guessed)

    def of(self, record: PodRecord, name: str) -> AffinityVerdict:
        """Returns the affinity verdict of the node for a pod with affinity terms, whose amounts must be readable."""
        key = _key(self._ignored, record, name, _terms(record))
        judged = self._judged.get(key)
        if judged is None:
            judged = self._judge(record, name, self._node_states.states(name, {record.uid, *key[-1]}))
            self._judged.put(key, judged)
        return judged

    def _of(self, record: PodRecord, name: str, changed: Mapping[str, ChangedNode]) -> AffinityVerdict:
        node = changed.get(name)
        return self.of(record, name) if node is None else self._judge(record, name, node.states, tuple(node.placed))

    def _judge(
        self, record: PodRecord, name: str, states: Iterable[Kubelet], guessed: Collection[str] = ()
    ) -> AffinityVerdict:
        assert record.needs is not None
        node_state = self._node_states.of(name)
        report = None if node_state is None else node_state.report
        if node_state is None or report is None:
            devices = Devices({}, guessed)
        else:
            devices = Devices(report.places, {*node_state.unlisted(), *guessed})
        return judge(_terms(record), record.needs, states, record.view, devices, self._settings)


class ChanceOption(Option):
    """See `Option`. Nodes that may refuse a pod by their kubelet's choice of devices rank behind nodes that do not
    (choices.py)."""

    concerns_every_pod = True

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._node_states = cluster.node_states
        self._ignored = cluster.ignored
        self._settings = settings
        self._by_chance = CacheUntilChange[bool, _Key](cluster.node_states)

    def in_order(self, question: Question, rated: Rated, changed: Mapping[str, ChangedNode]) -> Rated:
        """See `Option`."""
        if not question.requests.shared_devices:
            return rated
        best = rated.best(_MOST_DRAWS).tolist()
        sure = [at for at in best if not self._may_be_refused(question.record, question.names[at], changed)]
        # All other nodes keep their order behind the sure nodes.
        if not 0 < len(sure) < len(best):
            return rated
        return rated._replace(ranks=ranks.first(rated.ranks, np.isin(rated.at, sure)))

    def may_be_refused(self, record: PodRecord, name: str) -> bool:
        """See `Option`."""
        assert record.requests is not None
        if not record.requests.shared_devices:
            return False
        key = _key(self._ignored, record, name, ())
        may_be = self._by_chance.get(key)
        if may_be is None:
            state = next(self._node_states.states(name, {record.uid, *key[-1]}), None)
            may_be = state is not None and self._may_be_refused_in(record, state)
            self._by_chance.put(key, may_be)
        return may_be

    def _may_be_refused(self, record: PodRecord, name: str, changed: Mapping[str, ChangedNode]) -> bool:
        node = changed.get(name)
        return self.may_be_refused(record, name) if node is None else self._may_be_refused_in(record, node.states[0])

    def _may_be_refused_in(self, record: PodRecord, state: Kubelet) -> bool:
        assert record.requests is not None
        return may_refuse(state, record.view(state), record.requests.shared_devices, self._settings.rules)


def _terms(record: PodRecord) -> Terms:
    return record.demand(NO_TERMS).terms


def _key(ignored: IgnoredPods, record: PodRecord, name: str, terms: Terms) -> _Key:
    return name, record.admission_key, terms, frozenset(ignored.on(record.uid, record.priority, name))
