"""Where each pod is or is expected: one map, and one function that moves a pod in it.

Invariant: a pod is reserved, assumed or bound on at most one node, and nominated for at most one node. kube-scheduler
separates the two in the same way: cache.podStates and its nominator. The bookings of a node follow from these states
alone. So every change goes through `PodStates.move`, which returns what it means for each node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec


class BookingState(IntEnum):
    """How sure a booking is; a later state replaces an earlier one."""

    NOMINATED = 1
    """kube-scheduler evicts victims for the pod here, or this service has nominated the pod."""
    RESERVED = 2
    """This service has let the pod onto the node, and expects it."""
    ASSIGNED = 3
    """It is bound to the node."""


class State(IntEnum):
    """How far a pod is in scheduling; a pod without a state is on no node."""

    RESERVED = 1
    """An answer of this service accepted the node; the reservation ends at a time."""
    ASSUMED = 2
    """This service binds or has bound the pod; no event has shown it yet."""
    BOUND = 3
    """An event of the pod shows its node."""


class PodState(msgspec.Struct, frozen=True, gc=False):
    """State of a pod. `until` ends a reservation (seconds, monotonic). `pipelined`: pods on the node must end first."""

    node: str = ""
    state: State | None = None
    nominated: str = ""
    until: float = float("inf")
    pipelined: bool = False

    @property
    def is_assigned(self) -> bool:
        """Returns whether the pod counts as bound."""
        return self.state is State.ASSUMED or self.state is State.BOUND

    def booking_states(self) -> dict[str, BookingState]:
        """Returns the booking state of this pod on each node that books it."""
        states = {self.nominated: BookingState.NOMINATED} if self.nominated else {}
        if self.is_assigned:
            states[self.node] = BookingState.ASSIGNED
        elif self.state is State.RESERVED:
            states[self.node] = BookingState.NOMINATED if self.pipelined else BookingState.RESERVED
        return states

    def left(self) -> PodState:
        """Returns the state after the pod has left its node; the nomination stays."""
        return PodState(nominated=self.nominated)


NOWHERE = PodState()


@lru_cache(maxsize=1 << 15)
def bound(node: str) -> PodState:
    """Returns the state of a pod that is bound to a node and not nominated; pods of a node share one object."""
    return PodState(node, State.BOUND)


class Change(NamedTuple):
    """How a move changes the booking of the pod on a node; None is no booking."""

    node: str
    before: BookingState | None
    after: BookingState | None


class PodStates:
    """Pod states by UID. Not thread-safe."""

    def __init__(self) -> None:
        self._states: dict[str, PodState] = {}
        self.nominated: dict[str, str] = {}
        """The nominated nodes by UID; to be read. An index of `_states`, as are the next two."""
        self._reserved: dict[str, float] = {}
        self._assumed: set[str] = set()
        # Assumed pods that a list of all pods lacked, and the time of that list: seconds, monotonic.
        self._unlisted: dict[str, float] = {}

    def __iter__(self) -> Iterator[tuple[str, PodState]]:
        return iter(self._states.items())

    def of(self, uid: str) -> PodState:
        """Returns the state of a pod, NOWHERE for an unknown pod."""
        return self._states.get(uid, NOWHERE)

    @property
    def reserved(self) -> int:
        """Returns the number of reserved pods."""
        return len(self._reserved)

    def move(self, uid: str, state: PodState) -> list[Change]:
        """Sets the state of a pod; nothing else changes a state. Returns the changes, departures before arrivals."""
        before = self._states.get(uid, NOWHERE)
        if state == NOWHERE:
            self._states.pop(uid, None)
        else:
            self._states[uid] = state
        if state.nominated:
            self.nominated[uid] = state.nominated
        else:
            self.nominated.pop(uid, None)
        if state.state is State.RESERVED:
            self._reserved[uid] = state.until
        else:
            self._reserved.pop(uid, None)
        if state.state is State.ASSUMED:
            self._assumed.add(uid)
        else:
            self._assumed.discard(uid)
            self._unlisted.pop(uid, None)
        old, new = before.booking_states(), state.booking_states()
        # Departures first: on the node that a pod leaves its capacity is free before it arrives elsewhere.
        gone = [Change(node, was, None) for node, was in old.items() if node not in new]
        return gone + [Change(node, old.get(node), now) for node, now in new.items() if old.get(node) is not now]

    def assumed(self) -> list[tuple[str, str]]:
        """Returns the UID and node of each assumed pod."""
        return [(uid, self._states[uid].node) for uid in self._assumed]

    def note_listed(self, uids: Collection[str], now: float) -> None:
        """Records a list of all pods: an assumed pod outside it was deleted, unless an event names the pod soon."""
        # The first of several lists counts: each further list would restart the time.
        self._unlisted = {uid: self._unlisted.get(uid, now) for uid in self._assumed if uid not in uids}

    def note_event(self, uid: str) -> None:
        """Records an event of the pod: the pod exists, although a list lacked it."""
        self._unlisted.pop(uid, None)

    def unlisted(self, before: float) -> list[str]:
        """Returns the assumed pods that a list lacked at this time or before, and that no event has named since."""
        return [uid for uid, at in self._unlisted.items() if at <= before]

    def expired(self, now: float) -> list[str]:
        """Returns the UIDs of pods whose reservation is over."""
        return [uid for uid, until in self._reserved.items() if until <= now]
