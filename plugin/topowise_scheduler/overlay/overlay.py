"""Copies of the cluster on which pods are placed, removed and moved. The cluster itself never changes.

An overlay never changes either: a change returns another overlay, which shares all other nodes with the one before. So
an overlay may be kept, thrown away, or changed in two ways; a change costs what it changes.

`Overlay.place` is the one trial of a pod, in a fixed order: kube-scheduler's own checks with the sums of the overlay,
the gates that no placed pod opens, what the options expect of the pod, the kubelet in every state that the node may be
in, and the options again in these states. A node that the cluster does not have yet is asked in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Literal

import msgspec

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.ledger.gates.option import CopiedNode, Expected
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.trial import Trial, spec_of
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Node, Objection
from topowise_scheduler.verdicts.policy_annotations import POLICIES
from topowise_scheduler.verdicts.refusals import Reason, Refusal

Check = Literal["amounts", "kube-scheduler", "gates", "kubelet"]


class Unfit(msgspec.Struct, frozen=True):
    """Why a node does not take a pod: the first check that refuses it, and a reason that is the same for all such
    nodes: a refusal of this service, kube-scheduler's words or the kubelet's reason. `text`: kube-scheduler's, with the
    amounts of this node. `state`: the first state in which the kubelet refuses the pod, which it would get as
    `record`."""

    check: Check
    reason: Reason
    text: str = ""
    state: Kubelet | None = None
    record: PodRecord | None = None


class NodeCopy(msgspec.Struct, frozen=True):
    """A node after changes, in each of its possible states.

    `requested`: by how much its summed requests differ, with the number of pods as "pods". `placed`: by UID the pods
    that were placed, with what they take of options; which devices of device plug-ins they get is not known.
    `removed`: UIDs of pods of the cluster.

    A node that the cluster does not have is `like` a node of it, which has the same devices, or like none (""). `node`
    is its Node object, None if kube-scheduler's own checks are not asked, and `requested` are all its requests.
    """

    states: tuple[Kubelet, ...]
    requested: Mapping[str, int] = {}
    placed: Mapping[str, Sequence[Any]] = {}
    removed: tuple[str, ...] = ()
    like: str | None = None
    node: Node | None = None

    def admit(self, record: PodRecord, takes: Sequence[Any] = ()) -> NodeCopy | Unfit:
        """Returns the node with the pod, if its kubelet admits the pod in all states."""
        assert record.needs is not None
        states = []
        for state in self.states:
            admission, after = trial(state, record.view(state))
            if not admission.admitted:
                return Unfit("kubelet", admission.reason, state=state, record=record)
            states.append(after)
        requested = dict(self.requested)
        kube_scheduler.add(requested, record.needs)
        placed = {**self.placed, record.uid: takes}
        return msgspec.structs.replace(self, states=tuple(states), requested=requested, placed=placed)

    def without(self, records: Iterable[PodRecord]) -> NodeCopy:
        """Returns the node after these pods have ended, in this order."""
        requested, placed, removed = dict(self.requested), dict(self.placed), list(self.removed)
        uids = []
        for record in records:
            assert record.needs is not None
            kube_scheduler.add(requested, record.needs, -1)
            if placed.pop(record.uid, None) is None:
                removed.append(record.uid)
            uids.append(record.uid)
        states = tuple([state.without(uids) for state in self.states])
        return msgspec.structs.replace(self, states=states, requested=requested, placed=placed, removed=tuple(removed))


class Placement(msgspec.Struct, frozen=True):
    """A pod that fits on a node: the overlay with the pod, and its record as its kubelet is expected to get it.

    `is_certain`: the options know what the pod gets there.
    """

    overlay: Overlay
    node: str
    record: PodRecord
    is_certain: bool = True

    @property
    def state(self) -> Kubelet:
        """The predicted state of the node, with the pod."""
        return self.overlay.changed[self.node].states[0]


class Overlay:
    """The cluster with the nodes `changed`, by name; `copies` are nodes that were changed before.

    `seen_by`: the pod for which nodes are seen, without its own booking and nominated pods of a lower priority. By
    default each pod that is placed sees an untouched node in its own way, and a pod is removed from a node on which all
    pods count.
    """

    def __init__(
        self, cluster: Trial, copies: Mapping[str, NodeCopy] | None = None, *, seen_by: PodRecord | None = None
    ) -> None:
        self._cluster, self._gates = cluster, cluster.ledger.gates
        self._seen_by = seen_by
        # Shared by all overlays that are made of this one, because nobody changes them.
        self._untouched: dict[str, NodeCopy] = {}
        self.changed: Mapping[str, NodeCopy] = copies or {}

    def node(self, name: str, record: PodRecord | None = None) -> NodeCopy:
        """Returns a node as it is here; `record`: the pod that looks at it, if the overlay is seen by no other pod."""
        return self.changed.get(name) or self.untouched(name, record)

    def untouched(self, name: str, record: PodRecord | None = None) -> NodeCopy:
        """Returns a node as it is in the cluster, whose states the caller must not change."""
        copy = self._untouched.get(name)
        if copy is not None:
            return copy
        seen_by, ledger = self._seen_by or record, self._cluster.ledger
        if seen_by is None:
            return NodeCopy(tuple(ledger.node_states.states(name, ())))
        copy = NodeCopy(tuple(ledger.gates.capacity.states(seen_by, name)))
        if self._seen_by is not None:
            self._untouched[name] = copy
        return copy

    def place(self, record: PodRecord, name: str, uid: str = "") -> Placement | Unfit:
        """Tries the pod on a node. `uid`: by which the pod is known here, by default a new one."""
        if record.needs is None or record.is_too_large:
            return _unreadable(record)
        copy = self.node(name, record)
        refusal = self._objection(record, name, copy)
        if refusal is not None:
            return Unfit("kube-scheduler", refusal.words, refusal.text)
        if closed := self._closed(record, name, copy):
            return Unfit("gates", closed)
        numbered = (f"\0copy/{name}/{number}" for number in count(len(copy.placed)))
        uid = uid or next(uid for uid in numbered if uid not in copy.placed)
        alone = msgspec.structs.replace(record, uid=uid)
        expected = self._expected(alone, name, copy)
        if expected.refusal is not None:
            return Unfit("gates", expected.refusal, "" if isinstance(expected.refusal, Refusal) else expected.refusal)
        after = copy.admit(expected.record, expected.takes)
        if isinstance(after, Unfit):
            return after
        if closed := self._elsewhere(expected.record, name, copy):
            return Unfit("gates", closed)
        return Placement(self._with(name, after), name, expected.record, expected.is_certain)

    def remove(self, records: Iterable[PodRecord], name: str) -> Overlay:
        """Returns the cluster after these pods on a node have ended, in this order."""
        return self._with(name, self.node(name).without(records))

    def move(self, record: PodRecord, uid: str, origin: str, name: str) -> Placement | Unfit:
        """Places the replacement of a pod on another node under the UID of the pod, which then ends on `origin`."""
        placed = self.place(record, name, uid)
        if isinstance(placed, Unfit):
            return placed
        leaving = msgspec.structs.replace(record, uid=uid)
        return msgspec.structs.replace(placed, overlay=placed.overlay.remove([leaving], origin))

    def _taken(self) -> Sequence[Any]:
        placed = [takes for copy in self.changed.values() for takes in copy.placed.values()]
        return [device for takes in placed for device in takes]

    def _with(self, name: str, copy: NodeCopy) -> Overlay:
        overlay = Overlay(self._cluster, {**self.changed, name: copy}, seen_by=self._seen_by)
        overlay._untouched = self._untouched
        return overlay

    def _objection(self, record: PodRecord, name: str, copy: NodeCopy) -> Objection | None:
        """Returns kube-scheduler's own refusal."""
        if copy.like is None:
            exclusion, short = self._cluster.opposition(record, name, copy.requested, copy.removed)
            return exclusion or short
        if copy.node is None or record.needs is None:
            return None
        return kube_scheduler.refusal(copy.node, spec_of(record), record.needs, copy.requested)

    def _closed(self, record: PodRecord, name: str, copy: NodeCopy) -> Refusal | None:
        """Returns the refusal of the gates that no placed pod opens. Of these only policies matter for a new node."""
        if copy.like is None:
            options = self._gates.options_for(record)
            refusals = (option.standing(record, name, copy.removed) for option in options)
            return self._gates.standing(record, name) or next(filter(None, refusals), None)
        policies = {POLICIES.index(state.settings.topology.policy) for state in copy.states}
        rules = record.demands.policy.rules()
        return next((refusal for accepted, refusal in rules if not policies.issubset(accepted)), None)

    def _expected(self, record: PodRecord, name: str, copy: NodeCopy) -> Expected:
        """Returns the pod as the kubelet of the node would get it, and what it takes of options."""
        expected = Expected(record)
        if copy.like is not None:
            for demand in record.demands.of_options:
                expected = expected._replace(record=demand.expected(expected.record))
        node = CopiedNode(copy.states, copy.removed, self._taken, is_new=copy.like is not None)
        for option in self._gates.options_for(record):
            if expected.refusal is None:
                expected = option.expected_in(expected, name if copy.like is None else copy.like, node)
        return expected

    def _elsewhere(self, record: PodRecord, name: str, copy: NodeCopy) -> Refusal | None:
        """Returns the refusal of the options of a node whose kubelet admits the pod, but not as the pod requires."""
        guessed = tuple(copy.placed)
        if copy.like is None:
            options = self._gates.options_for(record)
            refusals = (option.refusal_in(record, name, copy.states, guessed) for option in options)
            return next(filter(None, refusals), None)
        demanded = (demand.refusal_in(record, copy.states) for demand in record.demands.of_options)
        refusal = next(filter(None, demanded), None)
        return refusal or self._gates.refusal_of_new(record, copy.like, copy.states, guessed)


def _unreadable(record: PodRecord) -> Unfit:
    return Unfit("amounts", str(record.problem), str(record.problem))
