"""Nodes that lack markers for the pod, or a NUMA node that the pod requires, and the choice of a NUMA node.

A pod requires NUMA nodes by `topowise.io/numa-node`, by `topowise.io/numa-affinity`, or by another option (`Source`).
All demands are decided together, as a NUMA node has to meet all of them (choice.py).

kube-scheduler ignores requests of markers (`ignoredResources`), so that a pod with a marker also goes to nodes without
steering. A kubelet ignores the request too if its Node does not list the resource (removeMissingExtendedResources).
Otherwise the kubelet counts, so this gate counts.

Invariant: a cached verdict is used only until its node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence, Set
from typing import Final, NamedTuple, TypeAlias

import msgspec

from topowise.bounded import Bounded
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import Mask, union
from topowise_scheduler.ledger.gates.gate import Draft, Question
from topowise_scheduler.ledger.gates.option import Cluster, CopiedNode, Expected, Option
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.node.uncertainty import is_chosen
from topowise_scheduler.ledger.pods.demands import Demands
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import CacheUntilChange
from topowise_scheduler.options.steering.annotation import NO_DEMAND, PodTerm
from topowise_scheduler.options.steering.choice import Choice, Demand, choose, has_amounts, refusal_of, views_of
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.refusals import Refusal

Markers: TypeAlias = Callable[[str], int | None]
"""Returns how many markers a Node lists as allocatable, None if it does not list the resource."""


def no_markers(name: str) -> None:
    """Returns the markers of a Node that lists none."""


_MOST_BYTES: Final = 1 << 20
_OF_OTHER_PODS: Final = refusals.OF_STEERING | refusals.OF_CLAIMS
_Key: TypeAlias = tuple[str, bytes, Demands, tuple[Hashable, ...], frozenset[str]]


class Source:
    """Another option that demands NUMA nodes of steered pods; a source without any demand."""

    def demands(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], leaving: Collection[str]
    ) -> Iterator[Demand]:
        """Yields what the option demands of the NUMA nodes of a node in these states, once the pods `leaving` have
        left."""
        return iter(())

    def key(self, record: PodRecord, name: str, leaving: Collection[str]) -> Hashable:
        """Returns a key that is equal for pods of equal `demands` (PodRecord) that get the same on equal nodes."""
        return None

    def may_be_shared(self, record: PodRecord) -> bool:
        """Returns whether nodes with the same number (NodeStates.number) and key get the same demands."""
        return True

    def requires_label(self, record: PodRecord, name: str) -> bool:
        """Returns whether a demand may be required that the kubelet alone does not meet."""
        return False

    def always_steers(self, record: PodRecord) -> bool:
        """Returns whether the pod is steered for a demand that is only preferred, too."""
        return False

    def may_preempt(self, record: PodRecord) -> bool:
        """Returns whether evictions may open a node that a required demand closes."""
        return False


class SteeringOption(Option):
    """See `Option`. Unless the service `steers`, no pod with a required NUMA node fits: the kubelet alone would choose.
    Markers count all the same.

    Preemption is planned for sources alone that know of which pods their demands are: annotations do not.
    """

    def __init__(self, cluster: Cluster, sources: Sequence[Source], markers: Markers, *, steers: bool) -> None:
        self._node_states = cluster.node_states
        self._ignored = cluster.ignored
        self._sources = sources
        self._markers = markers
        self._steers = steers
        self._used_by_node = CacheUntilChange[int, tuple[str, frozenset[str]]](cluster.node_states)
        # Choices for pods that no other pod and no device draws, by the number of the node's state.
        self._choices: Bounded[tuple[int, bytes, int | None, tuple[Hashable, ...]], Choice]
        self._choices = Bounded(_MOST_BYTES, lambda key, _: 512 + len(key[1]))
        self._cache = CacheUntilChange[tuple[Refusal | None], _Key](
            cluster.node_states, lambda key: 2048 + sum([demand.size for demand in key[2].of_options])
        )

    def verdicts(self, question: Question, draft: Draft) -> None:
        """See `Gate`."""
        if _concerns(question.record):
            may_preempt = any(source.may_preempt(question.record) for source in self._sources)
            draft.refuse_each(question, self.refusal, _OF_OTHER_PODS if may_preempt else ())

    def refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """See `Gate`."""
        if not _concerns(record):
            return None
        wanted, markers = record.demand(NO_DEMAND).markers, self._markers(name)
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
        if record.demand(NO_DEMAND).numa_node is not None:
            return refusal
        node_state = self._node_states.of(name)
        if not _has_required_term(record) or node_state is None or node_state.kubelet is None:
            return refusal if _has_required_term(record) else None
        for demand in demands_of(record, node_state, node_state.kubelet, leaving):
            if demand.is_required:
                # What no label would give is the better reason.
                return refusal if demand.numa_nodes else demand.refusal
        return None

    def _may_require(self, record: PodRecord, name: str) -> bool:
        """Returns whether a demand on the NUMA nodes of a node with markers may be required."""
        if record.demand(NO_DEMAND).numa_node is not None or record.steered is not None:
            return True
        return _has_required_term(record) or any(source.requires_label(record, name) for source in self._sources)

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
        of_sources = tuple([source.key(record, name, leaving) for source in self._sources])
        key = name, record.admission_key, record.demands, of_sources, ignored
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
        demands = [
            demand for demand in demands_of(record, node_state, node_state.kubelet, ignored) if demand.is_required
        ]
        # Most nodes have no such pod, which takes no trial.
        impossible = next((demand for demand in demands if not demand.numa_nodes), None)
        if impossible is not None:
            return impossible.refusal
        if self._is_alone(record) and self._can_steer(record, name):
            return self.choice(record, name, leaving).refusal
        states = list(self._node_states.states(name, {record.uid, *ignored}))
        for source in self._sources:
            if source.requires_label(record, name):
                demands += source.demands(record, name, states, leaving)
        return refusal_of(states, views_of(record), demands)

    def standing(self, record: PodRecord, name: str, leaving: Collection[str]) -> Refusal | None:
        """See `Option`."""
        return self.refusal(record, name, leaving)

    def refusal_in(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], guessed: Collection[str] = ()
    ) -> Refusal | None:
        """See `Option`. Some kubelets would admit the pod elsewhere than it requires."""
        node_state = self._node_states.of(name)
        if node_state is None or not states or not self._can_steer(record, name):
            return None
        record = msgspec.structs.replace(record, steered=None)
        demands = [demand for demand in demands_of(record, node_state, states[0], ()) if demand.is_required]
        return refusal_of(states, views_of(record), demands)

    def choice(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Choice:
        """Returns the choice of a NUMA node for a pod, nothing to send if the pod requests no marker, or the node has
        no markers or no report."""
        if not self._can_steer(record, name):
            return Choice()
        ignored = {*self._ignored.on(record.uid, record.priority, name), *leaving}
        number = 0 if ignored or not self._is_alone(record) else self._node_states.number(name)
        if not number:
            return self._chosen(record, name, ignored, leaving)
        of_sources = tuple([source.key(record, name, ()) for source in self._sources])
        key = number, record.admission_key, record.demand(NO_DEMAND).numa_node, of_sources
        return self._choices.once(key, lambda: self._chosen(record, name, ignored, leaving))

    def _chosen(self, record: PodRecord, name: str, ignored: Set[str], leaving: Collection[str]) -> Choice:
        node_state = self._node_states.of(name)
        states = list(self._node_states.states(name, {record.uid, *ignored}))
        if not states or node_state is None:
            return Choice()
        demands = list(demands_of(record, node_state, states[0], ignored))
        for source in self._sources:
            demands += source.demands(record, name, states, leaving)
        return choose(states, views_of(record), demands)

    def steered_in(self, record: PodRecord, name: str, states: Sequence[Kubelet], demand: Demand) -> PodRecord | None:
        """Returns the pod as it would come to a node in these states for this demand: steered if it can be, None if no
        NUMA node that meets the demand takes the pod."""
        record = msgspec.structs.replace(record, steered=None)
        if not demand.numa_nodes or not self._can_steer(record, name):
            return record
        choice = choose(states, views_of(record), [demand])
        return None if choice.numa is None else msgspec.structs.replace(record, steered=choice.numa)

    def needs_prebind(self, record: PodRecord, name: str) -> bool:
        """See `Option`. Returns whether the pod must not be bound without a label."""
        can_be = self._can_steer(record, name) and self._may_require(record, name)
        return can_be and self.choice(record, name).is_required

    def expected(self, record: PodRecord, name: str) -> PodRecord:
        """See `Option`."""
        return msgspec.structs.replace(record, steered=self._expected_on(record, name))

    def expected_in(self, expected: Expected, name: str, node: CopiedNode) -> Expected:
        """See `Option`. A pod that is moved keeps the request to its node, unless another NUMA node is chosen. On a
        new node, which has no other pods to be near, a pod has what it demands by itself."""
        numa = None if node.is_new else self._expected_on(expected.record, name)
        if numa is None:
            return expected
        return expected._replace(record=msgspec.structs.replace(expected.record, steered=numa))

    def _expected_on(self, record: PodRecord, name: str) -> int | None:
        """Returns the NUMA node of a reservation on a node that fits, None if the kubelet alone chooses."""
        required = record.demand(NO_DEMAND).numa_node
        if required is not None or not self._can_steer(record, name):
            return required
        if any(source.always_steers(record) for source in self._sources):
            return self.choice(record, name).numa
        choice = self.choice(record, name) if self._may_require(record, name) else Choice()
        return choice.numa if choice.is_required else None

    def _can_steer(self, record: PodRecord, name: str) -> bool:
        return self._steers and _concerns(record) and bool(self._markers(name))

    def _is_alone(self, record: PodRecord) -> bool:
        """Returns whether the choice for the pod depends on no other pod, and on nothing else that its key lacks."""
        is_beside = bool(record.demand(NO_DEMAND).numa_affinity)
        return not is_beside and all(source.may_be_shared(record) for source in self._sources)


def _has_required_term(record: PodRecord) -> bool:
    return any(term.strength == "require" for term in record.demand(NO_DEMAND).numa_affinity)


def _concerns(record: PodRecord) -> bool:
    """Returns whether the gate has anything to decide: the pod takes markers, or has a demand."""
    return record.demand(NO_DEMAND) != NO_DEMAND


def may_be_steered(markers: Markers, record: PodRecord, name: str) -> bool:
    """Returns whether a node has markers that the pod requests."""
    return bool(record.demand(NO_DEMAND).markers) and bool(markers(name))


class Beside(NamedTuple):
    """The NUMA nodes (ids of the kernel) of the selected pods on a node. `is_known` is False if a selected pod may be
    elsewhere. `pods` counts the selected pods that have resources of a NUMA node."""

    numa_nodes: frozenset[int] = frozenset()
    is_known: bool = True
    pods: int = 0


def demands_of(record: PodRecord, node_state: NodeState, node: Kubelet, leaving: Collection[str]) -> Iterator[Demand]:
    """Yields the demands of a pod on a node once the pods `leaving` have left, and the NUMA node of a pod that is
    steered."""
    if record.steered is not None:
        yield Demand(frozenset((record.steered,)), "the request to the node")
    demanded = record.demand(NO_DEMAND)
    if demanded.numa_node is not None:
        yield Demand(frozenset((demanded.numa_node,)), f"numa-node {demanded.numa_node}")
    for term in demanded.numa_affinity:
        demand = _demand_of(term, _beside(node_state, record, term, leaving), node.node_ids)
        if demand is not None:
            yield demand


def _beside(node_state: NodeState, record: PodRecord, term: PodTerm, leaving: Collection[str]) -> Beside:
    """Returns where the pods are that a term selects: bound pods, as other pods may go elsewhere."""
    history, node = node_state.history, node_state.kubelet
    if node is None:
        return Beside()
    mask: Mask = 0
    is_known, pods = True, 0
    for entry in (*history.settled.values(), *history.log):
        other = entry.record
        if other.uid == record.uid or other.uid in leaving:
            continue
        if not term.selects(other.namespace, other.name, other.labels):
            continue
        if other.uid in node.active:
            of_pod = union(where.mask for where in allocated_nodes(node, other.uid).values())
            mask |= of_pod
            is_known = is_known and (not of_pod or entry.seen.listed is not None or is_chosen(entry, node))
            pods += bool(of_pod)
        elif has_amounts(node, other.view(node)):
            # A report of amounts does not say whose they are, and a pod without room is somewhere else.
            is_known, pods = False, pods + 1
    return Beside(frozenset(node.ids(mask)), is_known, pods)


def _demand_of(term: PodTerm, pods: Beside, node_ids: Sequence[int]) -> Demand | None:
    """Returns the demand of a term on a node with these selected pods, None if each NUMA node meets the term."""
    why = f"numa-affinity {term}"
    is_required, every = term.strength == "require", frozenset(node_ids)
    if not pods.pods:
        if term.relation == "apart":
            return None
        if term.selects_itself:
            # With a label the next pod of the group knows where the first pod is.
            return Demand(every, f"{why} (the first pod)", is_required=False)
        return Demand(frozenset(), why, is_required, is_required, Refusal.NO_POD_BESIDE)
    if not pods.is_known:
        return Demand(frozenset(), why, is_required, is_required, Refusal.PODS_NOT_LOCATED)
    numa_nodes = pods.numa_nodes if term.relation == "same" else every - pods.numa_nodes
    return Demand(numa_nodes, why, is_required, is_required, Refusal.NONE_APART)
