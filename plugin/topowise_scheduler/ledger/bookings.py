"""Where every pod is booked: on its node, or where it is expected.

Invariant: what the nodes have of pods (rows/node_states.py) is what `PodStates` says, no more and no less. Each change
goes into both at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from topowise import pods
from topowise_scheduler.ledger.gates.ignored_pods import IgnoredPods, LowerPriorityPods
from topowise_scheduler.ledger.node.history import Entry, Evidence
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.pods.placements import Placements
from topowise_scheduler.ledger.pods.pod_states import BookingState, PodState, PodStates
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.rows.node_states import NodeStates
from topowise_scheduler.verdicts.engine import Engine


class Bookings:
    """All pods and all nodes. Not thread-safe. `clock` gives seconds, monotonic."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.pods = PodStates()
        """Where each pod is or is expected; changed here alone."""
        self.placements = Placements(clock)
        """The pods that this project places, until they are bound."""
        self.node_states = NodeStates(engine, clock, self._prepare)
        """What each node is."""
        self._lower_priority = LowerPriorityPods(
            engine, self.node_states.states, self._expected_on, self.pods.nominated.values()
        )
        self.ignored = IgnoredPods(self.pods, self._lower_priority)
        """Pods that a verdict for another pod does not count."""

    def move(
        self, record: PodRecord, state: PodState, *, needs: pods.Needs | None = None, is_news: bool = True
    ) -> None:
        """Moves a pod whose amounts must be readable. Of a pod that was there before the service nothing `is_news`."""
        if state.nominated or record.uid in self.pods.nominated:
            self._note_nominated(record.uid, state)
        # A move first leaves the previous node: a pod that counts on two nodes would refuse later pods on both.
        for name, _, after in self.pods.move(record.uid, state):
            if after is None:
                self._drop(record.uid, name, is_end=False)
                continue
            node_state = self.node_states.made(name)
            entry = self._entry(record, needs or record.needs, after, was_there=not is_news)
            # A bind of a pod that was reserved changes nothing on the node, so the engine need not be told.
            if node_state.put(entry, is_news=is_news) or after is BookingState.NOMINATED:
                self.node_states.publish(name, node_state, better=False)

    def leave(self, uid: str, state: PodState, *, is_end: bool = False) -> None:
        """Moves a pod off its node; `is_end`: the pod has ended."""
        if state.nominated or uid in self.pods.nominated:
            self._note_nominated(uid, state)
        for name, _, after in self.pods.move(uid, state):
            if after is None:
                self._drop(uid, name, is_end=is_end)
            # The pod stays nominated: kube-scheduler clears status.nominatedNodeName itself.
            elif (node_state := self.node_states.of(name)) is not None and node_state.lower(uid, after):
                self.node_states.publish(name, node_state)

    def nominate(self, record: PodRecord, name: str) -> None:
        """Expects a pod where it is nominated; "" for nowhere."""
        pod = self.pods.of(record.uid)
        if pod.nominated != name:
            self.move(record, msgspec.structs.replace(pod, nominated=name))

    def drop_report(self, name: str, node_state: NodeState) -> None:
        """Forgets the report of a node. Its pods stay."""
        self._lower_priority.drop(name)
        self.node_states.drop_report(name, node_state)

    def _note_nominated(self, uid: str, state: PodState) -> None:
        self._lower_priority.note({state.nominated, self.pods.of(uid).nominated} - {""})

    def _expected_on(self, name: str) -> Sequence[Entry]:
        node_state = self.node_states.of(name)
        return () if node_state is None else node_state.history.expected

    def _prepare(self, name: str) -> None:
        self._lower_priority.prepare(name, len(self.pods.nominated))

    def _drop(self, uid: str, name: str, *, is_end: bool) -> None:
        node_state = self.node_states.of(name)
        if node_state is None:
            return
        node_state.drop(uid, self._clock() if is_end else None)
        # The end is kept for a while: the kubelet releases the pod before the API server reports the end.
        self.node_states.note_past(name, node_state)
        self.node_states.publish(name, node_state)
        self.node_states.forget_if_empty(name)

    def _entry(self, record: PodRecord, needs: pods.Needs | None, state: BookingState, *, was_there: bool) -> Entry:
        assert needs is not None, f"{record.namespace}/{record.name} cannot be booked"
        now = self._clock()
        return Entry(
            record.uid,
            record,
            needs,
            state,
            Evidence(now, now if record.status.acknowledged else None, was_there),
        )
