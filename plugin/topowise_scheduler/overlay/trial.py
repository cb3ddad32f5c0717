"""Whether nodes take a pod by kube-scheduler's own checks, and by topowise's gates, for any node that exists.

kube-scheduler calls the verbs only for nodes that its own plug-ins accept. So its own refusals (kube_scheduler.py) come
first here, with the requests of the pods in the ledger. No question changes the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from topowise.bounded import Bounded
from topowise.pods import Amounts
from topowise_scheduler.ledger.answers import Answers, Question
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.history import Entry
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.pods.scheduling_constraints import SchedulingConstraints, constraints_of
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.inter_pod import NodeVerdicts, Request
from topowise_scheduler.verdicts.kube_scheduler import SCHEDULING_GATES, Node, Objection, Pod, Spec

_NO_SPEC: Final = Spec()
_DEFAULT_NAMESPACE: Final = "default"
_NO_CHANGE: Final[Mapping[str, int]] = {}
# Of the sums.
_MOST_BYTES: Final = 16 << 20


class Requested:
    """The summed requests of the pods on a node, as kube-scheduler sums them; cached until the node changes.

    Invariant: a sum covers all bookings of the node at `NodeStates.changed_at`. The requests of a booking never change
    without a change of the node. Not thread-safe.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sums: Bounded[str, tuple[int, Amounts]] = Bounded(_MOST_BYTES, lambda _, sums: 100 * len(sums[1]))

    def on(self, name: str, priority: int, uid: str = "") -> Mapping[str, int]:
        """Returns the requests on a node, with the number of pods as "pods".

        The pod `uid` and nominated pods of a lower priority than `priority` do not count.
        """
        node_state = self._ledger.node_states.of(name)
        ignored = self._ledger.gates.ignored.on(uid, priority, name)
        # A node without a report notes no changes.
        if ignored or node_state is None or node_state.report is None:
            entries = () if node_state is None else node_state.history.entries()
            return _sums(entry for entry in entries if entry.uid not in ignored)
        changed_at = self._ledger.node_states.changed_at(name)
        at, sums = self._sums.get(name) or (-1, {})
        if at != changed_at:
            sums = _sums(node_state.history.entries())
            self._sums.put(name, (changed_at, sums))
        return sums

    def forget(self) -> None:
        """Drops all sums, because nodes were removed."""
        self._sums.clear()


def _sums(entries: Iterable[Entry]) -> Amounts:
    used: Amounts = {"pods": 0}
    for entry in entries:
        kube_scheduler.add(used, entry.needs)
    return used


