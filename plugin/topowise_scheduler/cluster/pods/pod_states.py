"""Where each pod is, or is expected: one map, and one function that moves a pod in it.

Invariant: a pod is reserved, assumed or bound on one node at the most, and nominated for one at the most
(kube-scheduler keeps the two apart in the same way: cache.podStates and the nominator). What the state of a node has
of a pod follows from these two and from nothing else, so every change of either goes through `PodStates.move`, which
tells what it means for which node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from topowise_scheduler.cluster.node.bookings import BookingState


class State(IntEnum):
    """How far a pod is on its way to its node."""

    RESERVED = 1
    """We said yes, and expect it there until a time."""
    ASSUMED = 2
    """We are binding it, or have; no event of it has said so yet."""
    BOUND = 3
    """Its own event says so."""


class PodState(msgspec.Struct, frozen=True, gc=False):
    """One pod. `until` ends a reservation: seconds, monotonic. `pipelined`: it waits there for others to leave."""

    node: str = ""
    state: State | None = None
    nominated: str = ""
    until: float = float("inf")
    pipelined: bool = False

    @property
    def is_assigned(self) -> bool:
        """Whether it counts as bound."""
        return self.state is State.ASSUMED or self.state is State.BOUND

    def booking_states(self) -> dict[str, BookingState]:
        """What it is for the nodes that know of it."""
        found = {self.nominated: BookingState.NOMINATED} if self.nominated else {}
        if self.is_assigned:
            found[self.node] = BookingState.ASSIGNED
        elif self.state is State.RESERVED:
            found[self.node] = BookingState.NOMINATED if self.pipelined else BookingState.RESERVED
        return found

    def left(self) -> PodState:
        """Off its node; its nomination stays."""
        return PodState(nominated=self.nominated)


NOWHERE = PodState()


@lru_cache(maxsize=1 << 15)
def bound(node: str) -> PodState:
    """A pod that is bound to a node and nominated for none, as nearly all are: one for all of them."""
    return PodState(node, State.BOUND)


class Change(NamedTuple):
    """What a move means for a node; None is not to be there."""

    node: str
    before: BookingState | None
    after: BookingState | None


class PodStates:
    """By uid. Not thread-safe."""

    def __init__(self) -> None:
        self._states: dict[str, PodState] = {}
        # Of those: who is nominated, reserved and assumed.
        self._nominated: dict[str, str] = {}
        self._reserved: dict[str, float] = {}
        self._assumed: set[str] = set()
        # When a list of all pods came without an assumed one: seconds, monotonic.
        self._unlisted: dict[str, float] = {}

    def __repr__(self) -> str:
        rows = (
            f"{uid}: {'nowhere' if one.state is None else f'{one.state.name.lower()} on {one.node}'}"
            + (f", nominated for {one.nominated}" if one.nominated else "")
            for uid, one in self._states.items()
        )
        return f"PodStates({'; '.join(rows)})"

    def __iter__(self) -> Iterator[tuple[str, PodState]]:
        return iter(self._states.items())

    def of(self, uid: str) -> PodState:
        """Where a pod is; NOWHERE for one that is not known."""
        return self._states.get(uid, NOWHERE)

    @property
    def reserved(self) -> int:
        """How many are expected somewhere by an answer of ours."""
        return len(self._reserved)

    @property
    def nominated(self) -> dict[str, str]:
        """The nodes of those that are nominated, by uid; not to be changed."""
        return self._nominated

    def move(self, uid: str, state: PodState) -> list[Change]:
        """The only way in which anything here changes. Departures come before arrivals."""
        before = self._states.get(uid, NOWHERE)
        if state == NOWHERE:
            self._states.pop(uid, None)
        else:
            self._states[uid] = state
        if state.nominated:
            self._nominated[uid] = state.nominated
        else:
            self._nominated.pop(uid, None)
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
        gone = [Change(node, was, None) for node, was in old.items() if node not in new]
        return gone + [Change(node, old.get(node), now) for node, now in new.items() if old.get(node) is not now]

    def assumed(self) -> list[tuple[str, str]]:
        """Uid and node of those that we bind or have bound, and of which no event has said so yet."""
        return [(uid, self._states[uid].node) for uid in self._assumed]

    def note_listed(self, uids: Collection[str], now: float) -> None:
        """These are all the pods. One that is assumed and not among them was deleted, if no event names it soon."""
        # Since the first of several lists: the next one would begin the time anew for ever.
        self._unlisted = {uid: self._unlisted.get(uid, now) for uid in self._assumed if uid not in uids}

    def note_event(self, uid: str) -> None:
        """An event names the pod: it is there, whatever a list lacked."""
        self._unlisted.pop(uid, None)

    def unlisted(self, before: float) -> list[str]:
        """The assumed ones that a list of all pods lacked by then, and that no event has named since."""
        return [uid for uid, at in self._unlisted.items() if at <= before]

    def expired(self, now: float) -> list[str]:
        """Those whose reservation is over."""
        return [uid for uid, until in self._reserved.items() if until <= now]

    def check(self) -> None:
        """Raises AssertionError if anything here contradicts itself."""
        for uid, one in self._states.items():
            assert one != NOWHERE, f"{uid} is kept and nowhere"
            assert bool(one.node) == (one.state is not None), f"{uid}: {one}"
        by = {state: {uid for uid, one in self._states.items() if one.state is state} for state in State}
        assert self._reserved.keys() == by[State.RESERVED], self
        assert self._assumed == by[State.ASSUMED], self
        assert self._unlisted.keys() <= self._assumed, self
        assert self._nominated == {uid: one.nominated for uid, one in self._states.items() if one.nominated}, self
