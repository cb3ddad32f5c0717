"""Pods that the service expects on a node, by an answer of its own, until they are bound or a time is over.

Invariant: a pod is reserved on one node at the most, and every reservation ends by itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from topowise import pods
from topowise.bounded import Bounded
from topowise.runtime.log import kv
from topowise_scheduler.kubelet.trial import first_refusal
from topowise_scheduler.ledger.bookings import Bookings
from topowise_scheduler.ledger.gates.gates import Gates
from topowise_scheduler.ledger.pods.pod_states import PodState, State
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.pods.unverified_pods import UnverifiedPods
from topowise_scheduler.verdicts import refusals
from topowise_scheduler.verdicts.refusals import Refusal

log = logging.getLogger(__name__)

DEFAULT_S: Final = 30.0
"""Seconds for which a pod that is not bound is expected: kube-scheduler binds within some, also after a slow Permit or
PreBind plug-in, and asks again otherwise. Volcano's session is as short."""
PLACED_S: Final = 600.0
"""The same for a placed pod: any scheduler may bind it, and one that is down for minutes does so later. Without an end,
whoever writes the annotation of a placement to a pod that nobody binds would keep its room for ever."""
_MAX_QUERIED: Final = 10_000
# The pods of a question need not exist.
_MAX_QUERIED_BYTES: Final = 32 << 20
KEPT_S: Final = 0.6
"""Seconds for which a member stays reserved after the last query of its gang."""


class _Attempt(msgspec.Struct):
    """UIDs of the queried members, the last of them and its time, and whether a member fitted on no node."""

    queried: set[str] = msgspec.field(default_factory=set)
    last: str = ""
    at: float = 0.0
    has_failed: bool = False


