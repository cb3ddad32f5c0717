"""The books of one node: what its kubelet holds for every pod, those of its last report and those after it.

A report is a past. Pods assigned since are placed by the model, in the order in which they were assigned, where the
kubelet will place them; claims and nominations are placed like them, and can be taken away again. When a report
arrives, what it confirms replaces the prediction, the rest is placed anew on top of it.

What confirms a pod:
- a report of precision "exact" lists each pod's CPUs, memory and devices, so each pod is confirmed for itself;
- a report of counts only tells by its fingerprint which pods are in its numbers: all that we know of, or all but the
  newest few, with or without those that have ended. One without a fingerprint includes those whose amounts make up
  what is in use (amounts.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from topowise import fingerprint, pods
from topowise_scheduler.cluster.amounts import included
from topowise_scheduler.cluster.caution import holds_anything, own_amounts
from topowise_scheduler.cluster.places import same_place
from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.device_table import DeviceTable
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.report import PodName, Report, kubelet_of

# For so long a report that still lists an ended pod is taken for an old one; later, for the kubelet's truth.
ENDED_KEPT_S: Final = 120.0
# What the API server tells of one moment comes to us within this time, and what a kubelet knows first within that.
_EARLY_S: Final = 0.2
_LATE_S: Final = 2.0
# How many of the newest pods may be missing in the numbers of a counts report, to be found by its fingerprint.
_MAX_MISSING: Final = 16
# And how many that have ended may still be in them, beside all or none.
_MAX_LATELY: Final = 4


class Standing(IntEnum):
    """How sure a booking is; a later one replaces an earlier one."""

    NOMINATED = 1
    """kube-scheduler evicts others for it here."""
    CLAIMED = 2
    """We said yes, and expect it here."""
    ASSIGNED = 3
    """It is bound to the node."""


class Resize(msgspec.Struct, frozen=True):
    """A pod was resized in place (KEP-1287): when, and what the report of that time said of it."""

    at: float
    version: str
    held: object


class Booking(msgspec.Struct):
    """A pod on the node. `reported`: the report's numbers include it. `placed`: the books hold it for itself."""

    record: PodRecord
    needs: pods.Needs
    standing: Standing
    since: float
    """When it came to this standing: seconds, monotonic."""
    acknowledged: float | None = None
    """When its kubelet was seen to have taken it on."""
    was_there: bool = False
    """It was there before us, so nobody saw what happened around it."""
    reported: bool = False
    placed: bool = False
    resized: Resize | None = None
    """Until a report shows it."""

    @property
    def uid(self) -> str:
        """The pod's."""
        return self.record.uid

    @property
    def name(self) -> PodName:
        """Namespace and name of the pod."""
        return self.record.namespace, self.record.name


class _Ended(NamedTuple):
    """A pod that has ended: seconds, monotonic, and what it was."""

    at: float
    record: PodRecord


class Comparison(msgspec.Struct, frozen=True):
    """Predictions that a report has confirmed: how many lie on the predicted NUMA nodes, and the pods that do not."""

    hits: int = 0
    misses: tuple[PodName, ...] = ()


