"""Pods with the gate of this service: the gated pods that wait for a node, and the placed pods until they are bound.

A placement is decided, written, and then seen in an event of the pod. The write names the resourceVersion that the
decision is based on, and the API server refuses it for any other version. So the next event of the pod shows either the
placement, or that the write has failed; an event with that same version is older than the write.

Invariant: a pod is gated or placed, never both. Everything follows from the events of pods but for placements that no
event has shown yet, and those end after `_UNSEEN_S`: nothing stays booked for a write that has failed silently.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from math import inf
from typing import Final, NamedTuple

import msgspec

from topowise.placement import GATE
from topowise_scheduler.ledger.pods.records import PodRecord, placement_group

# Longer than a write and its event take on an API server that works.
_UNSEEN_S: Final = 15.0

Turn = tuple[int, str, int]
"""Negative priority, creation time, number of arrival: the order of kube-scheduler's queue (PrioritySort)."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """A pod that is to be bound to `node`, as of `record`; since when (seconds, monotonic), and whether an event shows
    it."""

    record: PodRecord
    node: str
    since: float
    is_seen: bool


class _Gated(NamedTuple):
    record: PodRecord
    turn: Turn
    key: Hashable


class Placements:
    """Gated and placed pods by UID. `clock` gives seconds, monotonic. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.is_constrained: Callable[[str], bool] = lambda uid: False
        """Returns whether a gated pod has constraints between pods, so that its labels say where it may go."""
        self.class_key: Callable[[PodRecord], Hashable] = lambda record: record.pod_class
        """Returns a key of pods that get the same answers, whatever their labels."""
        # Gated pods that other pods repel by their labels.
        self._apart: set[str] = set()
        self._gated: dict[str, _Gated] = {}
        # Gated pods that have no turn before a time (seconds, monotonic), unless they change.
        self._paused: dict[str, tuple[PodRecord, float]] = {}
        # By class of pods that get the same answer, in turn: the head of each is the next of its class.
        self._classes: defaultdict[Hashable, list[tuple[Turn, str]]] = defaultdict(list)
        self._placed: dict[str, Placement] = {}
        # Placed pods that no event has shown, the oldest first.
        self._unseen: dict[str, None] = {}
        # By group, its gated pods, and its pods that are placed or bound.
        self._groups: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._begun: defaultdict[str, set[str]] = defaultdict(set)
        # By group, its pods that have ended and still exist.
        self._ended: defaultdict[str, set[str]] = defaultdict(set)
        self._group_of: dict[str, str] = {}
        self.gated_by_others: dict[str, tuple[PodRecord, float]] = {}
        """Pods that wait for the gates of others as well, and since when (seconds, monotonic); to be read."""
        self._number = 0
        self.bound_at = -inf
        """When a placed pod was bound last (seconds, monotonic)."""
        self.arrivals = 0
        """How many pods have come to wait so far, pods that wait again included."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._placed

    @property
    def gated_count(self) -> int:
        """Returns how many pods wait for a node."""
        return len(self._gated) + len(self._paused)

    @property
    def placed_count(self) -> int:
        """Returns how many pods are placed and not bound."""
        return len(self._placed)

    def placed(self) -> Iterator[Placement]:
        """Yields the placed pods, the oldest placement first."""
        yield from self._placed.values()

    def of(self, uid: str) -> Placement | None:
        """Returns the placement of a pod, None if it has none."""
        return self._placed.get(uid)

    def heads(self) -> Iterator[tuple[Turn, Hashable, PodRecord]]:
        """Yields the next gated pod of each class of pods that get the same answer, in no order."""
        for key, queue in self._classes.items():
            turn, uid = queue[0]
            yield turn, key, self._gated[uid].record

    def set_apart(self, record: PodRecord) -> bool:
        """Other pods keep the pod from nodes by its labels, so that it is of a class with pods of the same labels.
        Returns False if it was before."""
        known = self._gated[record.uid]
        self._apart.add(record.uid)
        self._wait(record)
        return self._gated[record.uid].key != known.key

    def members(self, group: str) -> list[PodRecord]:
        """Returns the gated pods of a group (placement_group), in turn."""
        gated = [self._gated[uid] for uid in self._groups.get(group, ())]
        return [pod.record for pod in sorted(gated, key=lambda pod: pod.turn)]

    def begun(self, group: str) -> bool:
        """Returns whether a pod of the group is placed or bound."""
        return group in self._begun

    def ended(self, group: str) -> int:
        """Returns how many pods of the group have ended and still exist."""
        return len(self._ended.get(group, ()))

    def observe(self, record: PodRecord) -> str:
        """Takes in an event of a pending pod. Returns the node on which the pod is placed, "" for none."""
        placement = self._placed.get(record.uid)
        status = record.status
        if placement is not None and not placement.is_seen:
            if status.version == placement.record.status.version:
                return placement.node
            if status.is_placeable and status.nominated == placement.node != "":
                # The first of two writes: the nomination. The gate is opened in this version.
                self._placed[record.uid] = msgspec.structs.replace(placement, record=record)
                return placement.node
        if status.is_placeable and not status.leaving:
            paused = self._paused.get(record.uid)
            if paused is None or paused[0].status.version != status.version:
                self._end(record.uid)
                self._wait(record)
            return ""
        _, since = self.gated_by_others.get(record.uid, (record, self._clock()))
        self._stop_waiting(record.uid)
        if GATE in status.gates and not status.leaving:
            self.gated_by_others[record.uid] = record, since
        if status.gates or not status.placed_on or status.leaving:
            self._end(record.uid)
            return ""
        since = self._clock()
        if placement is not None and placement.node == status.placed_on:
            since = placement.since
        self._place(Placement(record, status.placed_on, since, is_seen=True))
        return status.placed_on

    def decide(self, record: PodRecord, node: str) -> None:
        """Records a placement that is about to be written; `node` is "" for a pod that kube-scheduler is to place."""
        self._stop_waiting(record.uid)
        self._place(Placement(record, node, self._clock(), is_seen=False))

    def retract(self, uid: str, *, pause: float = 0.0) -> bool:
        """The write of a placement has failed: the pod waits again, without a turn for `pause` seconds unless it
        changes. Returns False if an event has come meanwhile."""
        placement = self._placed.get(uid)
        if placement is None or placement.is_seen:
            return False
        self._end(uid)
        if pause:
            self._paused[uid] = placement.record, self._clock() + pause
        else:
            self._wait(placement.record)
        return True

    def end_pauses(self) -> None:
        """Gives pods a turn again whose pause is over."""
        now = self._clock()
        for record in [record for record, until in self._paused.values() if until <= now]:
            self._wait(record)

    def bind(self, record: PodRecord) -> None:
        """The pod is bound."""
        if record.uid in self._placed:
            self.bound_at = self._clock()
        self._stop_waiting(record.uid)
        self._end(record.uid)
        self._begin(record)

    def end(self, record: PodRecord) -> None:
        """The pod has ended, and still exists."""
        if group := placement_group(record):
            self._ended[group].add(record.uid)
            self._group_of[record.uid] = group

    def drop(self, uid: str) -> None:
        """The pod is gone."""
        self._stop_waiting(uid)
        self._end(uid)

    def unseen(self) -> list[str]:
        """Returns the pods whose placement no event has shown in time."""
        before = self._clock() - _UNSEEN_S
        return [uid for uid in self._unseen if self._placed[uid].since <= before]

    def _place(self, placement: Placement) -> None:
        uid = placement.record.uid
        self._placed[uid] = placement
        self._begin(placement.record)
        if placement.is_seen:
            self._unseen.pop(uid, None)
        else:
            self._unseen[uid] = None

    def _begin(self, record: PodRecord) -> None:
        if group := placement_group(record):
            self._begun[group].add(record.uid)
            self._group_of[record.uid] = group

    def _end(self, uid: str) -> None:
        if self._placed.pop(uid, None) is not None:
            self._unseen.pop(uid, None)
        group = self._group_of.pop(uid, "")
        for groups in (self._begun, self._ended) if group else ():
            if (pods := groups.get(group)) is not None:
                pods.discard(uid)
                if not pods:
                    del groups[group]

    def _wait(self, record: PodRecord) -> None:
        self._paused.pop(record.uid, None)
        known = self._gated.get(record.uid)
        key = self._class_of(record)
        if known is not None and known.key == key:
            self._gated[record.uid] = known._replace(record=record)
            return
        is_apart = record.uid in self._apart
        self._stop_waiting(record.uid)
        self._apart.update([record.uid] if is_apart else ())
        self._number += 1
        self.arrivals += 1
        turn = known.turn if known is not None else (-record.priority, record.status.started, self._number)
        self._gated[record.uid] = _Gated(record, turn, key)
        insort(self._classes[key], (turn, record.uid))
        if group := placement_group(record):
            self._groups[group][record.uid] = None

    def _stop_waiting(self, uid: str) -> None:
        self.gated_by_others.pop(uid, None)
        self._paused.pop(uid, None)
        pod = self._gated.pop(uid, None)
        if pod is None:
            return
        self._apart.discard(uid)
        queue = self._classes[pod.key]
        del queue[bisect_left(queue, (pod.turn, uid))]
        if not queue:
            del self._classes[pod.key]
        if group := placement_group(pod.record):
            del self._groups[group][uid]
            if not self._groups[group]:
                del self._groups[group]

    def _class_of(self, record: PodRecord) -> Hashable:
        """Returns a key of gated pods that get the same answers; the pods of a group are a class."""
        group = placement_group(record)
        if group:
            return "group", group
        if record.uid not in self._apart and not self.is_constrained(record.uid):
            return self.class_key(record)
        return self.class_key(record), record.namespace, tuple(sorted(record.labels.items()))