class Gangs:
    """Gangs: pods that kube-scheduler places in one cycle, all or none (KEP-4671).

    Invariant: no reservation outlives the scheduling attempt of its gang, as far as requests show the end of an
    attempt. kube-scheduler does not notify extenders when it gives up a gang. But it places pods one at a time, so an
    attempt is over in three cases: a member is queried for the second time; a pod outside the gang is queried after a
    member fitted on no node; no member was queried for `KEPT_S`.

    Scheduling attempts in progress, by name of the gang.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._attempts: dict[str, _Attempt] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._attempts

    def note_queried(self, record: PodRecord) -> set[str]:
        """Records a query of kube-scheduler. Returns the UIDs of pods whose reservations end by it."""
        # A pod outside a failed gang is queried: kube-scheduler has given the gang up.
        given_up = self._take_failed(record.group)
        if not record.group:
            return given_up
        attempt = self._attempts.setdefault(record.group, _Attempt())
        # A retry of the same request is no new attempt, so the last member may repeat.
        if record.uid in attempt.queried and record.uid != attempt.last:
            given_up |= attempt.queried
            self._attempts[record.group] = attempt = _Attempt()
        attempt.queried.add(record.uid)
        attempt.last, attempt.at = record.uid, self._clock()
        return given_up

    def note_unschedulable(self, record: PodRecord) -> None:
        """Records that the pod fits on no node."""
        attempt = self._attempts.get(record.group)
        if attempt is not None:
            attempt.has_failed = True

    def expire(self) -> None:
        """Drops the attempts without a query in the last `KEPT_S`."""
        until = self._clock() - KEPT_S
        self._attempts = {name: attempt for name, attempt in self._attempts.items() if attempt.at > until}

    def _take_failed(self, group: str) -> set[str]:
        """Drops the failed attempts of all other gangs. Returns the UIDs of their queried members."""
        failed = [name for name, attempt in self._attempts.items() if attempt.has_failed and name != group]
        return {uid for name in failed for uid in self._attempts.pop(name).queried}


class Reservations:
    """The reservations of a cluster. `clock` gives seconds, monotonic."""

    def __init__(self, bookings: Bookings, gates: Gates, events: Counter[str], clock: Callable[[], float]) -> None:
        self._bookings = bookings
        self._pods = bookings.pods
        self._gates = gates
        self._events = events
        self._clock = clock
        self.queried: Bounded[str, PodRecord]
        self.queried = Bounded(_MAX_QUERIED_BYTES, lambda _, record: record.size, _MAX_QUERIED)
        """Records of queried pods: a bind request only names its pod."""
        self.unverified_pods = UnverifiedPods()
        """Pods that no watch has brought yet."""
        self._gangs = Gangs(clock)
        self.copies: dict[tuple[str, bytes], list[str]] = {}
        """Reserved copies of templates, whose places the pods of the template take, by namespace and shape."""
        self._places = gates.reserved_places

    def __len__(self) -> int:
        return self._pods.reserved

    def note_queried(self, record: PodRecord) -> None:
        """A question is about the pod; its bind will only name it."""
        for uid in self._gangs.note_queried(record):
            self.release(uid)
        if self.copies:
            self._take_copy(record)
        self.queried.put(record.uid, record)

    def hand_over(self, record: PodRecord) -> None:
        """A reserved copy of a template makes way for the first pod of its namespace and requests that is queried."""
        self.copies.setdefault((record.namespace, record.shape), []).append(record.uid)

    def _take_copy(self, record: PodRecord) -> None:
        """Releases a copy for a queried pod: at its first query, so that a retry takes no second place."""
        key = record.namespace, record.shape
        copies = self.copies.get(key, [])
        while copies and record.uid not in self._places.places:
            copy = self._pods.of(uid := copies.pop())
            # The reservation of the copy may have ended by time.
            if copy.state is State.RESERVED:
                self._places.places[record.uid] = copy.node, copy.until
                self.release(uid)
        if not copies:
            self.copies.pop(key, None)

    def note_assigned(self, record: PodRecord) -> None:
        """Releases a copy for a pod that was bound without a query here, on the node of the pod if possible."""
        key = record.namespace, record.shape
        copies = [uid for uid in self.copies.get(key, []) if self._pods.of(uid).state is State.RESERVED]
        if record.uid not in self._places.places and copies:
            copies.sort(key=lambda uid: self._pods.of(uid).node == record.node)
            self.release(copies.pop())
            self.copies[key] = copies
        if not copies:
            self.copies.pop(key, None)

    def _return_to_place(self, record: PodRecord, needs: pods.Needs) -> None:
        """A pod that was not bound is expected again where the copy was whose place it has taken."""
        node, until = self._places.places.get(record.uid, ("", 0.0))
        if node and until > self._clock():
            self.put_unasked(record, needs, node, until - self._clock())

    def note_nowhere(self, record: PodRecord) -> None:
        """A pod that was asked about fits on no node."""
        self._gangs.note_unschedulable(record)
        if self._places.places and record.needs is not None:
            self._return_to_place(record, record.needs)

    def put(self, record: PodRecord, needs: pods.Needs, name: str, *, judged_at: int = -1) -> None:
        """Expects a pod on a node, and on no other node, until it is bound, reserved anew, or its time is over.

        `judged_at`: what `NodeStates.changes` counted when the pod was found to fit there.
        """
        node_states, pod = self._bookings.node_states, self._pods.of(record.uid)
        if pod.state is State.RESERVED and record.uid not in self._bookings.placements:
            # A pod has a single reservation: the previous answer was not used. A placed pod keeps its place.
            pod = pod.left()
            self._bookings.leave(record.uid, pod)
        node_state = node_states.of(name)
        if not record.uid or pod.is_assigned or node_state is None or node_state.kubelet is None:
            return
        if not self.unverified_pods.may_reserve(record.uid, record.status.version, self._clock()):
            return
        # The verdict was of all possible placements, and of the node as it still is: the bind need not ask again.
        is_as_judged = judged_at >= node_states.changed_at(name)
        until = self._clock() + (KEPT_S if record.group else DEFAULT_S)
        reserved = msgspec.structs.replace(pod, node=name, state=State.RESERVED, until=until)
        self._reserve(record, needs, reserved)
        if is_as_judged:
            node_state.note_judged(record.uid)

    def _reserve(self, record: PodRecord, needs: pods.Needs | None, reserved: PodState) -> None:
        """Books the pod as its kubelet is expected to get it, and tells the options."""
        options, expected = self._gates.options_for(record), record
        for option in options:
            expected = option.expected(expected, reserved.node)
        self._bookings.move(expected, reserved, needs=needs)
        self._tell_options(record, reserved.node)

    def _tell_options(self, record: PodRecord, name: str) -> None:
        for option in self._gates.options_for(record):
            option.reserve(record, name)

    def put_unasked(
        self, record: PodRecord, needs: pods.Needs, name: str, seconds: float, *, in_any_order: bool = False
    ) -> Refusal | None:
        """Reserves a node for `seconds` for a pod that no scheduler has asked to place yet. Returns why its kubelet
        would refuse the pod as things are predicted, None if the node is reserved.

        `in_any_order`: the pods on their way to the node are to be admitted in whatever order they come.
        """
        pod, node_state = self._pods.of(record.uid), self._bookings.node_states.of(name)
        state = None if node_state is None else node_state.without({record.uid})
        if pod.is_assigned or state is None:
            return Refusal.IS_BOUND if pod.is_assigned else Refusal.NOT_REPORTED
        refusal = refusals.of(first_refusal((state,), record.view), ever=False)
        if refusal is not None:
            return refusal
        if in_any_order and not self._gates.fits_in_any_order(record, name):
            return Refusal.OTHER_ORDER
        self.release(record.uid)
        until = self._clock() + seconds
        reserved = msgspec.structs.replace(pod.left(), node=name, state=State.RESERVED, until=until)
        self._bookings.move(record, reserved, needs=needs)
        self._tell_options(record, name)
        return None

    def put_for_other_binder(
        self, record: PodRecord, needs: pods.Needs, name: str, seconds: float, leaving: Collection[str] = ()
    ) -> Refusal | None:
        """Reserves a node for `seconds` for a pod that another scheduler will bind, if its kubelet will take the pod.

        Returns why not, None if the node is reserved or the pod is assigned to it already. If the pods `leaving` have
        to leave first, only what they hold there is counted on. A node without a report takes every pod.
        """
        pod = self._pods.of(record.uid)
        if pod.is_assigned:
            return None if pod.node == name else Refusal.IS_BOUND
        refusal = self._gates.at_bind(record, name, leaving)
        if not refusal and not self._gates.fits_in_any_order(record, name, leaving):
            refusal = Refusal.OTHER_ORDER
        if not refusal and self._gates.needs_prebind(record, name):
            refusal = Refusal.NOT_STEERED_BY_BINDER
        node_state = self._bookings.node_states.of(name)
        if refusal or node_state is None or node_state.kubelet is None or not record.uid:
            return refusal
        if not self.unverified_pods.may_reserve(record.uid, record.status.version, self._clock()):
            return Refusal.NOT_SEEN
        self.release(record.uid)
        until = self._clock() + seconds
        reserved = PodState(name, State.RESERVED, pod.nominated, until, pipelined=bool(leaving))
        self._bookings.move(record, reserved, needs=needs)
        return None

    def place(self, record: PodRecord, name: str) -> None:
        """Expects a pod that this service has placed on a node, until an event says otherwise."""
        node_state, pod = self._bookings.node_states.of(name), self._pods.of(record.uid)
        if pod.is_assigned or node_state is None or node_state.kubelet is None:
            return
        if pod.state is State.RESERVED and pod.node == name:
            # Its claims may be others than when it was reserved.
            self._tell_options(record, name)
            return
        until = self._clock() + PLACED_S
        self._reserve(record, record.needs, PodState(name, State.RESERVED, record.status.nominated, until))

    def unplace(self, uid: str) -> None:
        """A pod has lost its placement."""
        pod = self._pods.of(uid)
        if pod.state is State.RESERVED:
            self._bookings.leave(uid, pod.left())

    def release(self, uid: str) -> None:
        """Ends the reservation of a pod, if it has one; a placed pod keeps its place until it is bound."""
        if uid not in self._bookings.placements:
            self.unplace(uid)

    def assume(self, record: PodRecord, needs: pods.Needs, name: str) -> Refusal | None:
        """Assigns a pod that is about to be bound, if its kubelet will take it. Returns why not, None if booked."""
        pod = self._pods.of(record.uid)
        if pod.state is State.BOUND:
            return Refusal.IS_BOUND
        # kube-scheduler chose another node than the best; its decision counts.
        if pod.state is State.RESERVED and pod.node != name:
            self.release(record.uid)
        # An earlier bind of this pod was given up by its caller.
        self.forget(record.uid)
        refusal = self._gates.at_bind(record, name)
        if refusal:
            self._events["bind_conflict"] += 1
            self.release(record.uid)
            if self._places.places:
                self._return_to_place(record, needs)
            return refusal
        self.queried.pop(record.uid)
        self._bookings.move(record, PodState(name, State.ASSUMED, self._pods.of(record.uid).nominated), needs=needs)
        return None

    def forget(self, uid: str, name: str = "") -> None:
        """The bind of an assumed pod (to this node) has failed; no news if the pod is somewhere else by now."""
        pod = self._pods.of(uid)
        if pod.state is State.ASSUMED and (not name or pod.node == name):
            self._bookings.leave(uid, pod.left())

    def expire(self) -> int:
        """Ends reservations that no bind has fulfilled in time, or whose pods do not exist. Returns their number."""
        now = self._clock()
        unverified = [
            uid for uid in self.unverified_pods.take_expired(now) if self._pods.of(uid).state is State.RESERVED
        ]
        if unverified:
            log.warning("Reservations dropped, no watch has brought their pods", extra=kv(pods=len(unverified)))
        self._gangs.expire()
        self._places.expire(now)
        late = [uid for uid in self._pods.expired(now) if uid not in unverified and not self._is_decided(uid)]
        # Members of a gang that is being decided are not late: their bind may follow.
        for uid in (*unverified, *late):
            self.unplace(uid)
        self._events["reservation_expired"] += len(unverified) + len(late)
        return len(unverified) + len(late)

    def _is_decided(self, uid: str) -> bool:
        """Returns whether the pod is of a gang that is being decided."""
        record = self.queried.get(uid)
        return record is not None and record.group in self._gangs
