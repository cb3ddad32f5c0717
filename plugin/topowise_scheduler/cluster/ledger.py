"""The ledger: what every node can still give, now and not only at its exporter's last report.

It knows reports, assigned pods of any scheduler, pods we expect (reserved by an answer of ours, or nominated by
kube-scheduler while it evicts others), and refusals of kubelets. Everything comes from the API; a new process builds
the same ledger again.

Invariant: what the nodes have of pods (node_states.py) is what `PodStates` says, no more and no less. Each change goes
into both at once (`check`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

import msgspec

from topowise import pods
from topowise.runtime.log import kv
from topowise.runtime.once import OncePerChange
from topowise_scheduler import refusals
from topowise_scheduler.cluster.gates.quarantine import Quarantine
from topowise_scheduler.cluster.gates.slow_admissions import SlowAdmissions
from topowise_scheduler.cluster.gates.unconfirmed import OBJECT_DELETED, OVER_BUDGET, UnconfirmedNodes
from topowise_scheduler.cluster.late_reports import LateReports
from topowise_scheduler.cluster.node import admission_order
from topowise_scheduler.cluster.node.bookings import BookingState
from topowise_scheduler.cluster.node.history import Entry, Evidence
from topowise_scheduler.cluster.node.node_state import NodeState
from topowise_scheduler.cluster.pods.asked_pods import AskedPods
from topowise_scheduler.cluster.pods.gangs import KEPT_S, Gangs
from topowise_scheduler.cluster.pods.nominations import Nominations
from topowise_scheduler.cluster.pods.pod_states import NOWHERE, PodState, PodStates, State, bound
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.cluster.pods.scheduling_queue import SchedulingQueue
from topowise_scheduler.cluster.pods.strangers import Strangers
from topowise_scheduler.cluster.rows.apart_rows import ApartNodes
from topowise_scheduler.cluster.rows.lesser_nominated import LesserNominated
from topowise_scheduler.cluster.rows.node_states import NodeStates
from topowise_scheduler.device_affinity import Devices, Judged, Settings, judge
from topowise_scheduler.engine import Engine
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.report import PageSizes, Report, of_node

log = logging.getLogger(__name__)

# Longer than a list of all pods may be on its way: one that we have bound since it was begun has an event of its own.
_UNLISTED_S: Final = 120.0
# Pods whose order on the way to their kubelet is not known yet; more than these are not tried in another order.
_MAX_SWAPPED: Final = 4
_WISHES: Final[Mapping[bool | None, str]] = {True: "wish_met", False: "wish_not_met", None: "wish_unknown"}
_AS_IT_COMES: Final = Settings()
# What became of a nomination of ours, by whether it was honoured; as events are counted.
_ENDS: Final = {True: "nomination_honoured", False: "nomination_elsewhere"}
# Admissions to try orders with, of pods that somebody else binds: all orders of four pods take 64.
_MAX_ORDERS: Final = 64


class Ledger:
    """All nodes. Not thread-safe: it lives in the event loop, and every call returns at once.

    `clock` gives seconds, monotonic. `reservation_s` is for how long a pod is expected on the node it was reserved for,
    0 for not at all. `max_admission_s` is how long a kubelet may take to decide a pod, 0 for as long as it takes.
    `affinity` is what is known of device plug-ins, and what pods that require near devices have to be content with.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        *,
        reservation_s: float = 30.0,
        max_admission_s: float = 0.0,
        affinity: Settings = _AS_IT_COMES,
    ) -> None:
        self.engine = engine
        self.device_affinity = affinity
        """What is known of device plug-ins, and what pods that require near devices are content with."""
        self._clock = clock
        self._reservation_s = reservation_s
        self._pods = PodStates()
        # As the Nodes tell them; the strings are shared.
        self._kubelets: dict[str, tuple[str, PageSizes]] = {}
        self._strangers = Strangers()
        self._quarantine = Quarantine()
        self.refused: dict[str, PodRecord] = {}
        """By uid, pods that a kubelet has refused and that are still there."""
        self.late_reports = LateReports(clock)
        """Reports of nodes that report too much."""
        self._asked = AskedPods()
        self._gangs = Gangs(clock)
        self._waiting: dict[str, PodRecord] = {}
        self._began_to_wait = 0
        self._known: set[str] = set()
        self.unconfirmed = UnconfirmedNodes(engine)
        """Nodes of which the report is the last true one, and not what their kubelet says now."""
        self.slow_admissions = SlowAdmissions(engine, max_admission_s)
        """Nodes whose kubelet would take too long."""
        # The node of each pod that has ended and is not deleted yet.
        self._finished: dict[str, str] = {}
        self.over_budget: dict[str, str] = {}
        """Nodes whose newest report is more than a report may be (report/budget.py), with the reason."""
        # What was said of reports, by node: with two exporters at odds its problems come and go.
        self._logged: dict[str, OncePerChange] = {}
        self.node_states = NodeStates(engine, clock, self._prepare_lesser)
        self.queue = SchedulingQueue(clock)
        """Pending pods that may be nominated."""
        self.nominations = Nominations(clock)
        """Those that we have nominated."""
        self._lesser = LesserNominated(
            engine, self.node_states.states, self._expected_on, self._pods.nominated.values()
        )
        self._events: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"Ledger({self._pods}; {self.node_states})"

    # What others read, and the few things they tell

    @property
    def waiting(self) -> Mapping[str, PodRecord]:
        """Pending pods that were refused here, by uid."""
        return self._waiting

    @property
    def began_to_wait(self) -> int:
        """Counts the pods that have come into `waiting`."""
        return self._began_to_wait

    @property
    def known(self) -> Set[str]:
        """Names of the Node objects."""
        return self._known

    @property
    def events(self) -> Mapping[str, int]:
        """How often what has happened, for the metrics; 0 for what has not."""
        return self._events

    def count(self, event: str) -> None:
        """Something has happened that `events` counts."""
        self._events[event] += 1

    def stop_waiting(self, uid: str) -> None:
        """The pod does not wait any more; its next event may say otherwise."""
        self._waiting.pop(uid, None)

    def pod_states(self) -> Iterator[tuple[str, PodState]]:
        """Where each pod is or is expected, by uid; those that are nowhere are left out."""
        return iter(self._pods)

    def check(self) -> None:
        """Raises AssertionError if what is known of pods and of nodes contradicts itself; for tests, it costs time."""
        self._pods.check()
        expected: dict[str, dict[str, BookingState]] = {}
        for uid, pod in self._pods:
            assert not (pod.state is State.BOUND and uid in self._waiting), f"{uid} waits and is bound"
            for name, booked in pod.booking_states().items():
                expected.setdefault(name, {})[uid] = booked
        there = {name: state.booking_states() for name, state in self.node_states.items() if state.history.count}
        assert there == expected, f"the nodes have {there}, the pods say {expected}"
        self.node_states.check()

    # Reports

    def put_report(self, report: Report) -> None:
        """A new report of a node."""
        if report.over_budget:
            self._refuse_report(report)
            return
        if self.over_budget.pop(report.name, "") and self._logged[report.name].over():
            log.info("Report is within its bounds again", extra=kv(node=report.name))
        report = of_node(report, *self._kubelets.get(report.name, (report.node_version, report.page_sizes)))
        node_state = self.node_states.made(report.name)
        problems = () if node_state.report is None else node_state.report.problems
        if report.problems != problems:
            logged = self._logged.setdefault(report.name, OncePerChange(self._clock))
            if not report.problems:
                logged.over()
            for problem in filter(logged.is_change, report.problems):
                log.warning("Parts of an NRT cannot be used", extra=kv(node=report.name, why=problem))
        if node_state.report is None or node_state.report.version != report.version:
            self._quarantine.release(report.name)
        self.unconfirmed.put(report.name, report.unconfirmed, report.boot_id)
        self.slow_admissions.put(report.name, report.empty)
        comparison = node_state.put_report(report, self._clock())
        self._events["prediction_hit"] += comparison.hits
        self._events["prediction_miss"] += len(comparison.misses)
        for namespace, name in comparison.misses:
            log.info(
                "Pod lies on other NUMA nodes than predicted", extra=kv(node=report.name, pod=f"{namespace}/{name}")
            )
        for is_met, (namespace, pod), why in comparison.wishes:
            self._events[_WISHES[is_met]] += 1
            if is_met is False:
                log.info(
                    "Devices of a pod lie farther apart than it wishes",
                    extra=kv(node=report.name, pod=f"{namespace}/{pod}", why=why),
                )
        self._events[f"report_{report.precision}"] += 1
        self.node_states.publish(report.name, node_state)

    def _refuse_report(self, report: Report) -> None:
        """The node gains no more from a report that is not used than from none: it is as if the object was deleted."""
        is_news = report.name not in self.over_budget
        self.lose_report(report.name, OVER_BUDGET)
        self.over_budget[report.name] = report.over_budget
        logged = self._logged.setdefault(report.name, OncePerChange(self._clock))
        if is_news and logged.is_change(OVER_BUDGET):
            log.warning("Report is not used", extra=kv(node=report.name, why=report.over_budget))

    def put_kubelet(self, name: str, version: str, page_sizes: PageSizes = ()) -> None:
        """The Node tells its kubelet's version and the hugepages it knows: what is known of the node is judged anew as
        that kubelet would."""
        self._kubelets[name] = version, page_sizes
        node_state = self.node_states.of(name)
        # A Node comes with every heartbeat; most say what is known.
        if node_state is not None and node_state.judge_as(version, page_sizes):
            self.slow_admissions.put(name, node_state.report.empty if node_state.report else None)
            self.node_states.publish(name, node_state)

    def lose_report(self, name: str, why: str = OBJECT_DELETED) -> None:
        """The node's object was deleted, or is not used. As long as there is the node, its kubelet holds what it held:
        the exporter will write again, and until then the last report goes on, with what is booked since."""
        if self.over_budget.pop(name, "") and why == OBJECT_DELETED:
            self._logged.pop(name, None)
        node_state = self.node_states.of(name)
        if name not in self._known or node_state is None or node_state.report is None:
            self.drop_report(name)
        elif not self.unconfirmed.why(name) or self.unconfirmed.is_left_behind(name):
            self.unconfirmed.put(name, (why,), node_state.report.boot_id)

    def put_node(self, name: str, boot_id: str = "") -> None:
        """There is a Node object, which tells of this boot of its machine."""
        self._known.add(name)
        self.unconfirmed.put_boot(name, boot_id)

    def drop_node(self, name: str) -> None:
        """The Node object is gone, and with it what a deleted report left behind."""
        self._known.discard(name)
        self.unconfirmed.put_boot(name, "")
        self._kubelets.pop(name, None)
        if self.unconfirmed.is_left_behind(name):
            self.drop_report(name)

    def drop_report(self, name: str) -> None:
        """Nobody reports the node any more."""
        self.unconfirmed.put(name, ())
        self.slow_admissions.put(name, None)
        node_state = self.node_states.of(name)
        if node_state is not None and node_state.report is not None:
            self._logged.pop(name, None)
            self._quarantine.release(name)
            self.nominations.doubt(name)
            self._lesser.drop(name)
            self.node_states.drop_report(name, node_state)

    def is_confirmed(self, name: str) -> bool:
        """Whether the node is reported, and its report is what its kubelet says."""
        node_state = self.node_states.of(name)
        return node_state is not None and node_state.report is not None and not self.unconfirmed.why(name)

    # Pods

    def put_pod(self, record: PodRecord, *, is_news: bool = True) -> None:
        """A pod came or changed; it is booked while it is assigned and has not ended.

        `is_news` is False for pods that were there before us.
        """
        uid = record.uid
        self._pods.note_event(uid)
        self._strangers.brought(uid, record.version, is_pending=record.stage == "pending")
        if record.stage == "pending":
            self._put_pending(record)
            return
        self._waiting.pop(uid, None)
        self.queue.drop(uid)
        self._end_nomination(record)
        if record.stage == "ended":
            if record.refusal and uid not in self.refused:
                self.refused[uid] = record
                # A refusal from before our time says nothing about the node as it is now.
                if is_news:
                    self._put_refusal(record)
            self.drop_pod(uid, keep_refusal=True)
            self._finish(record)
            return
        pod = self._pods.of(uid)
        if pod.is_assigned and pod.node != record.node:
            self.drop_pod(uid)
        elif pod.is_assigned:
            self._move(
                record, bound(pod.node) if not pod.nominated else msgspec.structs.replace(pod, state=State.BOUND)
            )
            self._update(record)
            return
        if record.needs is None:
            log.warning(
                "Pod cannot be booked",
                extra=kv(pod=f"{record.namespace}/{record.name}", node=record.node, why=record.problem),
            )
            return
        if is_news and (pod.state is not State.RESERVED or pod.node != record.node):
            self.node_states.note_bound_by_others()
        self._assign(record, record.node, State.BOUND, is_news=is_news)

    def _update(self, record: PodRecord) -> None:
        node_state = self.node_states.of(record.node)
        assert node_state is not None, f"{record.uid} is assigned to a node that has no state"
        if record.needs is not None and node_state.update(record, self._clock()):
            self.node_states.note_past(record.node, node_state)
            self.node_states.publish(record.node, node_state)

    def drop_pod(self, uid: str, *, keep_refusal: bool = False) -> None:
        """A pod ended or was deleted."""
        self._waiting.pop(uid, None)
        self.queue.drop(uid)
        self.nominations.drop(uid)
        self._asked.drop(uid)
        self._strangers.gone(uid)
        if not keep_refusal:
            self.refused.pop(uid, None)
        self.unreserve(uid)
        self._leave(uid, NOWHERE, ended=True)
        node = self._finished.pop(uid, "")
        if (node_state := self.node_states.of(node)) is not None:
            if node_state.forget_finished(uid):
                self.node_states.publish(node, node_state)
            self.node_states.forget_if_empty(node)

    def _finish(self, record: PodRecord) -> None:
        """A pod has ended by its status. Kubelets up to 1.33 list it until it is deleted."""
        if not record.node:
            return
        self._finished[record.uid] = record.node
        node_state = self.node_states.made(record.node)
        if node_state.finish(record.uid, (record.namespace, record.name), self._clock()):
            self.node_states.publish(record.node, node_state)
        self.node_states.note_past(record.node, node_state)

    def node_of(self, uid: str) -> str:
        """The node of a pod that is assigned or reserved, "" if it is neither."""
        return self._pods.of(uid).node

    def assumed(self) -> list[tuple[str, str]]:
        """Uid and node of pods that we bind or have bound, and of which no event has said so yet."""
        return self._pods.assumed()

    def note_listed(self, uids: Collection[str]) -> None:
        """These are all pods there are. One that we have bound, and that no event names soon, was deleted unseen."""
        self._pods.note_listed(uids, self._clock())

    def pods_on(self, name: str) -> list[PodRecord]:
        """The pods assigned to a node."""
        node_state = self.node_states.of(name)
        if node_state is None:
            return []
        return [entry.record for entry in node_state.history.bound()]

    def remember(self, record: PodRecord) -> None:
        """A pod that a question was about: its bind will only name it."""
        self.queue.drop(record.uid)
        self.nominations.asked(record)
        for uid in self._gangs.asked(record):
            self.unreserve(uid)
        self._asked.put(record)

    def nowhere(self, record: PodRecord) -> None:
        """A pod that was asked about fits on no node."""
        self._gangs.nowhere(record)

    def remembered(self, uid: str) -> PodRecord | None:
        """A pod that is waiting, or was asked about lately."""
        return self._asked.get(uid) or self._waiting.get(uid)

    # Pods we expect

    def reserve(self, record: PodRecord, needs: pods.Needs, name: str, *, judged_at: int = -1) -> None:
        """Expect a pod on a node, and on no other, until it is bound, reserved anew, or `reservation_s` are over.

        `judged_at`: what `changes` counted when the pod was found to fit there.
        """
        self.unreserve(record.uid)
        node_state = self.node_states.of(name)
        pod = self._pods.of(record.uid)
        if (
            not self._reservation_s
            or not record.uid
            or pod.is_assigned
            or node_state is None
            or node_state.kubelet is None
            or not self._strangers.may_hold(record.uid, record.version, self._clock())
        ):
            return
        # The verdict was of all possible placements, and of the node as it still is: the bind need not ask again.
        is_as_judged = judged_at >= self.node_states.changed_at(name)
        until = self._clock() + (min(KEPT_S, self._reservation_s) if record.group else self._reservation_s)
        self._move(record, msgspec.structs.replace(pod, node=name, state=State.RESERVED, until=until), needs=needs)
        if is_as_judged:
            node_state.note_judged(record.uid)

    def unreserve(self, uid: str) -> None:
        """The pod is not expected any more where it was reserved."""
        pod = self._pods.of(uid)
        if pod.state is State.RESERVED:
            self._leave(uid, pod.left())

    def hold(self, record: PodRecord, needs: pods.Needs, name: str, keep_s: float) -> str:
        """Reserve a node for `keep_s` seconds for a pod that nobody has asked to place yet. Why its kubelet would
        refuse it as things are predicted, "" if it is reserved."""
        pod, node_state = self._pods.of(record.uid), self.node_states.of(name)
        state = None if node_state is None else node_state.without({record.uid})
        if pod.is_assigned or state is None:
            return "it is bound already" if pod.is_assigned else "the node is not reported any more"
        admission = state.admit_view(record.view(state))
        if not admission.admitted:
            return admission.reason
        self.unreserve(record.uid)
        until = self._clock() + keep_s
        reserved = msgspec.structs.replace(pod.left(), node=name, state=State.RESERVED, until=until)
        self._move(record, reserved, needs=needs)
        return ""

    def reserve_for_other_binder(
        self, record: PodRecord, needs: pods.Needs, name: str, keep_s: float, leaving: Collection[str] = ()
    ) -> str:
        """Reserve a node for `keep_s` seconds for a pod that somebody else will bind, if its kubelet will take it.

        Why not, "" if it is reserved, or assigned to the node already. If these pods have to leave first, only what
        they hold there is counted on. Of a node that nobody has reported we know nothing, so nothing is against it.
        """
        pod = self._pods.of(record.uid)
        if pod.is_assigned:
            return "" if pod.node == name else f"it is bound to {pod.node} already"
        refusal = self._refusal(record, name, leaving)
        if not refusal and not self.survive_any_order(record, name, leaving):
            refusal = "a pod that is on its way there would be refused if they came in another order"
        node_state = self.node_states.of(name)
        if refusal or node_state is None or node_state.kubelet is None or not record.uid:
            return refusal
        if not self._strangers.may_hold(record.uid, record.version, self._clock()):
            return "no watch has brought the pod yet, if there is one"
        self.unreserve(record.uid)
        until = self._clock() + keep_s
        reserved = PodState(name, State.RESERVED, pod.nominated, until, pipelined=bool(leaving))
        self._move(record, reserved, needs=needs)
        return ""

    def survive_any_order(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> bool:
        """Whether those on their way to a node would all find room beside this pod, in whatever order they came: a
        scheduler that binds by itself binds side by side."""
        node_state = self.node_states.of(name)
        others = {*self.disregarded(record.uid, record.priority, name), *leaving}
        return node_state is None or admission_order.survive_any_order(node_state, record, others, _MAX_ORDERS)

    def states_without(self, record: PodRecord, name: str, leaving: Collection[str]) -> Iterator[Kubelet]:
        """Copies of a node's state for a pod (`states`) once these have left, and those who wait for it have come."""
        gone = {record.uid, *self.disregarded(record.uid, record.priority, name), *leaving}
        reserved = [
            booking
            for booking in self._expected_on(name)
            if booking.uid not in gone and (pod := self._pods.of(booking.uid)).pipelined and pod.node == name
        ]
        for state in self.node_states.states(name, gone):
            for booking in reserved:
                if booking.uid not in state.active:
                    state.expect(booking.record.view(state))
            yield state

    def affinity(
        self, record: PodRecord, name: str, states: Iterable[Kubelet], guessed: Collection[str] = ()
    ) -> Judged:
        """What the devices that a node in these states would give a pod come to for its wishes.

        `guessed` are pods in the states of which nobody knows which devices they hold, beside those of the ledger.
        """
        assert record.needs is not None
        places, others = (self.node_states.of(name) or NodeState()).located_devices()
        return judge(
            record.wishes, record.needs, states, record.view, Devices(places, {*others, *guessed}), self.device_affinity
        )

    def affinity_refusal(self, judged: Judged) -> str:
        """Why that keeps the pod from the node, "" if it does not."""
        return judged.refusal(self.device_affinity.admits)

    def tick(self) -> None:
        """What time alone changes, all at once."""
        for _ in self.ticking():
            pass

    def ticking(self) -> Iterator[None]:
        """What time alone changes, in steps of some nodes; to be gone through about every second."""
        self.expire()
        now = self._clock()
        for uid in self._pods.unlisted(now - _UNLISTED_S):
            self.drop_pod(uid)
        for record in self.nominations.late():
            self.withdraw(record.uid)
            self.queue.put(record)
        for name in self._quarantine.expire(now):
            self.node_states.note_change(name)
            self.node_states.note_improved(name)
        yield from self.late_reports.taking()
        yield from self.node_states.ticking()

    def expire(self) -> int:
        """Drop reservations that nobody has fulfilled in time, or that are nobody's; how many they were."""
        now = self._clock()
        strangers = [uid for uid in self._strangers.nobodies(now) if self._pods.of(uid).state is State.RESERVED]
        if strangers:
            log.warning("Reservations dropped, no watch has brought their pods", extra=kv(pods=len(strangers)))
        self._gangs.expire()
        late = strangers + [
            uid for uid in self._pods.expired(now) if uid not in strangers and not self._is_decided(uid)
        ]
        for uid in late:
            self.unreserve(uid)
        self._events["reservation_expired"] += len(late)
        return len(late)

    def _is_decided(self, uid: str) -> bool:
        """Whether the pod is of a gang that is being decided."""
        record = self._asked.get(uid)
        return record is not None and record.group in self._gangs

    @property
    def open_reservations(self) -> int:
        """Pods that are expected somewhere by an answer of ours."""
        return self._pods.reserved

    def assume(self, record: PodRecord, needs: pods.Needs, name: str) -> str:
        """Assign a pod that is about to be bound, if its kubelet will take it. Why not, "" if it is booked."""
        pod = self._pods.of(record.uid)
        if pod.state is State.BOUND:
            return f"it is bound to {pod.node} already"
        if pod.state is State.RESERVED and pod.node != name:
            self.unreserve(record.uid)
        # An earlier bind of this pod was given up by who asked for it.
        self.forget(record.uid)
        refusal = self._refusal(record, name)
        if refusal:
            self._events["bind_conflict"] += 1
            self.unreserve(record.uid)
            return refusal
        self._assign(record, name, State.ASSUMED, needs=needs)
        return ""

    def forget(self, uid: str, name: str = "") -> None:
        """The bind of an assumed pod (to this node) has failed; no news if it is somewhere else by now."""
        pod = self._pods.of(uid)
        if pod.state is State.ASSUMED and (not name or pod.node == name):
            self._leave(uid, pod.left())

    # Pods that we nominate ourselves

    def nominate(self, record: PodRecord, name: str) -> None:
        """Expect a pod on a node, on which it was found to fit just now, once kube-scheduler comes to it. Whoever calls
        this writes it to the pod; without an event that shows it, it ends by itself (nominations.py)."""
        self.queue.drop(record.uid, is_taken=False)
        self.nominations.decide(record, name)
        self._nominate(record, name)
        if (node_state := self.node_states.of(name)) is not None:
            node_state.note_judged(record.uid)

    def withdraw(self, uid: str) -> None:
        """It is not to go there."""
        if (mine := self.nominations.of(uid)) is not None:
            self.nominations.drop(uid)
            self._nominate(mine.record, "")

    def pod_state(self, uid: str) -> PodState:
        """Where a pod is or is expected."""
        return self._pods.of(uid)

    def is_as_judged(self, uid: str, name: str) -> bool:
        """Whether a pod that is expected on a node fits, because it did and nothing has changed since."""
        node_state = self.node_states.of(name)
        return node_state is not None and node_state.is_as_judged(uid)

    def is_open(self, name: str, record: PodRecord) -> bool:
        """Whether the node takes such a pod if it has room, and everybody there counts for it."""
        if name in self._lesser.others(record.priority) or name in self.quarantined(record.shape):
            return False
        return not self.unconfirmed.why(name)

    def holds_nominated(self, record: PodRecord, name: str) -> bool:
        """Whether a pod that is nominated for a node has its room there still."""
        node_state = self.node_states.of(name)
        if node_state is None or name in self.quarantined(record.shape) or self.unconfirmed.is_closed(name, record):
            return False
        return node_state.history.entry(record.uid) is not None and node_state.is_placed(record.uid)

    # What a question has to know beside the engine

    def exceptions(self, uid: str, priority: int) -> Mapping[str, Set[str]]:
        """Nodes whose state for this pod is another than the engine's, with the pods that do not count there."""
        return {**self._lesser.others(priority), **self.own_nodes(uid, priority)}

    def own_nodes(self, uid: str, priority: int) -> Mapping[str, Set[str]]:
        """Nodes on which the pod itself is or is expected, with the pods that do not count there for it: itself, and
        lesser ones."""
        pod = self._pods.of(uid)
        if not (pod.node or pod.nominated):
            return {}
        lesser = self._lesser.others(priority)
        return {name: lesser.get(name, frozenset()) | {uid} for name in {pod.node, pod.nominated} - {""}}

    def apart(self, priority: int) -> ApartNodes | None:
        """Nodes that are another for a pod of this priority, as pods of lower priority are nominated there that are not
        on their way yet; None without any."""
        return self._lesser.apart(priority)

    def disregarded(self, uid: str, priority: int, name: str) -> Set[str]:
        """Pods expected on a node that do not stand in the way of this one: itself, and lesser nominated ones."""
        own = self.own_nodes(uid, priority)
        return own[name] if name in own else self._lesser.others(priority).get(name, frozenset())

    def quarantined(self, shape: bytes) -> Collection[str]:
        """Nodes whose kubelet has refused a pod of this shape since their last report."""
        return self._quarantine.nodes(shape)

    @property
    def quarantined_nodes(self) -> Set[str]:
        """Nodes that are kept from some pods as their kubelet has refused such."""
        return self._quarantine.all_nodes

    @property
    def quarantines(self) -> int:
        """Pairs of node and shape."""
        return len(self._quarantine)

    # Inside

    def _refusal(self, record: PodRecord, name: str, leaving: Collection[str] = ()) -> str:
        """Why a kubelet would refuse a pod now, or once these pods have left."""
        node_state = self.node_states.of(name)
        if node_state is None:
            return ""
        if self.unconfirmed.is_closed(name, record):
            return f"the report of {name} is not confirmed by its kubelet ({', '.join(self.unconfirmed.why(name))})"
        if name in self.quarantined(record.shape):
            return refusals.QUARANTINED
        # It must fit where the pods before it are predicted, and wherever else they may be.
        states = () if node_state.is_as_judged(record.uid) else self.states_without(record, name, leaving)
        for state in states:
            admission = state.admit_view(record.view(state))
            if not admission.admitted:
                return admission.reason
        others = {*self.disregarded(record.uid, record.priority, name), *leaving}
        if record.wishes and not node_state.is_as_judged(record.uid):
            states = self.node_states.states(name, {record.uid, *others})
            refusal = self.affinity_refusal(self.affinity(record, name, states))
            if refusal:
                return refusal
        if not admission_order.survive(node_state, record, others, _MAX_SWAPPED):
            return "a pod that is on its way there would be refused if this one came first"
        later = admission_order.only_expected(node_state, record)
        if later and not self._fits(record, name, {record.uid, *later, *others}):
            return "it would be refused if it came before those that are only expected there"
        return ""

    def _fits(self, record: PodRecord, name: str, without: Collection[str]) -> bool:
        return all(state.admit_view(record.view(state)).admitted for state in self.node_states.states(name, without))

    def _put_pending(self, record: PodRecord) -> None:
        if self._pods.of(record.uid).is_assigned:
            # Our own bind, which this event does not know of yet.
            return
        if record.waits and record.needs is not None:
            self._began_to_wait += record.uid not in self._waiting
            self._waiting[record.uid] = record
        else:
            self._waiting.pop(record.uid, None)
        self.queue.put(record)
        nominated = self.nominations.note(record)
        self._nominate(record, nominated if record.needs is not None else "")

    def _end_nomination(self, record: PodRecord) -> None:
        """The pod is bound, or has ended."""
        if self.nominations.of(record.uid) is not None:
            is_honoured = self.nominations.bound(record)
            self._events["nomination_late" if is_honoured is None else _ENDS[is_honoured]] += 1
        self._nominate(record, "")

    def _nominate(self, record: PodRecord, name: str) -> None:
        pod = self._pods.of(record.uid)
        if pod.nominated != name:
            self._move(record, msgspec.structs.replace(pod, nominated=name))

    def _assign(
        self, record: PodRecord, name: str, state: State, *, needs: pods.Needs | None = None, is_news: bool = True
    ) -> None:
        self._asked.drop(record.uid)
        nominated = self._pods.of(record.uid).nominated
        assigned = bound(name) if state is State.BOUND and not nominated else PodState(name, state, nominated)
        self._move(record, assigned, needs=needs, is_news=is_news)

    def _move(
        self, record: PodRecord, state: PodState, *, needs: pods.Needs | None = None, is_news: bool = True
    ) -> None:
        """Move a pod, and let the nodes know that this concerns. Where it comes, its needs must be readable."""
        self._note_nominated(record.uid, state)
        for name, _, after in self._pods.move(record.uid, state):
            if after is None:
                self._drop_booking(record.uid, name, ended=False)
                continue
            node_state = self.node_states.made(name)
            booking = self._booking(record, needs or record.needs, after, was_there=not is_news)
            # A bind of what was reserved changes nothing on the node, so the engine need not be told.
            if node_state.put(booking, is_news=is_news) or after is BookingState.NOMINATED:
                self.node_states.publish(name, node_state, better=False, is_ahead=booking.ahead)

    def _leave(self, uid: str, state: PodState, *, ended: bool = False) -> None:
        """Move a pod off its node; `ended`: for good."""
        self._note_nominated(uid, state)
        for name, _, after in self._pods.move(uid, state):
            if after is None:
                self._drop_booking(uid, name, ended=ended)
            elif (node_state := self.node_states.of(name)) is not None and node_state.lower(uid, after):
                self.node_states.publish(name, node_state)

    def _note_nominated(self, uid: str, state: PodState) -> None:
        """Who is nominated where changes."""
        self._lesser.note({state.nominated, self._pods.of(uid).nominated} - {""})

    def _expected_on(self, name: str) -> Sequence[Entry]:
        node_state = self.node_states.of(name)
        return () if node_state is None else node_state.history.expected

    def _put_refusal(self, record: PodRecord) -> None:
        self._events[f"refusal_{record.refusal}"] += 1
        node_state = self.node_states.of(record.node)
        log.warning(
            "Kubelet refused a pod",
            extra=kv(pod=f"{record.namespace}/{record.name}", node=record.node, reason=record.refusal),
        )
        if node_state is not None and node_state.report is not None and record.shape:
            self._quarantine.put(record.shape, record.node, self._clock())
            self.node_states.note_change(record.node)

    def _drop_booking(self, uid: str, name: str, *, ended: bool = True) -> None:
        node_state = self.node_states.of(name)
        if node_state is None:
            return
        node_state.drop(uid, self._clock() if ended else None)
        self.node_states.note_past(name, node_state)
        self.node_states.publish(name, node_state)
        self.node_states.forget_if_empty(name)

    def _prepare_lesser(self, name: str) -> None:
        """Those that we have nominated ahead come soon, and hardly anybody more important before them."""
        self._lesser.prepare(name, len(self._pods.nominated) - len(self.nominations))

    def _booking(
        self, record: PodRecord, needs: pods.Needs | None, state: BookingState, *, was_there: bool = False
    ) -> Entry:
        assert needs is not None, f"{record.namespace}/{record.name} cannot be booked"
        now = self._clock()
        return Entry(
            record,
            needs,
            state,
            Evidence(now, now if record.acknowledged else None, was_there),
            ahead=state is BookingState.NOMINATED and self.nominations.of(record.uid) is not None,
        )
