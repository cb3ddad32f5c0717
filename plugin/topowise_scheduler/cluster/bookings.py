"""A pod in the state of its node: how sure it is to be there, and since when.

Invariant: a booking becomes surer or is taken away; the one thing that makes it less sure (`NodeState.lower`) is a move
of its pod (pod_states.py). Only one that is assigned is `reported`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import IntEnum
from typing import Final

import msgspec

from topowise import pods
from topowise_scheduler.cluster.ended_pods import ENDED_KEPT_S
from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.report import PodName

# What the API server tells of one moment comes to us within this time, and what a kubelet knows first within that.
EARLY_S: Final = 0.2
LATE_S: Final = 2.0


class BookingState(IntEnum):
    """How sure a booking is; a later one replaces an earlier one."""

    NOMINATED = 1
    """kube-scheduler evicts others for it here, or we have nominated it ahead."""
    RESERVED = 2
    """We said yes, and expect it here."""
    ASSIGNED = 3
    """It is bound to the node."""


class Resize(msgspec.Struct, frozen=True):
    """A pod was resized in place (KEP-1287): when, and what the report of that time said of it."""

    at: float
    version: str
    held: object


class Booking(msgspec.Struct, gc=False):
    """A pod on the node. `reported`: the report's numbers include it. `placed`: the model holds it for itself."""

    record: PodRecord
    needs: pods.Needs
    state: BookingState
    since: float
    """When it came to this state: seconds, monotonic."""
    acknowledged: float | None = None
    """When its kubelet was seen to have taken it on."""
    was_there: bool = False
    """It was there before us, so nobody saw what happened around it."""
    reported: bool = False
    placed: bool = False
    turn: int = 0
    """Counts the placements of the node up to its own."""
    releases_before: int = -1
    """How often the node had given something back when it was placed."""
    regroups: bool = False
    """Its memory has taken NUMA nodes out of the groups that they were in: not even its end brings them back."""
    judged_in: int = -1
    """The revision of the node's state in which it was found to fit wherever the others may lie."""
    resized: Resize | None = None
    """Until a report shows it."""
    whole: bool = False
    """A report has listed all of it since it was assigned, or resized."""
    compared: bool = False
    """Its prediction has been counted."""
    highest: int | None = None
    """The highest position of a NUMA node at which it has been predicted, None if it never found room."""
    followed_uncertain: bool = False
    """It came after one that was never seen where it lay, and that has gone."""
    missed: bool = False
    """A part of it lies elsewhere than predicted first."""
    ahead: bool = False
    """We have nominated it ahead of kube-scheduler: it will come soon, and those that come with it must reckon with
    that."""

    @property
    def uid(self) -> str:
        """The pod's."""
        return self.record.uid

    @property
    def name(self) -> PodName:
        """Namespace and name of the pod."""
        return self.record.namespace, self.record.name

    @property
    def is_settled(self) -> bool:
        """Whether the last report had all of it."""
        return self.whole and self.reported and self.resized is None and self.state is BookingState.ASSIGNED


def uncertain(
    bookings: Collection[Booking], releases: Collection[float], now: float, undecided: Collection[str] = ()
) -> list[Booking]:
    """Those that may lie elsewhere than predicted: because they came lately, because others came or went then, because
    they are `undecided` until a report tells, or because they came after one that may lie elsewhere itself: they were
    predicted beside its predicted place.

    `bookings` are all those of the node, `releases` the times at which some gave back what they held.
    """
    assigned = [one for one in bookings if one.state is BookingState.ASSIGNED]
    found = [
        one
        for one in bookings
        if is_predicted(one, now) and (one.uid in undecided or _may_have_been_overtaken(one, assigned, releases, now))
    ]
    first = min((one.since for one in found if one.state is BookingState.ASSIGNED), default=now)
    kept = {id(one) for one in found}
    found += [one for one in assigned if one.since > first and id(one) not in kept and is_predicted(one, now)]
    return found


def is_predicted(booking: Booking, now: float) -> bool:
    """Whether nothing but the prediction tells where the pod lies. Whoever has not been reported for so long never
    will: the exporter leaves it out."""
    if booking.reported or booking.whole or (booking.state is BookingState.NOMINATED and not booking.ahead):
        return False
    return booking.acknowledged is None or now - booking.acknowledged <= ENDED_KEPT_S


def _may_have_been_overtaken(
    booking: Booking, assigned: Iterable[Booking], releases: Iterable[float], now: float
) -> bool:
    done = booking.acknowledged
    if booking.state is BookingState.RESERVED or done is None or now - done < LATE_S:
        return True
    begin, end = booking.since - EARLY_S, done + LATE_S
    if booking.was_there or booking.followed_uncertain or any(begin <= at <= end for at in releases):
        return True
    return any(
        other is not booking and not other.reported and other.since <= end and (other.acknowledged or now) >= begin
        for other in assigned
    )
