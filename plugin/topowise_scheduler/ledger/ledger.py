"""The ledger: what every node can still give, now and not only at its exporter's last report.

It knows reports, assigned pods of any scheduler, pods that are expected (reserved by an answer of the service, or
nominated by kube-scheduler while it evicts other pods), and refusals of kubelets. Everything comes from the API; a new
process builds the same ledger again.

Its parts: bookings.py moves pods, node_reports.py takes what the API server says of nodes, reservations.py expects
pods, gates/ says which node takes which pod. The ledger itself takes what the API server says of pods.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import Final

import msgspec

from topowise.bounded import Bounded
from topowise.placement import GATE
from topowise.runtime.log import kv
from topowise_scheduler.ledger.bookings import Bookings
from topowise_scheduler.ledger.gates.gates import Gates
from topowise_scheduler.ledger.gates.option import Cluster, Options, no_options
from topowise_scheduler.ledger.late_reports import LateReports
from topowise_scheduler.ledger.node_reports import NodeReports
from topowise_scheduler.ledger.outdated_reports import OutdatedReports
from topowise_scheduler.ledger.pods.exporter_pods import ExporterPods, ExporterSettings
from topowise_scheduler.ledger.pods.pod_states import NOWHERE, PodState, State, bound
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.reservations import Reservations
from topowise_scheduler.report import predicted_annotation
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.inter_pod import InterPodIndex

log = logging.getLogger(__name__)

# Longer than a list of all pods may be on its way: a pod that was bound since it was begun has an event of its own.
_UNLISTED_S: Final = 120.0
_MAX_NOT_SENT_BYTES: Final = 16 << 20
_NO_PODS: Final[Mapping[str, PodRecord]] = {}
_DEFAULT_EXPORTERS: Final = ExporterSettings()


class Ledger:
    """All nodes and pods. Not thread-safe: it lives in the event loop, and every call returns at once.

    `clock` gives seconds, monotonic. `max_admission_s` is how long a kubelet may take to decide a pod, 0 for as long as
    it takes. `exporters`: how long the service waits for exporters. `options`: makes the enabled options.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        *,
        max_admission_s: float = 0.0,
        exporters: ExporterSettings = _DEFAULT_EXPORTERS,
        options: Options = no_options,
        inter_pod: InterPodIndex | None = None,
    ) -> None:
        self.engine = engine
        self.inter_pod = inter_pod
        """All pods, for constraints between pods; None unless this service places pods."""
        self.clock = clock
        """Seconds, monotonic; to be read."""
        self.events: Counter[str] = Counter()
        """How often what has happened, for the metrics; 0 for what has not."""
        self._bookings = Bookings(engine, clock)
        self.pods = self._bookings.pods
        """Where each pod is or is expected; to be read."""
        self.node_states = self._bookings.node_states
        """What each node is."""
        self.placements = self._bookings.placements
        """The pods that this project places, until they are bound."""
        if inter_pod is not None:
            self.placements.is_constrained = inter_pod.is_constrained
        self.exporters = ExporterPods()
        """The pods of exporters, by node."""
        """The pods by whose affinity terms kube-scheduler scores other pods."""
        self.gates = Gates(
            engine,
            self.node_states,
            self._bookings.ignored,
            options=options(Cluster(self.node_states, self._bookings.ignored, self.pods)),
            max_admission_s=max_admission_s,
            exporters=self.exporters,
            exporter_settings=exporters,
        )
        """What may keep a pod from a node."""
        self.placements.class_key = self.gates.class_of
        self._outdated_reports = OutdatedReports(self.node_states, self.gates, self.exporters, exporters)
        self.reports = NodeReports(self._bookings, self.gates, self.events, clock)
        """What the API server says of nodes."""
        self.reservations = Reservations(self._bookings, self.gates, self.events, clock)
        """Pods that are expected by an answer of the service."""
        self.late_reports = LateReports(clock)
        """Reports of nodes that report too much."""
        self.refused: dict[str, PodRecord] = {}
        """By uid, pods that a kubelet has refused and that are still there."""
        self.waiting: dict[str, PodRecord] = {}
        """By UID, pending pods that were refused here; to be read."""
        # By namespace, pods of `waiting` with a demand that concerns other pods of the namespace.
        self._waiting_beside: defaultdict[str, dict[str, PodRecord]] = defaultdict(dict)
        # Pods with the gate of this service that it does not place: placement is off, or other gates come first.
        self._unplaced: Bounded[str, PodRecord] = Bounded(_MAX_NOT_SENT_BYTES, lambda _, record: record.size)
        # Pods that kube-scheduler itself refused.
        self._not_sent: Bounded[str, PodRecord] = Bounded(_MAX_NOT_SENT_BYTES, lambda _, record: record.size)
        self.acknowledged = 0
        """How many pods kubelets have acknowledged so far: pods that come later cannot overtake these any more."""
        self.began_to_wait = 0
        """Counts the pods that have come into `waiting`."""
        # Pods reserved or bound here that no kubelet has admitted yet: their refusal is a wrong prediction.
        self._predicted: set[str] = set()
        # The node of each pod that has ended and is not deleted yet.
        self._finished: dict[str, str] = {}

    @property
    def unscheduled(self) -> dict[str, PodRecord]:
        """Returns by UID the pending pods for which kube-scheduler found no node, refused here or never sent here."""
        return {**dict(self._not_sent.items()), **self.waiting}

    @property
    def without_node(self) -> dict[str, PodRecord]:
        """Returns by UID the pods of `unscheduled`, and those with the gate of this service that it does not place: as
        `kubectl topowise explain` lists them."""
        return {**dict(self._unplaced.items()), **self.unscheduled}

    def count(self, event: str) -> None:
        """Something has happened that `events` counts."""
        self.events[event] += 1

    # Pods, as the API server tells of them

    def put_pod(self, record: PodRecord, *, is_news: bool = True) -> None:
        """A pod came or changed; it is booked while it is assigned and has not ended.

        `is_news` is False for a pod that was there before the service.
        """
        uid = record.uid
        if self.exporters.put(record):
            self.node_states.note_change(record.node)
        self.pods.note_event(uid)
        self.reservations.unverified_pods.note_watched(
            uid, record.status.version, is_pending=record.status.stage == "pending"
        )
        if record.status.stage == "pending":
            self._put_pending(record)
            return
        self.stop_waiting(uid)
        placement = self.placements.of(uid)
        if placement is not None and placement.node == record.node:
            # Its label was acknowledged before its gate was opened, and no API object says so.
            node_state = self.node_states.of(record.node)
            entry = None if node_state is None else node_state.history.entry(uid)
            record = record if entry is None else record.steered_as(entry.record)
        self._end_placement(record)
        if record.status.stage == "ended":
            self._put_ended(record, is_news=is_news)
        else:
            self._put_assigned(record, is_news=is_news)

    def drop_pod(self, uid: str) -> None:
        """A pod was deleted."""
        if self.inter_pod is not None:
            self.inter_pod.drop(uid)
        self._forget(uid)

    def _forget(self, uid: str, *, keep_refusal: bool = False) -> None:
        """A pod ended, was deleted, or is on another node than it was expected."""
        self.exporters.drop(uid)
        self.stop_waiting(uid)
        self.placements.drop(uid)
        self.reservations.queried.pop(uid)
        self.reservations.unverified_pods.note_gone(uid)
        # A refused pod stays in `refused` until it is deleted, so that its refusal counts once.
        if not keep_refusal:
            self.refused.pop(uid, None)
        self.reservations.release(uid)
        self._predicted.discard(uid)
        self._bookings.leave(uid, NOWHERE, is_end=True)
        node = self._finished.pop(uid, "")
        if (node_state := self.node_states.of(node)) is not None:
            if node_state.forget_finished(uid):
                self.node_states.publish(node, node_state)
            self.node_states.forget_if_empty(node)

    def note_listed(self, uids: Collection[str]) -> None:
        """These are all pods there are. A pod that the service has bound, and that no event names soon, was deleted
        unseen."""
        self.pods.note_listed(uids, self.clock())

    def pods_on(self, name: str) -> list[PodRecord]:
        """Returns the pods that are assigned to a node."""
        node_state = self.node_states.of(name)
        return [] if node_state is None else [entry.record for entry in node_state.history.bound()]

    def predicted(self, uid: str, name: str) -> dict[str, str]:
        """Returns the annotation with the predicted allocation of a pod on a node, none if it is expected to get
        nothing of its own."""
        state = self.node_states.of(name)
        if state is None or state.kubelet is None or state.report is None or uid not in state.kubelet.active:
            return {}
        return predicted_annotation.for_binding(state.kubelet, uid, has_ids=state.report.precision == "exact")

    def unadmitted(self, name: str, resource: str) -> set[str]:
        """Returns the UIDs of the pods that are bound to a node and request a resource, and whose admission by the
        kubelet the API server does not show yet."""
        node_state = self.node_states.of(name)
        return {
            entry.uid
            for entry in (() if node_state is None else node_state.history.bound())
            if entry.seen.acknowledged is None and entry.needs.requests.get(resource)
        }

    def lose_label(self, uid: str, name: str) -> None:
        """The label of a steered pod may have ended before its kubelet admitted the pod, so it may be anywhere."""
        if (node_state := self.node_states.of(name)) is not None and node_state.lose_label(uid):
            self.node_states.publish(name, node_state)

    # Pods, as schedulers ask about them

    def remember(self, record: PodRecord) -> None:
        """A question is about the pod; its bind will only name it."""
        self.reservations.note_queried(record)

    def remembered(self, uid: str) -> PodRecord | None:
        """Returns a pod that is waiting, or was asked about lately."""
        return self.reservations.queried.get(uid) or self.waiting.get(uid)

    def stop_waiting(self, uid: str) -> None:
        """The pod does not wait any more; its next event may say otherwise."""
        record = self.waiting.pop(uid, None)
        if record is not None and self._waiting_beside:
            self._set_waiting_beside(record, waits=False)
        self._not_sent.pop(uid)
        self._unplaced.pop(uid)

    def place(self, record: PodRecord, name: str) -> None:
        """Expects a gated pod on a node, on which it was found to fit just now; "" if kube-scheduler is to choose one.
        The caller writes that to the pod; without an event that shows it, it ends by itself (placements.py)."""
        self.stop_waiting(record.uid)
        self.placements.decide(record, name)
        if name:
            self._expect(record, name)
            if (node_state := self.node_states.of(name)) is not None:
                node_state.note_judged(record.uid)

    def retract(self, uid: str, *, pause: float = 0.0) -> None:
        """A placement was not written: the pod waits again, unless an event has told what became of it. It has no turn
        for `pause` seconds, or until it changes."""
        placement = self.placements.of(uid)
        if placement is None or not self.placements.retract(uid, pause=pause):
            return
        self._expect(placement.record, "")
        self._put_waiting(placement.record)

    def _expect(self, record: PodRecord, name: str) -> None:
        """A pending pod is placed on a node, or on none any more ("")."""
        if name:
            self.reservations.place(record, name)
        else:
            self.reservations.unplace(record.uid)
        if self.inter_pod is not None:
            self.inter_pod.place(record.uid, name)

    # Time

    def tick(self) -> None:
        """What time alone changes, all at once."""
        for _ in self.ticking():
            pass

    def ticking(self) -> Iterator[None]:
        """What time alone changes, in steps of some nodes; to be gone through about every second."""
        self.reservations.expire()
        now = self.clock()
        for uid in self.pods.unlisted(now - _UNLISTED_S):
            self.drop_pod(uid)
        # The write of the placement has failed silently, so the pod waits again.
        for uid in self.placements.unseen():
            self.retract(uid)
        self.placements.end_pauses()
        of_options = [option.expire(now) for option in self.gates.options]
        for name in chain(self.gates.quarantine.expire(now), self.gates.new_nodes.expire(now), *of_options):
            self.node_states.note_change(name)
            self.node_states.note_improved(name)
        yield from self.late_reports.taking()
        yield from self.node_states.ticking()
        yield from self._outdated_reports.ticking(now, self.reports.nodes, self.reports.not_ready)

    # Inside

    def _put_pending(self, record: PodRecord) -> None:
        if self.pods.of(record.uid).is_assigned:
            # The service has bound the pod, which this event does not know of yet.
            return
        self._put_waiting(record)
        was_placed, node = record.uid in self.placements, self.placements.observe(record)
        # A pod without readable amounts cannot be placed by the model, so it is expected nowhere.
        is_readable = record.needs is not None
        if node and is_readable and not was_placed:
            self._expect(record, node)
        elif was_placed and not node:
            self._expect(record, "")
        self._bookings.nominate(record, record.status.nominated if is_readable else "")

    def _put_waiting(self, record: PodRecord) -> None:
        if record.status.waits and record.needs is not None:
            self.began_to_wait += record.uid not in self.waiting
            self.waiting[record.uid] = record
            self._not_sent.pop(record.uid)
            self._unplaced.pop(record.uid)
            concerns_pods = any(demand.concerns_pods for demand in record.demands.of_options)
            if concerns_pods or self._waiting_beside:
                self._set_waiting_beside(record, waits=concerns_pods)
        else:
            self.stop_waiting(record.uid)
            kept = self._unplaced if GATE in record.status.gates else self._not_sent if record.status.tried else None
            if kept is not None and (record.needs is not None or record.is_too_large) and not record.status.leaving:
                kept.put(record.uid, record)

    def _put_ended(self, record: PodRecord, *, is_news: bool) -> None:
        """A pod has ended by its status. Kubelets up to 1.33 list it until it is deleted."""
        if record.status.refusal and record.uid not in self.refused:
            self.refused[record.uid] = record
            # A refusal from before the service's time says nothing about the node as it is now.
            if is_news:
                self._put_refusal(record, is_predicted=self._is_predicted(record))
        node_state = self.node_states.of(record.node)
        was_booked = node_state is not None and node_state.history.entry(record.uid) is not None
        self._forget(record.uid, keep_refusal=True)
        self.placements.end(record)
        if not record.node:
            return
        self._finished[record.uid] = record.node
        node_state = self.node_states.made(record.node)
        if node_state.finish(record.uid, (record.namespace, record.name), None if was_booked else self.clock()):
            self.node_states.publish(record.node, node_state)
        self.node_states.note_past(record.node, node_state)

    def _put_assigned(self, record: PodRecord, *, is_news: bool) -> None:
        pod = self.pods.of(record.uid)
        if record.status.acknowledged:
            self._predicted.discard(record.uid)
        elif self._is_predicted(record):
            self._predicted.add(record.uid)
        # spec.nodeName never changes once it is set: another node means that the assumed Binding was too late.
        if pod.is_assigned and pod.node != record.node:
            self._forget(record.uid)
        elif pod.is_assigned:
            self._bookings.move(
                record, msgspec.structs.replace(pod, state=State.BOUND) if pod.nominated else bound(pod.node)
            )
            self._update(record)
            if pod.state is not State.BOUND:
                self._note_beside(record)
            return
        if record.needs is None:
            log.warning(
                "Pod cannot be booked",
                extra=kv(pod=f"{record.namespace}/{record.name}", node=record.node, why=record.problem),
            )
            return
        # A pod that was not reserved here was bound by another scheduler, whose next pod is not foreseen.
        if is_news and (pod.state is not State.RESERVED or pod.node != record.node):
            self.node_states.note_bound_by_others()
        self.reservations.queried.pop(record.uid)
        if is_news and self.reservations.copies:
            self.reservations.note_assigned(record)
        self._note_beside(record)
        nominated = self.pods.of(record.uid).nominated
        state = PodState(record.node, State.BOUND, nominated) if nominated else bound(record.node)
        self._bookings.move(record, state, is_news=is_news)

    def _is_predicted(self, record: PodRecord) -> bool:
        """Returns whether the first admission of a pod by its kubelet is pending, and this service predicted it. A
        kubelet that restarts admits its pods again, with what it has by then; other schedulers predict nothing."""
        pod = self.pods.of(record.uid)
        return pod.node == record.node and (pod.state is not State.BOUND or record.uid in self._predicted)

    def _set_waiting_beside(self, record: PodRecord, *, waits: bool) -> None:
        beside = self._waiting_beside[record.namespace]
        beside.pop(record.uid, None)
        if waits:
            beside[record.uid] = record
        if not beside:
            del self._waiting_beside[record.namespace]

    def _note_beside(self, record: PodRecord) -> None:
        """A node may take a pod that waits for this bound pod."""
        for waiting in self._waiting_beside.get(record.namespace, _NO_PODS).values():
            demands = waiting.demands.of_options
            if any(demand.selects(record.namespace, record.name, record.labels) for demand in demands):
                self.node_states.note_improved(record.node)
                return

    def _update(self, record: PodRecord) -> None:
        node_state = self.node_states.of(record.node)
        assert node_state is not None, f"{record.uid} is assigned to a node that has no state"
        if record.needs is None:
            return
        before = node_state.history.entry(record.uid)
        if before is not None and record.status.acknowledged and before.seen.acknowledged is None:
            self.acknowledged += 1
        if node_state.update(record, self.clock()):
            self.node_states.note_past(record.node, node_state)
            self.node_states.publish(record.node, node_state)
        elif before is not None and (before.record.labels, before.record.status.leaving) != (
            record.labels,
            record.status.leaving,
        ):
            # Constraints between pods count pods that stay, by their labels.
            self.node_states.note_change(record.node)
            self._note_beside(record)

    def _end_placement(self, record: PodRecord) -> None:
        """The pod is bound, or has ended."""
        placement = self.placements.of(record.uid)
        if placement is not None and placement.node and record.node:
            self.events["placement_bound" if record.node == placement.node else "placement_elsewhere"] += 1
        self.placements.bind(record)
        self._bookings.nominate(record, "")

    def _put_refusal(self, record: PodRecord, *, is_predicted: bool) -> None:
        self.events[f"refusal_{record.status.refusal}"] += 1
        node_state = self.node_states.of(record.node)
        log.warning(
            "Kubelet refused a pod",
            extra=kv(
                pod=f"{record.namespace}/{record.name}",
                node=record.node,
                reason=record.status.refusal,
                predicted=is_predicted,
            ),
        )
        if is_predicted and node_state is not None and node_state.report is not None and record.shape:
            self.gates.quarantine.put(record.shape, record.node, self.clock())
            self.node_states.note_change(record.node)