class Books:
    """One node. `kubelet` is its present state, None until it has been reported."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.kubelet: Kubelet | None = None
        self.bookings: dict[str, Booking] = {}
        self._ended: dict[PodName, _Ended] = {}
        self._releases: list[float] = []
        self._reported_at = 0.0
        # Pods by uid that the numbers of a counts report are known to be of; where they lie may be told.
        self._included: dict[str, tuple[PodName, pods.Needs]] = {}

    def put_report(self, report: Report, now: float) -> Comparison:
        """A new report; `now` is in seconds, monotonic."""
        self.forget_past(now)
        self._reported_at = now
        is_newer = self.report is None or not report.version or report.version != self.report.version
        comparison = Comparison()
        if report.precision == "exact":
            comparison = self._compare(report)
            self._mark_reported(report)
        else:
            self._included = {}
            self._mark_counted(report, believes=is_newer)
        self.report = report
        self._rebuild(report)
        return comparison

    def drop_report(self) -> None:
        """Nobody reports the node any more."""
        self.report = self.kubelet = None
        for booking in self.bookings.values():
            booking.reported = booking.placed = False

    def put(self, booking: Booking, *, is_news: bool = True) -> None:
        """Book a pod, or raise the standing of its booking.

        `is_news` is False for a pod that was there before us: a report without a fingerprint may include it.
        """
        held = self.bookings.get(booking.uid)
        report = self.report
        if held is not None:
            held.record = booking.record
            if booking.standing <= held.standing:
                return
            held.standing, held.since = booking.standing, booking.since
            held.acknowledged = booking.acknowledged
            if report is None or booking.standing is not Standing.ASSIGNED:
                return
            booking = held
        else:
            self.bookings[booking.uid] = booking
            if not is_news and report is not None and report.precision == "counts" and not report.fingerprint:
                self._mark_by_amounts(report)
                self._rebuild(report)
                return
            if report is None or booking.standing is not Standing.ASSIGNED:
                self._place(booking)
                return
        if self._is_told_of(report, booking):
            self._rebuild(report)
        else:
            self._place_before_the_less_sure(booking)

    def update(self, record: PodRecord, now: float) -> bool:
        """A booked pod has changed. True if that changes the books: it was resized, or its init containers are done."""
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
        return has_started and self.kubelet is not None and booking.placed and self.kubelet.start(record.uid)

    def _resize(self, booking: Booking, before: PodRecord, now: float) -> bool:
        """Its kubelet has given a pod other amounts: it is placed anew, as if it came now, until a report shows it."""
        report, node = self.report, self.kubelet
        if report is None or node is None:
            return False
        if own_amounts(node, booking.record.view(node)) != own_amounts(node, before.view(node)):
            booking.since = booking.acknowledged = now
            booking.reported = False
            booking.resized = Resize(now, report.version, report.held.get(booking.name))
        self._rebuild(report)
        return True

    def lower(self, uid: str, standing: Standing) -> None:
        """The pod is less sure to come than it was."""
        if uid in self.bookings:
            self.bookings[uid].standing = standing

    def drop(self, uid: str, ended_at: float | None) -> None:
        """A pod has ended (seconds, monotonic), or is not expected any more (None)."""
        booking = self.bookings.pop(uid, None)
        if booking is None:
            return
        if booking.standing is Standing.ASSIGNED and ended_at is not None and self.report is not None:
            self._ended[booking.name] = _Ended(ended_at, booking.record)
            if self.kubelet is not None and holds_anything(self.kubelet, self._view(booking)):
                self._releases.append(ended_at)
        if self.kubelet is None or self.report is None:
            return
        has_ended = ended_at is not None
        if self.report.precision == "counts" and self._mark_counted(self.report, believes=has_ended):
            self._rebuild(self.report)
            return
        # A pod that the numbers of a counts report include stays in them until the next one, if its place is not told.
        self.kubelet.remove(uid)
        self._place_the_rest()

    def forget_past(self, now: float) -> bool:
        """Ended pods of long ago; True if the report still lists one of them, which now holds again what it held."""
        report = self.report
        late = [name for name, ended in self._ended.items() if now - ended.at >= ENDED_KEPT_S]
        for name in late:
            del self._ended[name]
        self._releases = [at for at in self._releases if now - at < ENDED_KEPT_S]
        unseen = [one for one in self.bookings.values() if one.resized and now - one.resized.at >= ENDED_KEPT_S]
        for booking in unseen:
            booking.resized = None
        if report is None:
            return False
        adds_up_otherwise = bool(late) and report.precision == "counts" and not report.fingerprint
        if not (unseen or adds_up_otherwise or any(name in report.held for name in late)):
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
        return bool(self._ended or self._releases) or any(one.resized for one in self.bookings.values())

    def survive(self, state: Kubelet, record: PodRecord, without: Collection[str], at_most: int) -> bool:
        """Whether the pods that their kubelet has not taken on yet still find room if another one comes before them.

        `state` is the node as predicted, without some pods. True if there are more than `at_most` of them.
        """
        coming = [
            booking
            for booking in self._assigned()
            if booking.placed and not booking.reported and booking.acknowledged is None and booking.uid not in without
        ]
        if not coming or len(coming) > at_most or len(state.node_ids) < 2:
            return True
        trial = state.fork()
        for booking in coming:
            trial.remove(booking.uid)
        return all(trial.admit_view(one.view(trial)).admitted for one in (record, *(one.record for one in coming)))

    def without(self, uids: Collection[str]) -> Kubelet | None:
        """A copy of the present state in which these pods are gone."""
        if self.kubelet is None:
            return None
        kubelet = self.kubelet.fork()
        for uid in uids:
            kubelet.remove(uid)
        for booking in self._assigned():
            # Room that only pods to be left out have taken is the room of those that are bound.
            if not booking.placed and not booking.reported and booking.uid not in uids:
                kubelet.admit_view(self._view(booking))
        return kubelet

    def unsure(self, now: float) -> list[PodView]:
        """The pods that may lie elsewhere than predicted, if they lie there at all."""
        node = self.kubelet
        if node is None or len(node.node_ids) < 2:
            return []
        return [
            view
            for booking in self.bookings.values()
            if self._is_unsure(booking, now) and holds_anything(node, view := self._view(booking))
        ]

    def _is_unsure(self, booking: Booking, now: float) -> bool:
        if booking.reported or booking.standing is Standing.NOMINATED:
            return False
        done = booking.acknowledged
        if booking.standing is Standing.CLAIMED or done is None or now - done < _LATE_S:
            return True
        if now - done > ENDED_KEPT_S:
            # Whoever has not been reported by now never will: the exporter leaves it out.
            return False
        begin, end = booking.since - _EARLY_S, done + _LATE_S
        if booking.was_there or any(begin <= at <= end for at in self._releases):
            return True
        return any(
            other is not booking and not other.reported and other.since <= end and (other.acknowledged or now) >= begin
            for other in self._assigned()
        )

    def _view(self, booking: Booking) -> PodView:
        assert self.kubelet is not None
        return booking.record.view(self.kubelet)

    def _assigned(self) -> Iterator[Booking]:
        return (booking for booking in self.bookings.values() if booking.standing is Standing.ASSIGNED)

    def _is_told_of(self, report: Report, booking: Booking) -> bool:
        """Whether the report we have includes a pod whose assignment we only hear of now: watches are not in step."""
        if report.precision == "counts":
            return self._mark_counted(report, believes=False)
        self._mark_reported(report)
        return booking.reported

    def _mark_reported(self, report: Report) -> None:
        """The pods that an exact report lists. Of a name that has ended lately, it may mean the one that ended."""
        for booking in self._assigned():
            is_listed = booking.name in report.held and booking.name not in self._ended
            booking.reported = is_listed and self._shows(report, booking)

    def _shows(self, report: Report, booking: Booking) -> bool:
        """Whether a report is of a time after the pod's last resize, which is then over."""
        resized = booking.resized
        if resized is not None:
            is_exact = report.precision == "exact"
            if resized.held == report.held.get(booking.name) if is_exact else resized.version == report.version:
                return False
            booking.resized = None
        return True

    def _compare(self, report: Report) -> Comparison:
        before = self.kubelet
        if before is None:
            return Comparison()
        hits = 0
        misses = []
        for booking in self._assigned():
            held = report.held.get(booking.name)
            if held is None or booking.reported or not booking.placed or not self._shows(report, booking):
                continue
            predicted = before.placements(booking.uid)
            # Plain init containers are in no report, and "" is the pod itself.
            if all(
                name in predicted and numa_nodes(predicted[name], before) == numa_nodes(placement, before)
                for name, placement in held.items()
                if name
            ):
                hits += 1
            else:
                misses.append(booking.name)
        return Comparison(hits, tuple(misses))

    def _mark_counted(self, report: Report, *, believes: bool) -> bool:
        """Mark the pods that the numbers of a counts report include. True if there are new marks."""
        if not report.fingerprint:
            return believes and self._mark_by_amounts(report)
        unmarked = [booking for booking in self._assigned() if not booking.reported]
        if not unmarked:
            return False
        counted = self._counted(report)
        latest = self._latest_ended()
        ended = [latest[:many] for many in (*range(min(len(latest), _MAX_LATELY)), len(latest))]
        for missing in range(min(len(counted), _MAX_MISSING) + 1):
            names = [booking.name for booking in counted[: len(counted) - missing]]
            if not any(report.fingerprint == fingerprint.of([*names, *lately]) for lately in ended):
                continue
            newest = {booking.uid for booking in counted[len(counted) - missing :]}
            told = self._with_room(
                report, [one for one in unmarked if one.uid not in newest and one.name not in self._ended]
            )
            shown = [one for one in told if self._shows(report, one)]
            for booking in shown:
                booking.reported = True
            return bool(shown)
        return False

    def _with_room(self, report: Report, told: list[Booking]) -> list[Booking]:
        """The pods of a fingerprint without the newest, if the numbers have no room for them.

        A kubelet lists a pod before all of it has been allocated, and NFD looks as soon as its CPUs are. Pods that
        have been there for long may hold less than they ask for, as their containers may have ended.
        """
        rest = _in_use(report)
        for booking in self._assigned():
            if booking.reported:
                rest.subtract(_own(report, booking.record))
        asked: Counter[str] = Counter()
        for booking in told:
            asked.update(_own(report, booking.record))
        if all(amount <= rest[name] for name, amount in asked.items()):
            return told
        return [one for one in told if not self._is_newly_there(one)]

    def _is_newly_there(self, booking: Booking) -> bool:
        done = booking.acknowledged
        return not booking.was_there and (done is None or done >= self._reported_at - _LATE_S)

    def _mark_by_amounts(self, report: Report) -> bool:
        """Mark whom the numbers of a report without a fingerprint can include, and nobody else. True for any change."""
        there = list(self._assigned())
        gone = [self._ended[name].record for name in self._latest_ended()]
        marks = included(
            _in_use(report),
            [_own(report, one.record) for one in there],
            [_own(report, record) for record in gone],
        )
        has_changed = False
        for position, booking in enumerate(there):
            is_included = position in marks
            has_changed = has_changed or booking.reported != is_included
            booking.reported = is_included
            if is_included:
                booking.resized = None
        return has_changed

    def _latest_ended(self) -> list[PodName]:
        return sorted(self._ended, key=lambda name: self._ended[name].at, reverse=True)

    def _counted(self, report: Report) -> list[Booking]:
        """The assigned pods that the report's kind of fingerprint counts."""
        counts_all = report.fingerprint_method == fingerprint.ALL
        return [
            one
            for one in self._assigned()
            # Of a name that has ended lately, the digest may mean the one that ended.
            if one.name not in self._ended and (counts_all or is_exclusive(report.empty, one.needs))
        ]

    def _rebuild(self, report: Report) -> None:
        """The report's state, with what it does not include placed on top, the surest first."""
        if report.offsets is not None and report.fingerprint and not self._included:
            counted = self._counted(report)
            if report.fingerprint == fingerprint.of([one.name for one in counted]):
                self._included = {one.uid: (one.name, one.needs) for one in counted}
        is_exact = report.precision == "exact"
        known: dict[PodName, tuple[str, Mapping[str, int]]] = {}
        # What a finished init container left to a pod is in the report by the pod's uid.
        gone = {*self._ended, *(("", ended.record.uid) for ended in self._ended.values())}
        for booking in self._assigned():
            # A pod that its kubelet has not started yet is in the report by its uid alone.
            names = (booking.name, ("", booking.uid))
            if booking.reported:
                known.update(dict.fromkeys(names, (booking.uid, booking.needs.requests)))
                gone.difference_update(names)
            else:
                gone.update(names)
        before, self.kubelet = self.kubelet, kubelet_of(report, known.get, without=gone, pods=self._included)
        for uid in self._included.keys() - self.bookings.keys():
            self.kubelet.remove(uid)
        settled = frozenset() if is_exact or before is None else self._settle(before, self.kubelet)
        for booking in sorted(self.bookings.values(), key=lambda one: -one.standing):
            if booking.uid in settled:
                continue
            booking.placed = is_exact and booking.reported
            if not booking.reported:
                self._place(booking)

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
            placements = same_place(node, before.placements(booking.uid))
            if placements is not None:
                node.hold(booking.uid, self._view(booking).requests, placements)
                settled.add(booking.uid)
        return frozenset(settled)

    def _place_before_the_less_sure(self, booking: Booking) -> None:
        """The kubelet knows nothing of pods that are only expected, so they make room for one that is bound."""
        assert self.kubelet is not None
        lesser = [one for one in self.bookings.values() if one.standing is not Standing.ASSIGNED]
        for one in (*lesser, booking):
            self.kubelet.remove(one.uid)
            one.placed = False
        self._place(booking)
        self._place_the_rest()

    def _place_the_rest(self) -> None:
        """What found no room may find some now: a pod is often seen before the end of the one it follows."""
        for other in sorted(self.bookings.values(), key=lambda one: -one.standing):
            if not other.placed and not other.reported:
                self._place(other)

    def _place(self, booking: Booking) -> None:
        if self.kubelet is None:
            return
        booking.placed = self.kubelet.admit_view(self._view(booking)).admitted
        if booking.placed and booking.record.runs:
            self.kubelet.start(booking.uid)


