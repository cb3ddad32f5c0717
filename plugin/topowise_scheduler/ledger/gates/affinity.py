"""Nodes whose devices would not be as near each other as the pod requires, for every choice that the kubelet may make.

Invariant: a cached verdict is used only until its node changes. Its key has the shape of the pod, like that of every
verdict, the pod's affinity terms, and the pods that do not count for the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.options.device_affinity import (
    AffinityTerm,
    AffinityVerdict,
    Devices,
    Settings,
    judge,
    may_refuse,
)
from topowise_scheduler.options.steering.choice import Demand
from topowise_scheduler.verdicts.refusals import Refusal

_MOST_BYTES: Final = 16 << 20

Terms: TypeAlias = tuple[AffinityTerm, ...]
Steers: TypeAlias = Callable[[PodRecord, str], bool]
"""Returns whether a node has markers that the pod requests."""
_Key: TypeAlias = tuple[str, bytes, Terms, frozenset[str]]
Value = TypeVar("Value")
Key = TypeVar("Key", bound=tuple[Any, ...])


class AffinityGate:
    """See `Gate`. The one-node model decides pod by pod and node by node.

    Fewer pods on a node need not bring its devices nearer to each other, so preemption does not help against this gate.
    """

    def __init__(self, node_states: NodeStates, ignored: IgnoredPods, settings: Settings, steers: Steers) -> None:
        self._node_states = node_states
        self._ignored = ignored
        self._settings = settings
        self._steers = steers
        # Bytes: a verdict on each affinity term.
        self._judged = CacheUntilChange[AffinityVerdict, _Key](node_states, lambda key: 512 * (1 + len(key[2])))
        self._by_chance = CacheUntilChange[bool, _Key](node_states)

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if _is_required(question.record):
            draft.refuse_each(question, self.refusal)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        node_state = self._node_states.of(name)
        is_as_judged = record.steered is None and node_state is not None and node_state.is_as_judged(record.uid)
        if not record.demands.affinity_terms or is_as_judged:
            return None
        if not leaving:
            # With a label, the gate of NUMA nodes decides.
            return None if self.awaits_label(record, name) else self.of(record, name).refusal(self._settings.admits)
        ignored = self._ignored.on(record.uid, record.priority, name)
        return self.refusal_in(record, name, self._node_states.states(name, {record.uid, *ignored, *leaving}))

    def awaits_label(self, record: PodRecord, name: str) -> bool:
        """Returns whether the node does not meet the required terms by the choice of its kubelet alone, but may with a
        label on its markers."""
        if record.steered is not None or not _is_required(record) or not self._steers(record, name):
            return False
        judged = self.of(record, name)
        return judged.required in ("possible", "impossible") and bool(judged.refusal(self._settings.admits))

    def demands(self, record: PodRecord, name: str, states: Sequence[Kubelet]) -> Iterator[Demand]:
        """Yields what the affinity terms demand of the NUMA nodes of a node: the NUMA nodes on which a label makes, or
        keeps, each term sure."""
        if not record.demands.affinity_terms:
            return
        alone = self.judged_in(record, name, states)
        by_numa = {
            numa: self.judged_in(msgspec.structs.replace(record, steered=numa), name, states)
            for numa in states[0].node_ids
        }
        admitted = {"sure", self._settings.admits}
        for at, term in enumerate(record.demands.affinity_terms):
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
        """Returns why the devices of a node in these states would not do for the pod, None if they would.

        `guessed` are pods in the states whose devices are not known, beside the pods of the ledger.
        """
        if not record.demands.affinity_terms:
            return None
        return self.judged_in(record, name, states, guessed).refusal(self._settings.admits)

    def of(self, record: PodRecord, name: str) -> AffinityVerdict:
        """Returns the affinity verdict of the node for a pod with affinity terms, whose amounts must be readable."""
        key = self._key(record, name, record.demands.affinity_terms)
        judged = self._judged.get(key)
        if judged is None:
            judged = self.judged_in(record, name, self._states(record, key))
            self._judged.put(key, judged)
        return judged

    def may_be_refused(self, record: PodRecord, name: str) -> bool:
        """Whether a fitting node may refuse the pod by its choice of devices (device_affinity/refusal_risk.py)."""
        assert record.requests is not None
        if not record.requests.shared_devices:
            return False
        key = self._key(record, name, ())
        may_be = self._by_chance.get(key)
        if may_be is None:
            state = next(self._states(record, key), None)
            may_be = state is not None and self.may_be_refused_in(record, state)
            self._by_chance.put(key, may_be)
        return may_be

    def may_be_refused_in(self, record: PodRecord, state: Kubelet) -> bool:
        """Returns `may_be_refused` for a node in this state, of a pod with shared devices."""
        assert record.requests is not None
        return may_refuse(state, record.view(state), record.requests.shared_devices, self._settings.rules)

    def judged_in(
        self, record: PodRecord, name: str, states: Iterable[Kubelet], guessed: Collection[str] = ()
    ) -> AffinityVerdict:
        """Returns the affinity verdict of a node in these states (see `refusal_in`)."""
        assert record.needs is not None
        node_state = self._node_states.of(name)
        places, unlisted = Devices({}) if node_state is None else node_state.located_devices()
        devices = Devices(places, {*unlisted, *guessed})
        return judge(record.demands.affinity_terms, record.needs, states, record.view, devices, self._settings)

    def _key(self, record: PodRecord, name: str, affinity_terms: tuple[AffinityTerm, ...]) -> _Key:
        ignored = frozenset(self._ignored.on(record.uid, record.priority, name))
        return name, record.admission_key, affinity_terms, ignored

    def _states(self, record: PodRecord, key: _Key) -> Iterator[Kubelet]:
        name, _, _, ignored = key
        return self._node_states.states(name, {record.uid, *ignored})


def _is_required(record: PodRecord) -> bool:
    return any(term.strength == "require" for term in record.demands.affinity_terms)


class CacheUntilChange(Generic[Value, Key]):
    """Values of nodes that have not changed since; bounded in bytes. A key begins with the node and ends with UIDs."""

    def __init__(self, node_states: NodeStates, size: Callable[[Key], int] = lambda _: 512) -> None:
        self._node_states = node_states
        self._values: Bounded[Key, tuple[int, Value]]
        self._values = Bounded(_MOST_BYTES, lambda key, _: size(key) + 100 * len(key[-1]))

    def get(self, key: Key) -> Value | None:
        value = self._values.get(key)
        return value[1] if value is not None and value[0] == self._node_states.changed_at(key[0]) else None

    def put(self, key: Key, value: Value) -> None:
        self._values.put(key, (self._node_states.changed_at(key[0]), value))
