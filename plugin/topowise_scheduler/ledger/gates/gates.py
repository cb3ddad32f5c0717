"""Everything that may keep a pod from a node: one ordered list, for every caller that has a question of that kind.

Three subsets have a name: `standing` gates, that free capacity does not open; `all` gates; and what `at_bind` is asked
beside all gates, because only then is it known which other pods are on their way to the node.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.kubelet.trial import first_refusal
from topowise_scheduler.ledger.gates.affinity import AffinityGate
from topowise_scheduler.ledger.gates.capacity import CapacityGate
from topowise_scheduler.ledger.gates.claimed_nodes import ClaimedNodes, ClaimSettings
from topowise_scheduler.ledger.gates.claims import ClaimGate
from topowise_scheduler.ledger.gates.gate import FITS, Draft, Gate, Question
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods
from topowise_scheduler.ledger.gates.new_nodes import NewNodes
from topowise_scheduler.ledger.gates.numa_node import Markers, NumaNodeGate, may_be_steered, no_markers
from topowise_scheduler.ledger.gates.policy import PolicyGate
from topowise_scheduler.ledger.gates.quarantine import Quarantine
from topowise_scheduler.ledger.gates.reserved_places import ReservedDevices, ReservedPlaces
from topowise_scheduler.ledger.gates.slow_admissions import SlowAdmissions
from topowise_scheduler.ledger.gates.template_nodes import TemplateNodes
from topowise_scheduler.ledger.gates.unconfirmed import UnconfirmedNodes
from topowise_scheduler.ledger.node import admission_order
from topowise_scheduler.ledger.pods.exporter_pods import ExporterPods, ExporterSettings
from topowise_scheduler.ledger.pods.pod_states import PodStates
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.options.device_affinity import Settings
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.refusals import Refusal, numbered

# Pods whose order on the way to their kubelet is not known yet; more than these are not tried in another order.
_MAX_SWAPPED: Final = 4
# Admissions to try orders with, of pods that another scheduler binds: all orders of four pods take 64.
_MAX_ORDERS: Final = 64


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
    """The gates of one cluster. `max_admission_s` is how long a kubelet may take to decide a pod, 0 for any time."""

    def __init__(
        self,
        engine: Engine,
        node_states: NodeStates,
        ignored: IgnoredPods,
        *,
        affinity: Settings,
        max_admission_s: float,
        exporters: ExporterPods,
        exporter_settings: ExporterSettings,
        markers: Markers,
        steers: bool,
        pods: PodStates,
        claims: ClaimSettings | None,
        ignores_claims: bool,
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
        self.affinity = AffinityGate(
            node_states, ignored, affinity, partial(may_be_steered, markers if steers else no_markers)
        )
        """Nodes whose devices are too far apart for the pod."""
        self.claimed = ClaimedNodes(node_states, pods, claims, ignored=ignores_claims)
        """The NUMA nodes of the devices of claims."""
        self.numa_node = NumaNodeGate(node_states, ignored, self.affinity, self.claimed, markers, steers=steers)
        """Nodes without markers for the pod, or without a NUMA node that the pod requires."""
        self.claims = ClaimGate(node_states, ignored, self.claimed, self.numa_node)
        """Nodes on which the pod would not be near the devices of its claims."""
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
        self._of_claims: tuple[Gate, ...] = (self.numa_node, self.claims)
        if claims is not None:
            self._of_claims += (ReservedDevices(node_states, pods, self.claimed),)
        self._all: tuple[Gate, ...] = (
            *self._standing,
            self.reserved_places,
            self.capacity,
            self.affinity,
            *self._of_claims,
            TemplateNodes(),
        )

    def verdicts(self, question: Question) -> Verdicts:
        """Returns the verdict of all gates for each node. A node without a report fits: nothing is known against it."""
        draft = Draft(len(question.names))
        if question.record.is_too_large:
            draft.refuse_all(Refusal.TOO_LARGE)
        elif self.claimed.settings is None:
            for gate in self._all:
                gate.verdicts(question, draft)
        else:
            self._limited_verdicts(question, draft)
        return Verdicts(draft.outcomes, draft.refusals, self._node_states.changes)

    def _limited_verdicts(self, question: Question, draft: Draft) -> None:
        """Predicts devices of claims on some nodes, and on more nodes until a node fits for certain or the work is
        spent; in a simulation on all nodes that the work is enough for."""
        with self.claimed.limited(len(question.names) if question.is_simulation else None) as left_out:
            for gate in self._all:
                gate.verdicts(question, draft)
            while (
                left_out
                and left_out.issuperset([question.names[at] for at in np.flatnonzero(draft.outcomes == FITS).tolist()])
                and self.claimed.refill()
            ):
                for gate in self._of_claims:
                    gate.verdicts(question, draft)

    def until(self, record: PodRecord, node: str, refusal: Refusal | None) -> float:
        """Returns when a refusal ends at the latest (seconds, monotonic), infinity if only an event ends it."""
        match refusal:
            case Refusal.NEW_NODE:
                return self.new_nodes.until.get(node, math.inf)
            case Refusal.QUARANTINED:
                return self.quarantine.nodes(record.shape).get(node, math.inf)
            case Refusal.CLAIMS_MISPREDICTED:
                return self.claims.until(record, node)
        return math.inf

    def standing(self, record: PodRecord, name: str) -> Refusal | None:
        """Returns why the node takes no such pod whatever capacity is free, None if it does."""
        return _first(self._standing, record, name)

    def all(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """Returns why the node does not take the pod once the pods `leaving` have left, None if it does."""
        return Refusal.TOO_LARGE if record.is_too_large else _first(self._all, record, name, leaving)

    def at_bind(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
        """Returns why the pod must not be bound to the node now, None if it may: of all gates, or for the sake of pods
        that are on their way there."""
        return self.all(record, name, leaving) or self._order(record, name, leaving)

    def fits_in_any_order(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> bool:
        """Returns whether the pods on their way to a node would all be admitted beside this pod, in whatever order
        they come: a scheduler that binds by itself binds several pods at the same time."""
        node_state = self._node_states.of(name)
        if node_state is None:
            return True
        absent = {*self.ignored.on(record.uid, record.priority, name), *leaving}
        return admission_order.survive_any_order(node_state, record, absent, _MAX_ORDERS)

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


def _first(gates: Sequence[Gate], record: PodRecord, name: str, leaving: Collection[str] = ()) -> Refusal | None:
    """Returns the first refusal of the gates, None if there is none."""
    refusals = (gate.refusal(record, name, leaving) for gate in gates)
    return next(filter(None, refusals), None)
