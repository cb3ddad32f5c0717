"""Everything that may keep a pod from a node: one ordered list, for every caller that has a question of that kind.

Three subsets have a name: `standing` gates, that free capacity does not open; `all` gates with all options; and what
`at_bind` is asked beside these, because only then is it known which other pods are on their way to the node.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import first_refusal
from topowise_scheduler.ledger.gates.capacity import CapacityGate
from topowise_scheduler.ledger.gates.gate import FITS, Draft, Gate, Question
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods
from topowise_scheduler.ledger.gates.node_gates import NewNodes, PolicyGate, Quarantine, ReservedPlaces, SlowAdmissions
from topowise_scheduler.ledger.gates.option import Option
from topowise_scheduler.ledger.gates.unconfirmed import UnconfirmedNodes
from topowise_scheduler.ledger.node import admission_order
from topowise_scheduler.ledger.pods.exporter_pods import ExporterPods, ExporterSettings
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.kube_scheduler import Objection
from topowise_scheduler.verdicts.refusals import Refusal, numbered

# Pods whose order on the way to their kubelet is not known yet; more than these are not tried in another order.
_MAX_SWAPPED: Final = 4
# Admissions to try orders with, of pods that another scheduler binds: all orders of four pods take 64.
_MAX_ORDERS: Final = 64

AnOption = TypeVar("AnOption", bound=Option)


class Verdicts(msgspec.Struct, frozen=True):
    """Per node of the question: the outcome, and the number of the `Refusal`, 0 for a node that fits.

    `judged_at` is what `NodeStates.changes` counted then.
    """

    outcomes: NDArray[np.int8]
    refusals: NDArray[np.int8]
    judged_at: int

    def refusal(self, index: int) -> Refusal | None:
        """Returns why the node is refused, None if it is not."""
        return numbered(int(self.refusals[index]))


class Gates:
    """The gates of one cluster. `max_admission_s` is how long a kubelet may take to decide a pod, 0 for any time.
    `options` are asked in this order, after the other gates."""

    def __init__(
        self,
        engine: Engine,
        node_states: NodeStates,
        ignored: IgnoredPods,
        *,
        options: Sequence[Option],
        max_admission_s: float,
        exporters: ExporterPods,
        exporter_settings: ExporterSettings,
    ) -> None:
        self._node_states = node_states
        self.ignored = ignored
        """Pods that a verdict for another pod does not count."""
        self.quarantine = Quarantine(engine)
        """Nodes whose kubelet has refused such a pod since its last report."""
        self.new_nodes = NewNodes(engine, exporters, exporter_settings)
        """Nodes that an exporter is to report soon for the first time."""
        self.unconfirmed = UnconfirmedNodes(engine, node_states)
        """Nodes whose last report is not what their kubelet says now."""
        self.slow_admissions = SlowAdmissions(engine, max_admission_s)
        """Nodes whose kubelet would take too long."""
        self.capacity = CapacityGate(engine, node_states, ignored)
        """Nodes whose kubelet would refuse the pod."""
        self.options = tuple(options)
        """All enabled options."""
        self._for_every_pod = tuple([option for option in options if option.concerns_every_pod])
        self._limited = next((option for option in options if option.limits_work), None)
        self.policy = PolicyGate(engine)
        """Nodes with another Topology Manager policy than the pod asks for."""
        self.reserved_places = ReservedPlaces()
        """Nodes other than the node that is reserved for a pod of an admitted job."""
        self._standing: tuple[Gate, ...] = (
            self.policy,
            self.slow_admissions,
            self.new_nodes,
            self.unconfirmed,
            self.quarantine,
        )
        self._gates: tuple[Gate, ...] = (*self._standing, self.reserved_places, self.capacity)

    def options_for(self, record: PodRecord) -> Sequence[Option]:
        """Returns the options that have to be asked about a pod, in order."""
        return self.options if record.demands.of_options else self._for_every_pod

    def option(self, kind: type[AnOption]) -> AnOption | None:
        """Returns an enabled option for those who show what it knows, None if it is off."""
        return next((option for option in self.options if isinstance(option, kind)), None)

    def verdicts(self, question: Question) -> Verdicts:
        """Returns the verdict of all gates for each node. A node without a report fits: nothing is known against it."""
        draft = Draft(len(question.names))
        if question.record.is_too_large:
            draft.refuse_all(Refusal.TOO_LARGE)
            return Verdicts(draft.outcomes, draft.refusals, self._node_states.changes)
        for gate in self._gates:
            gate.verdicts(question, draft)
        if self._limited is None:
            self._ask_options(question, draft)
        else:
            with self._limited.asking(len(question.names), is_simulation=question.is_simulation) as asks_again:
                self._ask_options(question, draft)
                while asks_again([question.names[at] for at in np.flatnonzero(draft.outcomes == FITS).tolist()]):
                    self._ask_options(question, draft)
        return Verdicts(draft.outcomes, draft.refusals, self._node_states.changes)

    def _ask_options(self, question: Question, draft: Draft) -> None:
        for option in self.options_for(question.record):
            option.verdicts(question, draft)
        # Nodes that the cluster does not have, as an autoscaler or a simulator would add them.
        for at, refusal in question.templates.items():
            if refusal and draft.outcomes[at] == FITS:
                draft.refuse_node(at, refusal)

    def needs_prebind(self, record: PodRecord, name: str) -> bool:
        """Returns whether the pod must not be bound to a node, on which it fits, without the step of an option."""
        return any(option.needs_prebind(record, name) for option in self.options_for(record))

    def shortage(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Objection | None:
        """Returns the first objection of kube-scheduler to a node that only an option knows of (`Option.shortage`)."""
        objections = (option.shortage(record, name, leaving) for option in self.options_for(record))
        return next(filter(None, objections), None)

    def refusal_of_new(
        self, record: PodRecord, name: str, states: Sequence[Kubelet], guessed: Collection[str]
    ) -> Refusal | None:
        """Returns why an option refuses a new node that is like this node (`Option.refusal_of_new`)."""
        refusals = (option.refusal_of_new(record, name, states, guessed) for option in self.options_for(record))
        return next(filter(None, refusals), None)

    def depends_on_evictions(self, record: PodRecord) -> bool:
        """Returns whether evictions change what an option has for the pod."""
        return any(option.depends_on_evictions(record) for option in self.options_for(record))

    def unexamined(self, words: Iterable[str]) -> tuple[str, ...]:
        """Returns those requirements of a pod (`kube_scheduler.unexamined`) that no option examines either."""
        examined = {word for option in self.options for word in option.examined()}
        return tuple([word for word in words if word not in examined])

    def until(self, record: PodRecord, node: str, refusal: Refusal | None) -> float:
        """Returns when a refusal ends at the latest (seconds, monotonic), infinity if only an event ends it."""
        match refusal:
            case Refusal.NEW_NODE:
                return self.new_nodes.until.get(node, math.inf)
            case Refusal.QUARANTINED:
                return self.quarantine.nodes(record.shape).get(node, math.inf)
            case Refusal():
                ends = [option.until(record, node, refusal) for option in self.options_for(record)]
                return min([end for end in ends if end is not None], default=math.inf)
        return math.inf

    def standing(self, record: PodRecord, name: str) -> Refusal | None:
        """Returns why the node takes no such pod whatever capacity is free, None if it does."""
        return _first(self._standing, record, name)

    def all(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """Returns why the node does not take the pod once the pods `leaving` have left, None if it does."""
        if record.is_too_large:
            return Refusal.TOO_LARGE
        return _first((*self._gates, *self.options_for(record)), record, name, leaving)

    def at_bind(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """Returns why the pod must not be bound to the node now, None if it may: of all gates, or for the sake of pods
        that are on their way there."""
        return self.all(record, name, leaving) or self._order(record, name, leaving)

    def fits_in_any_order(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> bool:
        """Returns whether the pods on their way to a node would all be admitted beside this pod, and where they are to
        be, in whatever order they come: a scheduler that binds by itself binds several pods at the same time."""
        node_state = self._node_states.of(name)
        if node_state is None:
            return True
        absent = {*self.ignored.on(record.uid, record.priority, name), *leaving}
        own = [pod for pod in (record, *admission_order.expected(node_state, {record.uid, *absent})) if _holds_own(pod)]
        if len(own) > 1 and any(self.minds_order(pod, name) for pod in own):
            return False
        return admission_order.survive_any_order(node_state, record, absent, _MAX_ORDERS)

    def class_of(self, record: PodRecord) -> Hashable:
        """Returns a key that is equal for pods with the same answers everywhere: `PodRecord.pod_class`, with what their
        claims are for in place of the names of the claims."""
        if not record.claims:
            return record.pod_class
        nameless = msgspec.structs.replace(record, claims=())
        return nameless.pod_class, record.namespace, *(option.digest(record) for option in self.options_for(record))

    def waits(self, record: PodRecord) -> bool:
        """Returns whether the pod cannot be placed on any node yet (`Option.waits`)."""
        return any(option.waits(record) for option in self.options_for(record))

    def minds_order(self, record: PodRecord, name: str) -> bool:
        """Returns whether no pod may overtake the pod on its way to the node (`Option.minds_order`)."""
        return any(option.minds_order(record, name) for option in self.options_for(record))

    def _order(self, record: PodRecord, name: str, leaving: Collection[str]) -> Refusal | None:
        node_state = self._node_states.of(name)
        if node_state is None or not node_state.has_coming(record.uid):
            return None
        absent = {*self.ignored.on(record.uid, record.priority, name), *leaving}
        if not admission_order.survive(node_state, record, absent, _MAX_SWAPPED):
            return Refusal.BEFORE_OTHERS
        later = admission_order.only_expected(node_state, record)
        if later:
            states = self._node_states.states(name, {record.uid, *later, *absent})
            if first_refusal(states, record.view) is not None:
                return Refusal.BEFORE_EXPECTED
        return None


def _holds_own(record: PodRecord) -> bool:
    """Returns whether a kubelet may give the pod anything of a NUMA node for itself."""
    return record.requests is not None and record.requests.can_be_aligned


def _first(
    gates: Sequence[Gate | Option], record: PodRecord, name: str, leaving: Collection[str] = ()
) -> Refusal | None:
    """Returns the first refusal of the gates, None if there is none."""
    for gate in gates:
        if refusal := gate.refusal(record, name, leaving):
            return refusal
    return None