class Trial:
    """All nodes, reported or not. Every method that takes a Pod raises ParseError if its amounts cannot be read."""

    def __init__(self, ledger: Ledger, answers: Answers, nodes: Nodes) -> None:
        self.ledger = ledger
        self.answers = answers
        self.nodes = nodes
        self.requested = Requested(ledger)

    @property
    def names(self) -> list[str]:
        """Names of all nodes with a report or a Node object, sorted."""
        return sorted({*self.ledger.node_states.reported(), *self.nodes})

    @property
    def changes(self) -> tuple[int, int, int]:
        """A value that differs once a node, its pods or its Node object has changed."""
        index = self.ledger.inter_pod
        return self.ledger.node_states.changes, self.nodes.changes, 0 if index is None else index.changes

    def record(self, pod: Pod) -> PodRecord:
        """The record of a pod, with what it requires of nodes."""
        return msgspec.structs.replace(self.answers.record(pod), constraints=self._constraints(pod))

    def _constraints(self, pod: Pod) -> SchedulingConstraints:
        index = self.ledger.inter_pod
        if index is None:
            return constraints_of(pod.spec)
        namespace = pod.metadata.namespace or _DEFAULT_NAMESPACE
        between = index.request(
            msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace=namespace))
        )
        return msgspec.structs.replace(constraints_of(pod.spec, between), request=between)

    def question(self, pod: Pod, names: Sequence[str]) -> Question:
        """The question about a pod, which leaves no trace. Raises ParseError for annotations that cannot be read."""
        question = self.answers.question(pod, names, is_simulation=True)
        record = msgspec.structs.replace(question.record, constraints=self._constraints(pod))
        return msgspec.structs.replace(question, record=record)

    def request(self, record: PodRecord) -> Request | None:
        """What the pod requires of other pods, None if the service does not examine that."""
        index, constraints = self.ledger.inter_pod, record.constraints
        if index is None or constraints is None:
            return None
        return constraints.request or index.request_of(record.uid)

    def between_pods(self, record: PodRecord, names: Sequence[str]) -> NodeVerdicts | None:
        """What kube-scheduler has against the nodes because of other pods, None if that is not examined. The pod itself
        counts nowhere."""
        index, request = self.ledger.inter_pod, self.request(record)
        if index is None or request is None:
            return None
        others = index.trial()
        others.remove(record.uid)
        return others.verdicts(request, names)

    def precision(self, name: str) -> str:
        """The precision of a node's report, "" without a report."""
        node_state = self.ledger.node_states.of(name)
        return "" if node_state is None or node_state.report is None else node_state.report.precision

    def used(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> Mapping[str, int]:
        """The requests on the node that count against the pod once the pods `leaving` have left."""
        used = self.requested.on(name, record.priority, record.uid)
        node_state = self.ledger.node_states.of(name) if leaving else None
        if node_state is None:
            return used
        left: Amounts = {**used}
        for entry in node_state.history.entries():
            if entry.uid in leaving:
                kube_scheduler.add(left, entry.needs, -1)
        return left

    def unexamined(self, record: PodRecord) -> tuple[str, ...]:
        """The pod's requirements on nodes that nobody here checks."""
        index, request = self.ledger.inter_pod, self.request(record)
        words = () if record.constraints is None else record.constraints.unexamined
        if index is None or request is None:
            return words
        gates = [word for word in words if word == SCHEDULING_GATES]
        return (*dict.fromkeys([item.kind for item in index.unexamined(request)]), *gates)

    def node(self, name: str) -> Node | None:
        """The Node object."""
        return self.nodes.get(name)

    def opposition(
        self, record: PodRecord, name: str, change: Mapping[str, int] = _NO_CHANGE, leaving: Collection[str] = ()
    ) -> tuple[Objection | None, Objection | None]:
        """Why kube-scheduler excludes the node for the pod, and which sums, or devices of claims, the node lacks.

        The requests on the node have changed by `change`, with the number of pods as "pods". The pods `leaving` have
        left their devices of claims. Nothing is known against a node if no Node object is known.
        """
        node, needs = self.node(name), record.needs
        if node is None:
            return (kube_scheduler.NO_NODE if len(self.nodes) else None), None
        used = self.used(record, name)
        if change:
            used = {**used, **{resource: used.get(resource, 0) + amount for resource, amount in change.items()}}
        short = None if needs is None else kube_scheduler.short(node, needs, used)
        if short is None and record.claims:
            short = self.ledger.gates.shortage(record, name, leaving)
        return kube_scheduler.exclusion_of(node, spec_of(record)), short

    def refusals(self, record: PodRecord, names: Iterable[str]) -> Iterator[tuple[str, Objection | None]]:
        """Each node with kube-scheduler's own refusal, None if it accepts the node; about 5 us each."""
        for name in names:
            exclusion, short = self.opposition(record, name)
            yield name, exclusion or short

    def takes_without(self, record: PodRecord, name: str, leaving: Sequence[str]) -> bool:
        """Whether the node takes the pod once the pods `leaving` (UIDs) have left, cordons and the like aside."""
        node, needs = self.node(name), record.needs
        if needs is None:
            return False
        if node is not None and kube_scheduler.short(node, needs, self.used(record, name, leaving)):
            return False
        return self.answers.takes_without(record, name, leaving)


def spec_of(record: PodRecord) -> Spec:
    """What selects nodes in the pod."""
    return _NO_SPEC if record.constraints is None else record.constraints.spec
