"""The ledger: what every node can still give, now and not only at its exporter's last report.

It knows reports, assigned pods of any scheduler, pods we expect (reserved by an answer of ours, or nominated by
kube-scheduler while it evicts others), and refusals of kubelets. Each change of a node goes into the engine at once, so
that a question costs no bookkeeping. Everything comes from the API; a new process builds the same ledger again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from topowise import pods
from topowise.runtime.log import V2, kv
from topowise.runtime.once import OncePerChange
from topowise_scheduler.cluster.bookings import Booking, BookingState
from topowise_scheduler.cluster.node_state import NodeState
from topowise_scheduler.cluster.possible_placements import possible_placements
from topowise_scheduler.cluster.possible_rows import PossibleRows
from topowise_scheduler.cluster.quarantine import Quarantine
from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.cluster.unconfirmed import OBJECT_DELETED, UnconfirmedNodes
from topowise_scheduler.engine import Engine
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.report import Report

log = logging.getLogger(__name__)

_MAX_ASKED: Final = 10_000
# Longer than a list of all pods may be on its way: one that we have bound since it was begun is told of by an event.
_UNLISTED_S: Final = 120.0
# Who has bound a pod past us within this time may do it again at any moment.
_ALONE_S: Final = 600.0
# Pods whose order on the way to their kubelet is not known yet; more than these are not tried in another order.
_MAX_SWAPPED: Final = 4
# Admissions to try orders with, of pods that somebody else binds: all orders of four pods take 64.
_MAX_ORDERS: Final = 64


class Ledger:
    """All nodes. Not thread-safe: it lives in the event loop, and every call returns at once.

    `clock` gives seconds, monotonic. `reservation_s` is for how long a pod is expected on the node it was reserved for,
    0 for not at all.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float], *, reservation_s: float = 30.0) -> None:
        self.engine = engine
        self._clock = clock
        self._reservation_s = reservation_s
        self._nodes: dict[str, NodeState] = {}
        self._assigned: dict[str, str] = {}
        # Those of them that we only know of by a bind of our own.
        self._assumed: set[str] = set()
        # When a list of all pods came without them: seconds, monotonic.
        self._unlisted: dict[str, float] = {}
        self._reservations: dict[str, tuple[str, float]] = {}
        self._nominated: dict[str, str] = {}
        self._others_bound_at = float("-inf")
        self._quarantine = Quarantine()
        self._seen_refusals: set[str] = set()
        self._asked: dict[str, PodRecord] = {}
        self.waiting: dict[str, PodRecord] = {}
        """Pending pods that were refused here, by uid."""
        self.known: set[str] = set()
        """Names of the Node objects."""
        self.unconfirmed = UnconfirmedNodes(engine)
        """Nodes of which the report is the last true one, and not what their kubelet says now."""
        self._with_past: set[str] = set()
        self.changes = 0
        """Counts what has become of nodes."""
        self._changed: dict[str, int] = {}
        # What was said of reports, by node: with two exporters at odds its problems come and go.
        self._logged: dict[str, OncePerChange] = {}
        self.possible = PossibleRows(engine)
        """What nodes may be whose pods may lie elsewhere than predicted."""
        self.improved: set[str] = set()
        """Nodes that may have more room than before; whoever requeues pods takes them out."""
        self.events: Counter[str] = Counter()
        """What happened, for the metrics: see `metrics`."""

    # Reports

    def put_report(self, report: Report) -> None:
        """A new report of a node."""
        node_state = self._nodes.setdefault(report.name, NodeState())
        problems = () if node_state.report is None else node_state.report.problems
        if report.problems != problems:
            logged = self._logged.setdefault(report.name, OncePerChange(self._clock))
            if not report.problems:
                logged.over()
            for problem in filter(logged.is_change, report.problems):
                log.warning("Parts of an NRT cannot be used", extra=kv(node=report.name, why=problem))
        if node_state.report is None or node_state.report.version != report.version:
            self._quarantine.release(report.name)
        self.unconfirmed.put(report.name, report.unconfirmed)
        comparison = node_state.put_report(report, self._clock())
        self.events["prediction_hit"] += comparison.hits
        self.events["prediction_miss"] += len(comparison.misses)
        for namespace, name in comparison.misses:
            log.info(
                "Pod lies on other NUMA nodes than predicted", extra=kv(node=report.name, pod=f"{namespace}/{name}")
            )
        self.events[f"report_{report.precision}"] += 1
        self._publish(report.name, node_state)

    def lose_report(self, name: str) -> None:
        """The node's object was deleted. As long as there is the node, its kubelet holds what it held: the exporter
        will write again, and until then the last report goes on, with what is booked since."""
        node_state = self._nodes.get(name)
        if name not in self.known or node_state is None or node_state.report is None:
            self.drop_report(name)
        elif not self.unconfirmed.why(name):
            self.unconfirmed.put(name, (OBJECT_DELETED,))

    def drop_node(self, name: str) -> None:
        """The Node object is gone, and with it what a deleted report left behind."""
        self.known.discard(name)
        if OBJECT_DELETED in self.unconfirmed.why(name):
            self.drop_report(name)

    def drop_report(self, name: str) -> None:
        """Nobody reports the node any more."""
        self.unconfirmed.put(name, ())
        node_state = self._nodes.get(name)
        if node_state is not None and node_state.report is not None:
            node_state.drop_report()
            self._logged.pop(name, None)
            self._quarantine.release(name)
            self.possible.put(name, [], 0)
            self._changed.pop(name, None)
            self.engine.drop(name)
            self.improved.discard(name)
            self._forget_if_empty(name, node_state)

    def reported(self) -> list[str]:
        """Names of all nodes that have been reported, sorted."""
        return sorted(name for name, node_state in self._nodes.items() if node_state.report is not None)

    def node_state(self, name: str) -> NodeState | None:
        """The state of a node, None if neither a report nor a pod has named it."""
        return self._nodes.get(name)

    # Pods

    def put_pod(self, record: PodRecord, *, is_news: bool = True) -> None:
        """A pod came or changed; it is booked while it is assigned and has not ended.

        `is_news` is False for pods that were there before us.
        """
        uid = record.uid
        self._unlisted.pop(uid, None)
        if record.stage == "pending":
            self._put_pending(record)
            return
        self.waiting.pop(uid, None)
        self._nominate(uid, "", record)
        if record.stage == "ended":
            if record.refusal and uid not in self._seen_refusals:
                self._seen_refusals.add(uid)
                # A refusal from before our time says nothing about the node as it is now.
                if is_news:
                    self._put_refusal(record)
            self.drop_pod(uid, keep_refusal=True)
            return
        self._assumed.discard(uid)
        if self._assigned.get(uid, record.node) != record.node:
            self.drop_pod(uid)
        if record.needs is None:
            if uid not in self._assigned:
                log.warning(
                    "Pod cannot be booked",
                    extra=kv(pod=f"{record.namespace}/{record.name}", node=record.node, why=record.problem),
                )
            return
        if self._assigned.get(uid) == record.node:
            node_state = self._nodes[record.node]
            if node_state.update(record, self._clock()):
                if node_state.remembers:
                    self._with_past.add(record.node)
                self._publish(record.node, node_state)
            return
        if is_news and self._reservations.get(uid, ("",))[0] != record.node:
            self._others_bound_at = self._clock()
        self._assign(record, record.node, record.needs, is_news=is_news)

    def drop_pod(self, uid: str, *, keep_refusal: bool = False) -> None:
        """A pod ended or was deleted."""
        self.waiting.pop(uid, None)
        self._asked.pop(uid, None)
        if not keep_refusal:
            self._seen_refusals.discard(uid)
        self.unreserve(uid)
        self._assumed.discard(uid)
        where = {self._assigned.pop(uid, ""), self._nominated.pop(uid, "")} - {""}
        for name in where:
            self._drop_booking(uid, name)

    def note_listed(self, uids: Collection[str]) -> None:
        """These are all pods there are. One that we have bound and that is not told of soon was deleted unseen."""
        now = self._clock()
        self._unlisted = {uid: now for uid in self._assumed if uid not in uids}

    def pods_on(self, name: str) -> list[PodRecord]:
        """The pods assigned to a node."""
        node_state = self._nodes.get(name)
        if node_state is None:
            return []
        return [one.record for one in node_state.bookings.values() if one.state is BookingState.ASSIGNED]

    def remember(self, record: PodRecord) -> None:
        """A pod that a question was about: its bind will only name it."""
        self._asked[record.uid] = record
        if len(self._asked) > _MAX_ASKED:
            del self._asked[next(iter(self._asked))]

    def remembered(self, uid: str) -> PodRecord | None:
        """A pod that is waiting, or was asked about lately."""
        return self._asked.get(uid) or self.waiting.get(uid)

    # Pods we expect

    def reserve(self, record: PodRecord, needs: pods.Needs, name: str, *, judged_at: int = -1) -> None:
        """Expect a pod on a node, and on no other, until it is bound, reserved anew, or `reservation_s` are over.

        `judged_at`: what `changes` counted when the pod was found to fit there.
        """
        self.unreserve(record.uid)
        node_state = self._nodes.get(name)
        if (
            not self._reservation_s
            or not record.uid
            or record.uid in self._assigned
            or node_state is None
            or node_state.kubelet is None
        ):
            return
        self._reservations[record.uid] = (name, self._clock() + self._reservation_s)
        is_as_judged = judged_at >= self._changed.get(name, 0)
        node_state.put(self._booking(record, needs, BookingState.RESERVED))
        self._publish(name, node_state, better=False)
        if is_as_judged:
            node_state.note_judged(record.uid)

    def unreserve(self, uid: str) -> None:
        """The pod is not expected any more where it was reserved."""
        reservation = self._reservations.pop(uid, None)
        if reservation is None or self._assigned.get(uid) == reservation[0]:
            return
        if self._nominated.get(uid) == reservation[0]:
            self._nodes[reservation[0]].lower(uid, BookingState.NOMINATED)
        else:
            self._drop_booking(uid, reservation[0], ended=False)

    def reserve_for_other_binder(
        self, record: PodRecord, needs: pods.Needs, name: str, keep_s: float, leaving: Collection[str] = ()
    ) -> str:
        """Reserve a node for `keep_s` seconds for a pod that somebody else will bind, if its kubelet will take it.

        Why not, "" if it is reserved, or assigned to the node already. If these pods have to leave first, only what
        they hold there is counted on. Of a node that nobody has reported we know nothing, so nothing is against it.
        """
        if record.uid in self._assigned:
            where = self._assigned[record.uid]
            return "" if where == name else f"it is bound to {where} already"
        refusal = self._refusal(record, name, leaving)
        if not refusal and not self.survive_any_order(record, name, leaving):
            refusal = "a pod that is on its way there would be refused if they came in another order"
        node_state = self._nodes.get(name)
        if refusal or node_state is None or node_state.kubelet is None or not record.uid:
            return refusal
        self.unreserve(record.uid)
        self._reservations[record.uid] = (name, self._clock() + keep_s)
        node_state.put(self._booking(record, needs, BookingState.NOMINATED if leaving else BookingState.RESERVED))
        self._publish(name, node_state, better=False)
        return ""

    def survive_any_order(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> bool:
        """Whether those on their way to a node would all find room beside this pod, in whatever order they came: a
        scheduler that binds by itself binds side by side."""
        node_state = self._nodes.get(name)
        others = {*self.disregarded(record.uid, record.priority, name), *leaving}
        return node_state is None or node_state.survive_any_order(record, others, _MAX_ORDERS)

    def states_without(self, record: PodRecord, name: str, leaving: Collection[str]) -> Iterator[Kubelet]:
        """Copies of a node's state for a pod (`states`) once these have left, and those who wait for it have come."""
        gone = {record.uid, *self.disregarded(record.uid, record.priority, name), *leaving}
        node_state = self._nodes.get(name, NodeState())
        reserved = [
            booking
            for uid, booking in node_state.bookings.items()
            if uid in self._reservations and uid not in gone and booking.state is BookingState.NOMINATED
        ]
        for state in self.states(name, gone):
            for booking in reserved:
                if booking.uid not in state.active:
                    state.admit_view(booking.record.view(state))
            yield state

    def states(self, name: str, without: Collection[str]) -> Iterator[Kubelet]:
        """Copies of a node's state without these pods: as predicted, then its other possible placements
        (possible_placements.py).

        None if nobody has reported the node. Each is yours to change.
        """
        node_state = self._nodes.get(name)
        state = None if node_state is None else node_state.without(without)
        if node_state is None or state is None:
            return
        yield state.fork()
        now = self._clock()
        uncertain = [one for one in node_state.uncertain(now) if one.uid not in without]
        yield from possible_placements(state, uncertain, self._highest(node_state, now))

    def tick(self) -> None:
        """What time alone changes; to be called about every second."""
        self.expire()
        now = self._clock()
        for uid in [uid for uid, at in self._unlisted.items() if uid not in self._assumed or now - at >= _UNLISTED_S]:
            del self._unlisted[uid]
            if uid in self._assumed:
                self.drop_pod(uid)
        self.improved |= self._quarantine.expire(now)
        for name in list(self._with_past):
            node_state = self._nodes.get(name)
            if node_state is None:
                self._with_past.discard(name)
                continue
            if node_state.forget_past(now):
                self._publish(name, node_state, better=False)
            if not node_state.remembers:
                self._with_past.discard(name)
        for name, uncertain in self.possible.counts():
            node_state = self._nodes[name]
            if len(node_state.uncertain(now)) != uncertain:
                self._publish(name, node_state)

    def expire(self) -> int:
        """Drop reservations that nobody has fulfilled in time; how many they were."""
        now = self._clock()
        late = [uid for uid, (_, until) in self._reservations.items() if until <= now]
        for uid in late:
            self.unreserve(uid)
        self.events["reservation_expired"] += len(late)
        return len(late)

    @property
    def open_reservations(self) -> int:
        """Pods that are expected somewhere by an answer of ours."""
        return len(self._reservations)

    def assume(self, record: PodRecord, needs: pods.Needs, name: str) -> str:
        """Assign a pod that is about to be bound, if its kubelet will take it. Why not, "" if it is booked."""
        if record.uid in self._assigned and record.uid not in self._assumed:
            return f"it is bound to {self._assigned[record.uid]} already"
        if self._reservations.get(record.uid, (name,))[0] != name:
            self.unreserve(record.uid)
        # An earlier bind of this pod was given up by who asked for it.
        self.forget(record.uid)
        refusal = self._refusal(record, name)
        if refusal:
            self.events["bind_conflict"] += 1
            self.unreserve(record.uid)
            return refusal
        self._assumed.add(record.uid)
        self._unlisted.pop(record.uid, None)
        self._assign(record, name, needs)
        return ""

    def forget(self, uid: str, name: str = "") -> None:
        """The bind of an assumed pod (to this node) has failed; no news if it is somewhere else by now."""
        if uid not in self._assumed or (name and self._assigned[uid] != name):
            return
        self._assumed.discard(uid)
        where = self._assigned.pop(uid)
        if self._nominated.get(uid) == where:
            self._nodes[where].lower(uid, BookingState.NOMINATED)
        else:
            self._drop_booking(uid, where, ended=False)

    # What a question has to know beside the engine

    def exceptions(self, uid: str, priority: int) -> dict[str, set[str]]:
        """Nodes whose state for this pod is another than the engine's, with the pods that do not count there.

        They are the pod itself where it is or is expected, and pods of lower priority that are nominated and not yet on
        their way.
        """
        found: dict[str, set[str]] = {}
        if uid in self._reservations:
            found[self._reservations[uid][0]] = {uid}
        if uid in self._assigned:
            found[self._assigned[uid]] = {uid}
        for other, name in self._nominated.items():
            if other == uid or self._is_lesser(name, other, priority):
                found.setdefault(name, set()).add(other)
        return found

    def disregarded(self, uid: str, priority: int, name: str) -> set[str]:
        """Pods expected on a node that do not stand in the way of this one: itself, and lesser nominated ones."""
        return self.exceptions(uid, priority).get(name, set())

    def quarantined(self, shape: bytes) -> Collection[str]:
        """Nodes whose kubelet has refused a pod of this shape since their last report."""
        return self._quarantine.nodes(shape)

    @property
    def quarantines(self) -> int:
        """Pairs of node and shape."""
        return len(self._quarantine)

    # Inside

    def _refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> str:
        """Why a kubelet would refuse a pod now, or once these pods have left."""
        node_state = self._nodes.get(name)
        if node_state is None:
            return ""
        if self.unconfirmed.is_closed(name, record):
            return f"the report of {name} is not confirmed by its kubelet ({', '.join(self.unconfirmed.why(name))})"
        # It must fit where the pods before it are predicted, and wherever else they may be.
        states = () if node_state.is_as_judged(record.uid) else self.states_without(record, name, leaving)
        for state in states:
            admission = state.admit_view(record.view(state))
            if not admission.admitted:
                return admission.reason
        others = {*self.disregarded(record.uid, record.priority, name), *leaving}
        free = node_state.without({record.uid, *others})
        if free is not None and not node_state.survive(free, record, others, _MAX_SWAPPED):
            return "a pod that is on its way there would be refused if this one came first"
        return ""

    def _put_pending(self, record: PodRecord) -> None:
        if record.uid in self._assigned:
            # Our own bind, which this event does not know of yet.
            return
        if record.waits and record.needs is not None:
            self.waiting[record.uid] = record
        else:
            self.waiting.pop(record.uid, None)
        self._nominate(record.uid, record.nominated, record)

    def _nominate(self, uid: str, name: str, record: PodRecord) -> None:
        before = self._nominated.get(uid, "")
        if before == name:
            return
        if before:
            del self._nominated[uid]
            if self._reservations.get(uid, ("",))[0] != before and self._assigned.get(uid) != before:
                self._drop_booking(uid, before, ended=False)
        if name and record.needs is not None:
            self._nominated[uid] = name
            node_state = self._nodes.setdefault(name, NodeState())
            node_state.put(self._booking(record, record.needs, BookingState.NOMINATED))
            self._publish(name, node_state, better=False)

    def _assign(self, record: PodRecord, name: str, needs: pods.Needs, *, is_news: bool = True) -> None:
        reservation = self._reservations.get(record.uid)
        if reservation is not None and reservation[0] != name:
            self.unreserve(record.uid)
        self._reservations.pop(record.uid, None)
        self._asked.pop(record.uid, None)
        self._assigned[record.uid] = name
        node_state = self._nodes.setdefault(name, NodeState())
        if node_state.put(self._booking(record, needs, BookingState.ASSIGNED, was_there=not is_news), is_news=is_news):
            self._publish(name, node_state, better=False)

    def _put_refusal(self, record: PodRecord) -> None:
        self.events[f"refusal_{record.refusal}"] += 1
        node_state = self._nodes.get(record.node)
        log.warning(
            "Kubelet refused a pod",
            extra=kv(pod=f"{record.namespace}/{record.name}", node=record.node, reason=record.refusal),
        )
        if node_state is not None and node_state.report is not None and record.shape:
            self._quarantine.put(record.shape, record.node, self._clock())

    def _drop_booking(self, uid: str, name: str, *, ended: bool = True) -> None:
        node_state = self._nodes.get(name)
        if node_state is None:
            return
        node_state.drop(uid, self._clock() if ended else None)
        if node_state.remembers:
            self._with_past.add(name)
        self._publish(name, node_state)
        self._forget_if_empty(name, node_state)

    def _forget_if_empty(self, name: str, node_state: NodeState) -> None:
        if node_state.report is None and not node_state.bookings:
            self._nodes.pop(name, None)

    def _publish(self, name: str, node_state: NodeState, *, better: bool = True) -> None:
        if node_state.kubelet is None:
            return
        self.changes += 1
        self._changed[name] = self.changes
        self.engine.put(name, node_state.kubelet)
        now = self._clock()
        uncertain = node_state.uncertain(now)
        if uncertain or name in self.possible:
            self.possible.put(
                name, possible_placements(node_state.kubelet, uncertain, self._highest(node_state, now)), len(uncertain)
            )
        if better:
            self.improved.add(name)
        log.log(V2, "Node changed", extra=kv(node=name, pods=len(node_state.bookings)))

    def _highest(self, node_state: NodeState, now: float) -> Mapping[str, int]:
        """See `possible_placements`. Somebody else's pods come unforeseen, so that anything may come in between."""
        return node_state.highest() if now - self._others_bound_at >= _ALONE_S else {}

    def _booking(
        self, record: PodRecord, needs: pods.Needs, state: BookingState, *, was_there: bool = False
    ) -> Booking:
        now = self._clock()
        return Booking(
            record, needs, state, since=now, acknowledged=now if record.acknowledged else None, was_there=was_there
        )

    def _is_lesser(self, name: str, uid: str, priority: int) -> bool:
        """Whether a pod that is nominated there does not stand in the way of one of this priority."""
        booking = self._nodes[name].bookings.get(uid) if name in self._nodes else None
        return booking is not None and booking.state is BookingState.NOMINATED and booking.record.priority < priority
