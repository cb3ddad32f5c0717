"""Nodes that lack markers for the pod, or a NUMA node that the pod requires, and the choice of a NUMA node.

A pod requires NUMA nodes by `topowise.io/numa-node`, by `topowise.io/numa-affinity`, by required terms of
`topowise.io/device-affinity` that only a label makes sure, or by the devices of its claims. All demands are decided
together, as a NUMA node has to meet all of them (steering/choice.py).

kube-scheduler ignores requests of markers (`ignoredResources`), so that a pod with a marker also goes to nodes without
steering. A kubelet ignores the request too if its Node does not list the resource (removeMissingExtendedResources).
Otherwise the kubelet counts, so this gate counts.

Invariant: a cached verdict is used only until its node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Final, TypeAlias

import msgspec

from topowise.bounded import Bounded
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import View
from topowise_scheduler.ledger.gates.affinity import AffinityGate, CacheUntilChange, Terms
from topowise_scheduler.ledger.gates.claimed_nodes import ClaimedNodes
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.node.uncertainty import is_chosen
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.options.steering.choice import Choice, Demand, Views, choose, refusal_of
from topowise_scheduler.options.steering.demands import Beside, beside, demand_of
from topowise_scheduler.options.steering.numa_affinity import PodTerm
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.refusals import Refusal

Markers: TypeAlias = Callable[[str], int | None]
"""Returns how many markers a Node lists as allocatable, None if it does not list the resource."""


def no_markers(name: str) -> None:
    """Returns the markers of a Node that lists none."""


_MOST_BYTES: Final = 1 << 20
_OF_OTHER_PODS: Final = refusals.OF_STEERING | refusals.OF_CLAIMS
_Key: TypeAlias = tuple[str, bytes, int | None, tuple[PodTerm, ...], Terms, frozenset[int], frozenset[str]]


class NumaNodeGate:
    """See `Gate`. Unless the service `steers`, no pod with a required NUMA node fits: the kubelet alone would choose.
    Markers count all the same.

    Preemption is not planned for this gate, except for the devices of claims: it does not know which pods are on a NUMA
    node.
    """

    def __init__(
        self,
        node_states: NodeStates,
        ignored: IgnoredPods,
        affinity: AffinityGate,
        claimed: ClaimedNodes,
        markers: Markers,
        *,
        steers: bool,
    ) -> None:
        self._node_states = node_states
        self._ignored = ignored
        self._affinity = affinity
        self._claimed = claimed
        self._markers = markers
        self._steers = steers
        self._used_by_node = CacheUntilChange[int, tuple[str, frozenset[str]]](node_states)
        # Choices for pods that no other pod and no device draws, by the number of the node's state.
        self._choices: Bounded[tuple[int, bytes, int | None, frozenset[int], bool], Choice]
        self._choices = Bounded(_MOST_BYTES, lambda key, _: 512 + len(key[1]))
        self._cache = CacheUntilChange[tuple[Refusal | None], _Key](
            node_states, lambda key: 512 * (1 + len(key[3]) + len(key[4]))
        )

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if _concerns(question.record):
            may_preempt = _OF_OTHER_PODS if self._claimed.is_required(question.record) else frozenset[Refusal]()
            draft.refuse_each(question, self.refusal, may_preempt)

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        if not _concerns(record):
            return None
        wanted, markers = wanted_markers(record), self._markers(name)
        if markers is None:
            return self._unsteered_refusal(record, name, leaving)
        ignored = frozenset((*self._ignored.on(record.uid, record.priority, name), *leaving))
        if wanted and wanted > markers - self._used(name, {record.uid, *ignored}):
            return Refusal.TOO_FEW_MARKERS
        if not self._steers:
            return self._unsteered_refusal(record, name, leaving)
        return self._numa_refusal(record, name, ignored, leaving) if self._may_require(record, name) else None

    def _unsteered_refusal(self, record: PodRecord, name: str, leaving: Collection[str]) -> Refusal | None:
        """Returns the refusal of a node that cannot steer, if the pod has to be steered there."""
        refusal = Refusal.NODE_HAS_NO_MARKERS if self._steers else Refusal.STEERING_IS_OFF
        if record.numa_node is not None:
            return refusal
        node_state = self._node_states.of(name)
        required = [term for term in record.numa_affinity if term.strength == "require"]
        if not required or node_state is None or node_state.kubelet is None:
            return refusal if required else None
        only = msgspec.structs.replace(record, numa_affinity=tuple(required))
        for demand in _demands(only, node_state, node_state.kubelet, leaving):
            if demand.is_required:
                # What no label would give is the better reason.
                return refusal if demand.numa_nodes else demand.refusal
        return None

    def _may_require(self, record: PodRecord, name: str) -> bool:
        """Returns whether a demand on the NUMA nodes of a node with markers may be required."""
        if record.numa_node is not None or record.steered is not None:
            return True
        return (
            any(term.strength == "require" for term in record.numa_affinity)
            or self._claimed.is_required(record)
            or self._affinity.awaits_label(record, name)
        )

    def _used(self, name: str, ignored: Set[str]) -> int:
        """Returns the number of markers that pods on a node have, or will have, without the pods `ignored`."""
        node_state = self._node_states.of(name)
        if node_state is None:
            return 0
        history, key = node_state.history, (name, frozenset[str]())
        # A node without a report notes no changes.
        used = None if node_state.report is None else self._used_by_node.get(key)
        if used is None:
            used = sum([entry.needs.requests.get(MARKER, 0) for entry in history.entries()])
            self._used_by_node.put(key, used)
        absent = [entry for entry in map(history.entry, ignored) if entry is not None]
        return used - sum([entry.needs.requests.get(MARKER, 0) for entry in absent])

    def _numa_refusal(
        self, record: PodRecord, name: str, ignored: frozenset[str], leaving: Collection[str]
    ) -> Refusal | None:
        is_near = self._claimed.is_required(record)
        near = self._claimed.of(record, name, leaving).near if is_near else frozenset[int]()
        key = (name, record.admission_key, record.numa_node, record.numa_affinity, record.affinity_terms, near, ignored)
        kept = self._cache.get(key)
        if kept is None:
            kept = (self._decided_refusal(record, name, ignored, leaving),)
            self._cache.put(key, kept)
        return kept[0]

    def _decided_refusal(
        self, record: PodRecord, name: str, ignored: frozenset[str], leaving: Collection[str]
    ) -> Refusal | None:
        node_state = self._node_states.of(name)
        if node_state is None or node_state.kubelet is None:
            return Refusal.NO_SUCH_NUMA_NODE
        demands = [demand for demand in _demands(record, node_state, node_state.kubelet, ignored) if demand.is_required]
        # Most nodes have no such pod, which takes no trial.
        impossible = next((demand for demand in demands if not demand.numa_nodes), None)
        if impossible is not None:
            return impossible.refusal
        if _is_alone(record) and self._can_steer(record, name):
            return self.choice(record, name, leaving).refusal
        states = list(self._node_states.states(name, {record.uid, *ignored}))
        of_claims = self._claimed.demands(record, name, states[0], leaving)
        demands += [demand for demand in of_claims if demand.is_required]
        if self._affinity.awaits_label(record, name):
            demands += self._affinity.demands(record, name, states)
        return refusal_of(states, views_of(record), demands)

    def choice(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Choice:
        """Returns the choice of a NUMA node for a pod, nothing to send if the pod requests no marker, or the node has
        no markers or no report."""
        if not self._can_steer(record, name):
            return Choice()
        ignored = {*self._ignored.on(record.uid, record.priority, name), *leaving}
        number = 0 if ignored or not _is_alone(record) else self._node_states.number(name)
        if not number:
            return self._chosen(record, name, ignored, leaving)
        claimed = self._claimed.of(record, name) if self._claimed.applies(record) else None
        near = frozenset[int]() if claimed is None else claimed.near
        key = number, record.admission_key, record.numa_node, near, self._claimed.is_required(record)
        return self._choices.once(key, lambda: self._chosen(record, name, ignored, leaving))

    def _chosen(self, record: PodRecord, name: str, ignored: Set[str], leaving: Collection[str]) -> Choice:
        node_state = self._node_states.of(name)
        states = list(self._node_states.states(name, {record.uid, *ignored}))
        if not states or node_state is None:
            return Choice()
        demands = [
            *_demands(record, node_state, states[0], ignored),
            *self._claimed.demands(record, name, states[0], leaving),
            *self._affinity.demands(record, name, states),
        ]
        return choose(states, views_of(record), demands)

    def steered_in(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], near: frozenset[int]
    ) -> PodRecord | None:
        """Returns the pod as it would come to a node in these states: steered to a NUMA node of its devices if it can
        be steered, None if none of these NUMA nodes takes the pod."""
        record = msgspec.structs.replace(record, steered=None)
        if not near or not self._can_steer(record, name):
            return record
        of_claims = Demand(near, "the devices of its claims", refusal=Refusal.CLAIMS_APART)
        choice = choose(states, views_of(record), [of_claims])
        return None if choice.numa is None else msgspec.structs.replace(record, steered=choice.numa)

    def must_be_steered(self, record: PodRecord, name: str) -> bool:
        """Returns whether the pod must not be bound without a label to a node on which it fits."""
        can_be = self._can_steer(record, name) and self._may_require(record, name)
        return can_be and self.choice(record, name).is_required

    def expected_on(self, record: PodRecord, name: str) -> int | None:
        """Returns the NUMA node of a reservation on a node that fits, None if the kubelet alone chooses."""
        if record.numa_node is not None or not self._can_steer(record, name):
            return record.numa_node
        if self._claimed.applies(record):
            # Preferred or required, the bind steers the pod to the devices of its claims.
            return self.choice(record, name).numa
        choice = self.choice(record, name) if self._may_require(record, name) else Choice()
        return choice.numa if choice.is_required else None

    def _can_steer(self, record: PodRecord, name: str) -> bool:
        return self._steers and _concerns(record) and bool(self._markers(name))


def _demands(record: PodRecord, node_state: NodeState, node: Kubelet, leaving: Collection[str]) -> Iterator[Demand]:
    """Yields what the annotations of the pod about NUMA nodes demand, and the NUMA node of a pod that is steered."""
    if record.steered is not None:
        yield Demand(frozenset((record.steered,)), "the request to the node")
    if record.numa_node is not None:
        yield Demand(frozenset((record.numa_node,)), f"numa-node {record.numa_node}")
    for term in record.numa_affinity:
        demand = demand_of(term, _beside(node_state, record, term, leaving), node.node_ids)
        if demand is not None:
            yield demand


def _is_alone(record: PodRecord) -> bool:
    """Returns whether the choice for the pod depends on no other pod and no distance between devices."""
    return not record.numa_affinity and not record.affinity_terms


def _concerns(record: PodRecord) -> bool:
    """Returns whether the gate has anything to decide: the pod takes markers, or has a demand."""
    return record.numa_node is not None or bool(record.numa_affinity) or bool(wanted_markers(record))


def _beside(node_state: NodeState, record: PodRecord, term: PodTerm, leaving: Collection[str]) -> Beside:
    """Returns where the pods are that a term selects: bound pods, as other pods may go elsewhere."""
    history, node = node_state.history, node_state.kubelet
    if node is None:
        return Beside()
    selected = [
        entry
        for entry in (*history.settled.values(), *history.log)
        if term.selects(entry.record.namespace, entry.record.name, entry.record.labels)
        and entry.uid != record.uid
        and entry.uid not in leaving
    ]
    return beside(
        node,
        [(entry.record.view(node), entry.seen.listed is not None or is_chosen(entry, node)) for entry in selected],
    )


def wanted_markers(record: PodRecord) -> int:
    """Returns the number of markers that a pod requests."""
    return 0 if record.needs is None else record.needs.requests.get(MARKER, 0)


def may_be_steered(markers: Markers, record: PodRecord, name: str) -> bool:
    """Returns whether a node has markers that the pod requests."""
    return bool(wanted_markers(record)) and bool(markers(name))


def views_of(record: PodRecord) -> Views:
    """Returns the views of a pod by the NUMA node of the markers."""

    def view(numa: int | None) -> View:
        return msgspec.structs.replace(record, steered=numa).view

    return view