def _in_use(report: Report) -> Counter[str]:
    """What a counts report says is not available, in units of requests."""
    total: Counter[str] = Counter()
    for occupant in report.occupants:
        total.update(occupant.requests)
    return total


def _own(report: Report, record: PodRecord) -> dict[str, int]:
    """What the pod takes of the numbers of this report."""
    return own_amounts(report.empty, record.view(report.empty))


def numa_nodes(placement: Placement, node: Kubelet) -> list[object]:
    """The NUMA nodes of what a container holds: of its CPUs, of its memory, and of each of its devices."""
    cpus = [numa.id for numa in node.topology.numas if numa.cpus & (placement.cpus or 0)]
    memory = {block.type: block.numa for block in placement.memory if block.size}
    devices = {
        resource: sorted(_nodes_of(node.devices.tables.get(resource), device) for device in ids)
        for resource, ids in placement.devices.items()
        if ids
    }
    return [cpus, memory, devices]


def _nodes_of(table: DeviceTable | None, device: str) -> tuple[int, ...]:
    number = None if table is None else table.index.get(device)
    if table is None or number is None:
        return ()
    return tuple(position for position, near in enumerate(table.near) if near >> number & 1)


def is_exclusive(node: Kubelet, needs: pods.Needs) -> bool:
    """Whether fingerprint method `with-exclusive-resources` counts the pod; plain init containers do not matter.

    RTE counts what the kubelet lists. scheduler-plugins (pkg/noderesourcetopology/resourcerequests, AreExclusiveForPod)
    go by the pod alone, and so never agree with it on a node whose manager of CPUs or memory is off.
    """
    guaranteed = needs.qos == "Guaranteed"
    return any(
        _is_exclusive_amount(node, resource, amount, guaranteed=guaranteed)
        for container in needs.containers
        if container.kind != "init"
        for resource, amount in {**container.limits, **container.requests}.items()
        if amount > 0
    )


def _is_exclusive_amount(node: Kubelet, resource: str, amount: int, *, guaranteed: bool) -> bool:
    if resource == "cpu":
        return guaranteed and amount % 1000 == 0 and node.cpu is not None
    if resource == "memory" or resource.startswith(pods.HUGEPAGES):
        return guaranteed and node.memory is not None
    # Devices without a NUMA node are in no zone.
    table = node.devices.tables.get(resource)
    return table is not None and table.nodes != 0
