"""The state of one node: what its kubelet holds for every pod, those of its last report and those after it.

A report is a past. Pods assigned since are placed by the model, in the order in which they were assigned, where the
kubelet will place them; reservations and nominations are placed like them, and can be taken away again. When a report
arrives, what it confirms replaces the prediction, the rest is placed anew on top of it (confirmation.py).

Invariant: `kubelet` is the last report with every booking in it exactly once, as the report has it or placed by the
model; only a booking for which the model has no room is left out (`check`). Whatever takes room from a newcomer moves
`_revision` on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from copy import copy
from itertools import pairwise
from typing import NamedTuple

from topowise import fingerprint, pods
from topowise_scheduler.cluster import confirmation
from topowise_scheduler.cluster.bookings import Booking, BookingState, Resize, is_predicted, uncertain
from topowise_scheduler.cluster.confirmation import Comparison
from topowise_scheduler.cluster.ended_pods import ENDED_KEPT_S, Ended, EndedPods, lists_finished
from topowise_scheduler.cluster.possible_placements import (
    has_choice_of_devices,
    holds_anything,
    holds_own,
    is_of_any_size,
    is_undone_by_removal,
    own_amounts,
    position_of,
)
from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.cluster.same_zones import same_zones
from topowise_scheduler.device_affinity import Devices
from topowise_scheduler.kubelet import Admission, Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.same_node import is_same_node
from topowise_scheduler.report import PageSizes, Placements, PodName, Report, kubelet_of, of_node


class _News(NamedTuple):
    """The pods of which a report may tell something new, by their names, and the bookings of them."""

    names: Set[PodName]
    bookings: Collection[Booking]


class NodeState:
    """One node. `kubelet` is its present state, None until it has been reported."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.kubelet: Kubelet | None = None
        self.bookings: dict[str, Booking] = {}
        self._past = EndedPods()
        self._reported_at = 0.0
        self._removals = 0
        self._placements = 0
        self._revision = 0
        # Pods by uid that the numbers of a counts report are known to be of; where they lie may be known.
        self._included: dict[str, tuple[PodName, pods.Needs]] = {}
        # The NUMA nodes that the highest positions of the bookings are among.
        self._node_ids: tuple[int, ...] = ()
        # What the present report says of a pod is not what is known of it: nothing follows from the next saying it too.
        self._is_overruled = False

    def __repr__(self) -> str:
        pods = ", ".join(
            f"{uid} {one.state.name.lower()}{' reported' if one.reported else ' placed' if one.placed else ''}"
            for uid, one in self.bookings.items()
        )
        return f"{'unreported' if self.report is None else self.report.version or 'reported'} ({pods})"

    def booking_states(self) -> dict[str, BookingState]:
        """What the pods here are, by uid."""
        return {uid: booking.state for uid, booking in self.bookings.items()}

    def check(self) -> None:
        """Raises AssertionError if anything here contradicts itself; for tests."""
        assert (self.report is None) == (self.kubelet is None), self
        active = () if self.kubelet is None else self.kubelet.active
        for uid, booking in self.bookings.items():
            assert uid == booking.uid, f"{uid} is {booking.uid}"
            assert not (booking.reported and booking.state is not BookingState.ASSIGNED), (
                f"{uid} is reported, of {self}"
            )
            assert not booking.placed or uid in active, f"{uid} is placed, of {self}"
            assert booking.placed or booking.reported or uid not in active, f"{uid} is not placed, of {self}"

    def put_report(self, report: Report, now: float) -> Comparison:
        """A new report; `now` is in seconds, monotonic."""
        self.forget_past(now)
        self._reported_at = now
        is_newer = self.report is None or not report.version or report.version != self.report.version
        comparison, news = Comparison(), None
        if report.precision == "exact":
            if is_newer:
                self._past.note_report(report)
            news = self._news(report)
            told = None if news is None else news.bookings
            if self.kubelet is not None:
                comparison = confirmation.compare(report, self._assigned(told), self.kubelet, self._past.ended, now)
            self._mark_reported(report, told)
        else:
            self._included = {}
            self._mark_counted(report, believes=is_newer)
        self.report, self._is_overruled = report, False
        self._rebuild(report, news)
        return comparison

    def _news(self, report: Report) -> _News | None:
        """What an exact report may tell that is not known yet; None for all. Of other pods it says what the last one
        said, which was all of them."""
        last = self.report
        if last is None or self._is_overruled or last.empty is not report.empty:
            return None
        if not (last.zone_marks and report.zone_marks):
            return None
        before, held = last.held, report.held
        names = self._past.in_report(report) | (before.keys() - held.keys())
        names.update([name for name, placements in held.items() if before.get(name) is not placements])
        uids = {name for namespace, name in names if not namespace}
        unsure = [one for uid, one in self.bookings.items() if uid in uids or not one.is_settled]
        names.update([one.name for one in unsure])
        bookings = [one for one in self.bookings.values() if one.name in names]
        names.update([("", one.uid) for one in bookings])
        return _News(names, bookings)

    def judge_as(self, kubelet_version: str, page_sizes: PageSizes) -> bool:
        """The Node has this kubelet, and it knows these hugepages. True if that changes what is known of it: everything
        is judged anew then.

        Versions that decide alike on this hardware share `empty`, and what was placed on it stays as it is.
        """
        before = self.report
        if before is None:
            return False
        self.report = of_node(before, kubelet_version, page_sizes)
        is_other = self.report.empty is not before.empty
        if is_other:
            self._rebuild(self.report)
        return is_other

    def drop_report(self) -> None:
        """Nobody reports the node any more."""
        self.report = self.kubelet = None
        for booking in self.bookings.values():
            booking.reported = booking.placed = booking.whole = False

    def put(self, booking: Booking, *, is_news: bool = True) -> bool:
        """Book a pod, or raise the state of its booking. False if the node is as it was, for all that is known.

        `is_news` is False for a pod that was there before us: a report without a fingerprint may include it.
        """
        held = self.bookings.get(booking.uid)
        report = self.report
        if held is not None and held.state <= booking.state and held.record.shape != booking.record.shape:
            # It was resized on its way here.
            self.drop(booking.uid, None)
            held = None
        was_uncertain = held is not None and (held.state is BookingState.RESERVED or held.ahead)
        if held is not None:
            held.record = booking.record
            if booking.state <= held.state:
                # An event of it that says nothing new: it holds what it held.
                return False
            was_nominated, was_in_order = held.state is BookingState.NOMINATED, self._is_in_order()
            held.state, held.since = booking.state, booking.since
            # One that we have nominated ahead and that comes in its turn is what it was to all others.
            is_as_foreseen = was_nominated and held.ahead and was_in_order and self._is_in_order()
            if was_nominated and not is_as_foreseen:
                # From now on it may lie elsewhere than predicted, and come in another turn.
                self._revision += 1
                held.releases_before = -1
            held.acknowledged = booking.acknowledged
            if report is None or booking.state is not BookingState.ASSIGNED:
                # It was placed when it was nominated, and a reservation is placed in the same way.
                return not is_as_foreseen
            booking = held
        else:
            self.bookings[booking.uid] = booking
            if not is_news and report is not None and report.precision == "counts" and not report.fingerprint:
                self._mark_by_amounts(report)
                self._rebuild(report)
                return True
            if report is None or booking.state is not BookingState.ASSIGNED:
                self._place(booking)
                return True
        if self._is_included(report, booking):
            self._rebuild(report)
            return True
        if self._comes_in_its_turn(booking):
            # It stays where it is. One that was reserved counted as uncertain already, so that nothing else changes.
            return self._start(booking) or not was_uncertain
        self._place_before_the_less_sure(booking)
        return True

    def update(self, record: PodRecord, now: float) -> bool:
        """A booked pod has changed. True if that changes the node's state: it was resized, or its init containers are
        done."""
        booking = self.bookings.get(record.uid)
        if booking is None:
            return False
        if record.acknowledged and booking.acknowledged is None:
            booking.acknowledged = now
        before, booking.record = booking.record, record
        if record.shape != before.shape and record.needs is not None and before.needs is not None:
            booking.needs = record.needs
            return self._resize(booking, before, now)
        has_started = record.runs and not before.runs
        return has_started and booking.placed and self._start(booking)

    def _resize(self, booking: Booking, before: PodRecord, now: float) -> bool:
        """Its kubelet has given a pod other amounts: it is placed anew, as if it came now, until a report shows it."""
        report, node = self.report, self.kubelet
        if report is None or node is None:
            return False
        if own_amounts(node, booking.record.view(node)) != own_amounts(node, before.view(node)):
            booking.since = booking.acknowledged = now
            booking.reported = booking.whole = booking.compared = booking.missed = False
            booking.resized = Resize(now, report.version, report.held.get(booking.name))
        self._rebuild(report)
        return True

    def note_judged(self, uid: str) -> None:
        """The pod was found to fit before it was booked, and nothing else has changed since."""
        booking = self.bookings.get(uid)
        if booking is not None:
            booking.judged_in = self._revision

    def is_as_judged(self, uid: str) -> bool:
        """Whether a pod that is expected here fits, because it did and nothing has changed since: it holds its place,
        and whatever came or left would have moved the revision on."""
        booking = self.bookings.get(uid)
        return booking is not None and booking.placed and booking.judged_in == self._revision

    def lower(self, uid: str, state: BookingState) -> None:
        """The pod is less sure to come than it was."""
        if uid in self.bookings:
            self.bookings[uid].state = state
            self.bookings[uid].releases_before = -1

    def drop(self, uid: str, ended_at: float | None) -> None:
        """A pod has ended (seconds, monotonic), or is not expected any more (None)."""
        booking = self.bookings.get(uid)
        if booking is None:
            return
        self._revision += 1
        self._raise_highest(booking)
        if ended_at is not None:
            self._doubt_those_after(booking, ended_at)
        # One that was only expected has never come: their kubelet will place those after it as if it had not been.
        left_at = ended_at if booking.state is BookingState.ASSIGNED else None
        beside = self._predicted_after([booking]) if left_at is None else []
        del self.bookings[uid]
        if left_at is not None:
            # Without a report too: the next one may be of before.
            held = self.report.held.get(booking.name) if self.report is not None and booking.whole else None
            self._past.ended[booking.name] = Ended(left_at, booking.record, held)
            if self.kubelet is not None and holds_own(self.kubelet, self._view(booking)):
                self._past.releases.append(left_at)
        elif booking.reported:
            self._is_overruled = True
        if self.kubelet is None or self.report is None:
            return
        is_undone = left_at is not None or self._is_undone((booking, *beside))
        is_counted = self.report.precision == "counts"
        if not is_undone or (is_counted and self._mark_counted(self.report, believes=ended_at is not None)):
            self._rebuild(self.report)
            return
        # A pod that a counts report includes stays in its numbers until the next one, if nobody knows where it lies.
        self.kubelet.remove(uid)
        for one in beside:
            self.kubelet.remove(one.uid)
            one.placed = False
        self._removals += 1
        self._place_the_rest()

    def _predicted_after(self, expected: Collection[Booking]) -> list[Booking]:
        """The pods that were placed beside one of these, which holds something, and of which no report tells."""
        node = self.kubelet
        if node is None:
            return []
        turns = [one.turn for one in expected if one.placed and holds_own(node, self._view(one))]
        if not turns:
            return []
        first, gone = min(turns), {id(one) for one in expected}
        return [
            one
            for one in self.bookings.values()
            if one.placed and not one.reported and not one.whole and one.turn > first and id(one) not in gone
        ]

    def finish(self, uid: str, name: PodName, now: float) -> bool:
        """A pod has ended by its own status: what a report lists of it from now on is free, however long it does. True
        if that changes the node's state."""
        self._past.finish(uid, name, now)
        report = self.report
        if report is None or name in self._past.ended or not lists_finished(report, uid, name):
            return False
        self._rebuild(report)
        return True

    def forget_finished(self, uid: str) -> None:
        """It was deleted; its kubelet lists it no longer."""
        name, report = self._past.forget_finished(uid), self.report
        if name is not None and report is not None and lists_finished(report, uid, name):
            self._is_overruled = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of the node."""
        return self.report is None and not self.bookings and not self._past

    def forget_past(self, now: float) -> bool:
        """Ended pods of long ago; True if the report still lists one of them, which now holds again what it held."""
        report = self.report
        late, unseen_ends = self._past.forget(now), self._past.forget_unseen(now)
        if report is not None and any(("", one.record.uid) in report.held for one in late):
            self._is_overruled = True
        unseen = [one for one in self.bookings.values() if one.resized and now - one.resized.at >= ENDED_KEPT_S]
        for booking in unseen:
            booking.resized = None
        if report is None:
            return False
        adds_up_otherwise = bool(late) and report.precision == "counts" and not report.fingerprint
        if not (
            unseen
            or adds_up_otherwise
            or any(name in report.held for name in (*unseen_ends, *[one.name for one in late]))
        ):
            return False
        if report.precision == "exact":
            self._mark_reported(report)
        else:
            self._mark_counted(report, believes=adds_up_otherwise)
        self._rebuild(report)
        return True

    @property
    def remembers(self) -> bool:
        """Whether `forget_past` will have something to do."""
        return self._past.will_be_forgotten or any(one.resized for one in self.bookings.values())

    def without(self, uids: Collection[str]) -> Kubelet | None:
        """A copy of the present state in which these pods are gone, and those that are only expected never came."""
        if self.kubelet is None or self.report is None:
            return None
        told = [one for uid in uids if (one := self.bookings.get(uid)) is not None]
        expected = [one for one in told if one.state is not BookingState.ASSIGNED]
        beside = [one for one in self._predicted_after(expected) if one.uid not in uids]
        is_undone = self._is_undone((*expected, *beside))
        kubelet = self.kubelet.fork() if is_undone else self._anew_without(self.report, expected)
        for uid in uids:
            kubelet.remove(uid)
        for one in beside if is_undone else ():
            kubelet.remove(one.uid)
        for booking in sorted(self.bookings.values(), key=lambda one: -one.state):
            # Room that only pods to be left out have taken is the room of those that stay.
            is_predicted = not booking.reported and not booking.whole
            if is_predicted and booking.uid not in kubelet.active and booking.uid not in uids:
                _admit(kubelet, booking)
        return kubelet

    def _anew_without(self, report: Report, expected: Collection[Booking]) -> Kubelet:
        """The state as it would be if these pods had never been expected."""
        other = copy(self)
        gone = {one.uid for one in expected}
        other.bookings = {uid: copy(one) for uid, one in self.bookings.items() if uid not in gone}
        other._rebuild(report, afresh=True)
        assert other.kubelet is not None
        return other.kubelet

    def located_devices(self) -> Devices:
        """Where its devices are, and the pods of which the report does not list all that they hold."""
        if self.report is None:
            return Devices({})
        guessed = {one.uid for one in self.bookings.values() if not one.reported}
        return Devices(self.report.places, guessed)

    def uncertain(self, now: float) -> list[PodView]:
        """The pods that may lie elsewhere than predicted, if they lie there at all."""
        node = self.kubelet
        if node is None:
            return []
        if len(node.node_ids) > 1:
            return [view for one in self._uncertain(now) if holds_anything(node, view := self._view(one))]
        if not any(is_of_any_size(node, self._view(one)) for one in self.bookings.values() if not one.reported):
            return []
        return [view for one in self._uncertain(now) if is_of_any_size(node, view := self._view(one))]

    def _uncertain(self, now: float) -> list[Booking]:
        node = self.kubelet
        told = [one for one in self.bookings.values() if not one.reported]
        if node is None or not any(is_predicted(one, now) for one in told):
            return []
        holders = [one for one in told if holds_own(node, one.record.seen(node))]
        if not holders:
            return []
        undecided = {one.uid for one in holders if has_choice_of_devices(node, one.record.seen(node))}
        return uncertain(holders, self._past.releases, now, undecided)

    def highest(self) -> dict[str, int]:
        """By uid the highest position at which a pod has been predicted, of those whose way here has been seen. From
        counts a prediction is not as good as that."""
        if self.report is None or self.report.precision != "exact":
            return {}
        return {one.uid: one.highest for one in self.bookings.values() if one.highest is not None and not one.was_there}

    def _renumber(self, node_ids: tuple[int, ...]) -> None:
        """Positions mean others where NUMA nodes have come or gone, such as one without anything but devices."""
        if self._node_ids not in ((), node_ids):
            for booking in self.bookings.values():
                booking.highest = None if booking.highest is None else len(node_ids) - 1
        self._node_ids = node_ids

    def _raise_highest(self, booking: Booking) -> None:
        """A pod that goes, or is known to lie somewhere, may have lain elsewhere when those after it were admitted:
        they may lie anywhere. As long as all of them are there, and alike, it is all the same which lies where."""
        if self.kubelet is None or booking.highest is None or booking.reported or booking.whole:
            return
        last = len(self.kubelet.node_ids) - 1
        for other in self.bookings.values():
            if other is not booking and other.highest is not None:
                other.highest = last

    def _doubt_those_after(self, booking: Booking, now: float) -> None:
        """A pod goes that nobody has seen where it lay: those after it were predicted beside its predicted place."""
        if booking.reported or booking.whole or not any(one is booking for one in self._uncertain(now)):
            return
        for other in self.bookings.values():
            if other.since > booking.since:
                other.followed_uncertain = True

    def _view(self, booking: Booking) -> PodView:
        assert self.kubelet is not None
        return booking.record.view(self.kubelet)

    def _assigned(self, among: Collection[Booking] | None = None) -> list[Booking]:
        bookings = self.bookings.values() if among is None else among
        return [booking for booking in bookings if booking.state is BookingState.ASSIGNED]

    def _is_included(self, report: Report, booking: Booking) -> bool:
        """Whether the report we have includes a pod whose assignment we only hear of now: watches are not in step."""
        if report.precision == "counts":
            return self._mark_counted(report, believes=False)
        self._mark_reported(report, [booking])
        return booking.reported

    def _mark_reported(self, report: Report, among: Collection[Booking] | None = None) -> None:
        for booking in self._assigned(among):
            is_confirmed = confirmation.confirms(report, booking, self._past.ended, self._reported_at)
            if is_confirmed:
                self._raise_highest(booking)
                booking.resized = None
                booking.whole = booking.compared = True
            booking.reported = is_confirmed

    def _mark_counted(self, report: Report, *, believes: bool) -> bool:
        """Mark the pods that the numbers of a counts report include. True if there are new marks.

        Numbers without a fingerprint are added up anew only if something `believes` that they tell something new.
        """
        if not report.fingerprint:
            return believes and self._mark_by_amounts(report)
        assigned = self._assigned()
        if all(booking.reported for booking in assigned):
            # Marks are only ever added here, and there is nobody left to mark.
            return False
        found = confirmation.by_fingerprint(report, assigned, self._past.ended, self._reported_at)
        for booking in found:
            booking.reported, booking.resized = True, None
        return bool(found)

    def _mark_by_amounts(self, report: Report) -> bool:
        """Mark whom the numbers can include, and nobody else. True for any change."""
        assigned = self._assigned()
        marks = confirmation.by_amounts(report, assigned, self._past.ended)
        has_changed = False
        for position, booking in enumerate(assigned):
            is_included = position in marks
            has_changed = has_changed or booking.reported != is_included
            booking.reported = is_included
            if is_included:
                booking.resized = None
        return has_changed

    def _rebuild(self, report: Report, news: _News | None = None, *, afresh: bool = False) -> None:
        """The report's state, with what it does not include placed on top, the surest first; if not `afresh`, what is
        as it was is taken over, and with `news` nothing else is looked at."""
        self._revision += 1
        before = self.kubelet
        later_ends = self._ends_after_admissions(report)
        afresh = afresh or bool(later_ends)
        same = None if afresh or before is None or not is_same_node(before, report.empty) else before
        news = None if same is None else news
        told = self.bookings.values() if news is None else news.bookings
        if report.offsets is not None and report.fingerprint and not self._included:
            counted = confirmation.counted(report, self._assigned(), self._past.ended)
            if report.fingerprint == fingerprint.of([one.name for one in counted]):
                self._included = {one.uid: (one.name, one.needs) for one in counted}
        is_exact = report.precision == "exact"
        known: dict[PodName, tuple[str, Mapping[str, int]]] = {}
        gone = self._past.in_report(report)
        for booking in self._assigned(told):
            # A pod that its kubelet has not started yet is in the report by its uid alone.
            names = (booking.name, ("", booking.uid))
            if booking.reported:
                # A kubelet may go by the containers alone (gate PodLevelResources).
                by_pod = booking.needs.pod_level is not None
                requests = booking.record.view(report.empty).requests if by_pod else booking.needs.requests
                known.update(dict.fromkeys(names, (booking.uid, requests)))
                gone.difference_update(names)
            else:
                gone.update(names)
        for ended in later_ends:
            listed_as = (ended.name, ("", ended.record.uid))
            known.update(dict.fromkeys(listed_as, (ended.record.uid, ended.record.view(report.empty).requests)))
            gone.difference_update(listed_as)
        bare = frozenset() if same is None or not is_exact else self._bare(same, report, told)
        self.kubelet = kubelet_of(
            report,
            known.get,
            without=gone,
            pods=self._included,
            before=same,
            beside=bare,
            news=news and (news.names, [one.uid for one in told]),
        )
        self._renumber(self.kubelet.node_ids)
        bare &= self.kubelet.active.keys()
        for uid in self._included.keys() - self.bookings.keys():
            self.kubelet.remove(uid)
        settled: frozenset[str] = frozenset()
        if before is not None:
            settled = (
                self._keep_unlisted(before, self.kubelet, told) if is_exact else self._settle(before, self.kubelet)
            )
        settled |= self._place_before_ends(later_ends, self.kubelet, settled)
        for booking in sorted(told, key=lambda one: -one.state):
            if booking.uid in settled:
                continue
            if booking.uid in bare:
                booking.releases_before = self._removals
                continue
            booking.placed = is_exact and booking.reported
            if not booking.reported:
                self._place(booking)
        if bare and not self.kubelet.is_within:
            # Somebody will be refused, and it matters who came last.
            self._rebuild(report, afresh=True)

    def _ends_after_admissions(self, report: Report) -> list[Ended]:
        """Returns the ended pods that an exact report still lists and that ended after an unlisted pod was admitted.

        Such a report is older than the admission: the kubelet decided the unlisted pod while the ended pod was there.
        """
        if report.precision != "exact" or not self._past.ended:
            return []
        admissions = [at for one in self._admitted_unreported() if (at := one.acknowledged) is not None]
        if not admissions:
            return []
        first = min(admissions)
        return sorted(
            (
                ended
                for name, ended in self._past.ended.items()
                if first < ended.at and ended.may_be(report.held.get(name, {}))
            ),
            key=lambda ended: ended.at,
        )

    def _admitted_unreported(self) -> list[Booking]:
        return [one for one in self._assigned() if not (one.acknowledged is None or one.reported or one.whole)]

    def _place_before_ends(self, later_ends: Iterable[Ended], node: Kubelet, settled: frozenset[str]) -> frozenset[str]:
        """Places each pod that was admitted before an end while the ended pod is still there; returns their uids."""
        placed: set[str] = set()
        for ended in later_ends:
            is_listed = ended.record.uid in node.active
            for booking in self._admitted_unreported():
                if booking.uid in settled or booking.uid in placed or (booking.acknowledged or 0.0) >= ended.at:
                    continue
                if is_listed:
                    self._place(booking)
                    placed.add(booking.uid)
                elif holds_own(node, ended.record.view(node)):
                    # The report is even older than the ended pod: where that pod lay is not known any more.
                    booking.followed_uncertain = True
            node.remove(ended.record.uid)
        return frozenset(placed)

    def _bare(self, node: Kubelet, report: Report, among: Iterable[Booking]) -> frozenset[str]:
        """The pods that were placed, of which no report will ever tell: they hold nothing. Nothing but the sums of
        requests decides whether they have room."""
        return frozenset(
            one.uid
            for one in among
            if one.placed
            and not one.reported
            and not one.resized
            and one.name not in report.held
            and node.has_bare(one.uid, one.record.seen(node))
        )

    def _keep_unlisted(self, before: Kubelet, node: Kubelet, among: Collection[Booking]) -> frozenset[str]:
        """A pod that was listed whole and is not any more has ended, or its kubelet starts anew: it lies where it lay
        or nowhere, until its own event tells. If others have its room, it is gone."""
        if before.topology is not node.topology:
            return frozenset()
        unlisted = [one for one in self._assigned(among) if one.whole and not one.reported]
        for booking in unlisted:
            lay = before.placements(booking.uid) if booking.uid in before.active else {}
            # With other ids, if a pod that came after its end has some of them.
            placements = same_zones(node, lay) if lay else None
            booking.placed = placements is not None
            if placements is not None:
                node.hold(booking.uid, self._view(booking).requests, placements)
        return frozenset(one.uid for one in unlisted)

    def _settle(self, before: Kubelet, node: Kubelet) -> frozenset[str]:
        """Put pods that no report tells of where they were predicted when their kubelet took them on.

        koordlet tells of nobody, ever: to place its pods anew would move them as soon as one of them has ended.
        """
        if before.topology is not node.topology:
            return frozenset()
        settled = set()
        for booking in self._assigned():
            if booking.reported or not booking.placed or booking.acknowledged is None or booking.resized is not None:
                continue
            if booking.uid not in before.active:
                continue
            placements = same_zones(node, before.placements(booking.uid))
            if placements is not None:
                node.hold(booking.uid, self._view(booking).requests, placements)
                settled.add(booking.uid)
        return frozenset(settled)

    def _comes_in_its_turn(self, booking: Booking) -> bool:
        """Whether placing it before the less sure ones would give what there is: it was, and nothing has left since.

        Those that are assigned are not placed anew for it. To do so after an end would even have them come after it, by
        which memory over several NUMA nodes is spread otherwise than by their kubelet.
        """
        is_after = False
        last = booking.state
        for other in self.bookings.values():
            stays = other is not booking and other.state is BookingState.ASSIGNED
            if not (other.reported or (other.placed and (stays or other.releases_before == self._removals))):
                return False
            if other is booking:
                is_after = True
            elif is_after == (other.state is BookingState.ASSIGNED) or other.state > last:
                return False
            elif is_after:
                last = other.state
        return True

    def _is_in_order(self) -> bool:
        """Whether all came in the order of how sure they are, so that none was placed before an earlier one."""
        states = [one.state for one in self.bookings.values()]
        return all(before >= after for before, after in pairwise(states))

    def _place_before_the_less_sure(self, booking: Booking) -> None:
        """The kubelet knows nothing of pods that are only expected, so they make room for one that is bound."""
        assert self.kubelet is not None and self.report is not None
        lesser = [one for one in self.bookings.values() if one.state is not BookingState.ASSIGNED]
        is_undone = self._is_undone((booking, *lesser))
        for one in (booking, *lesser):
            self.kubelet.remove(one.uid)
            one.placed = False
            # Whatever is placed anew later, such as after a report, is placed in this order.
            self.bookings[one.uid] = self.bookings.pop(one.uid)
        if not is_undone:
            self._rebuild(self.report)
            return
        self._place(booking)
        self._place_the_rest(beside=booking)

    def _place_the_rest(self, beside: Booking | None = None) -> None:
        """What found no room may find some now: a pod is often seen before the end of the one it follows. `beside` was
        tried just now, which may have left its traces."""
        for other in sorted(self.bookings.values(), key=lambda one: -one.state):
            if not other.placed and not other.reported and not other.whole and other is not beside:
                self._place(other)

    def _place(self, booking: Booking) -> None:
        if self.kubelet is None:
            return
        # A kubelet knows nothing of one that is no more than nominated.
        self._revision += booking.state is not BookingState.NOMINATED
        view = self._view(booking)
        parts = self._parts(booking)
        groups = self._groups_in_use()
        if parts:
            # As a kubelet that goes on with an admission: what is allocated stays, the rest is found beside it.
            self.kubelet.hold(booking.uid, view.requests, parts)
        if parts and self.kubelet.allocates_whole(view):
            # What it has as a whole was allocated at once, and is not free in the report.
            placements, booking.placed = parts, True
        else:
            admission = _admit(self.kubelet, booking)
            placements, booking.placed = admission.placements, admission.admitted
        if parts and not booking.placed:
            # Taken it is all the same.
            self.kubelet.hold(booking.uid, view.requests, parts)
            placements, booking.placed = parts, True
        booking.releases_before = self._removals
        self._placements += 1
        booking.turn = self._placements
        booking.regroups = any(one and one != now for one, now in zip(groups, self._groups_in_use(), strict=True))
        if booking.placed:
            booking.highest = max(booking.highest or 0, position_of(self.kubelet, placements))
            self._start(booking)

    def _is_undone(self, expected: Iterable[Booking]) -> bool:
        """Whether the node is as if these pods had never been expected once they are removed."""
        node = self.kubelet
        return node is None or not any(one.regroups or not is_undone_by_removal(node, one.uid) for one in expected)

    def _groups_in_use(self) -> tuple[int, ...]:
        return () if self.kubelet is None or self.kubelet.memory is None else self.kubelet.memory.tables.groups_in_use()

    def _parts(self, booking: Booking) -> Placements:
        """What an exact report lists of a pod that it does not confirm, as its kubelet is still admitting it."""
        report = self.report
        if report is None or booking.state is not BookingState.ASSIGNED or booking.resized:
            return {}
        listed = report.held.get(booking.name, {})
        return {} if confirmation.is_old(booking.name, listed, self._past.ended) else listed

    def _start(self, booking: Booking) -> bool:
        """The containers of the pod run, if they do. True if its init containers give something back."""
        if self.kubelet is None or not booking.record.runs:
            return False
        gives_back = any(container.kind == "init" for container in booking.needs.containers)
        return gives_back and self.kubelet.start(booking.uid)


def _admit(node: Kubelet, booking: Booking) -> Admission:
    """As its kubelet will, which keeps traces of a pod that it refuses, and knows nothing of one only expected."""
    view = booking.record.view(node)
    return node.admit_view(view) if booking.state is BookingState.ASSIGNED else node.expect(view)
