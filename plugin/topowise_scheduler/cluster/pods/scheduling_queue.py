"""Pending pods that kube-scheduler has not tried yet, in the order in which it will take them.

Its queue (PrioritySort) is by priority, and then by when it saw the pod first. Both of us see pods as the API server
tells of them; after a restart of ours the time of creation comes as near as can be.

Invariant: a pod is in here at most once, and only as long as it may still be taken for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from topowise_scheduler.cluster.pods.records import PodRecord

_Entry = tuple[int, str, int, str]

_SPARE: Final = 64


class _Queued(NamedTuple):
    record: PodRecord
    since: float
    number: int


class SchedulingQueue:
    """By uid. `clock` gives seconds, monotonic. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queued: dict[str, _Queued] = {}
        # Lazily: entries of pods that have left, or came again, are dropped when they come to the top.
        self._heap: list[_Entry] = []
        self._number = 0
        self.taken = 0
        """Counts the pods that have left, but for those that were nominated: they were taken, or are gone."""

    def __len__(self) -> int:
        return len(self._queued)

    def put(self, record: PodRecord) -> None:
        """A pod as its last event shows it: comes, stays where it is, or leaves."""
        held = self._queued.get(record.uid)
        if record.constraints is None or record.tried or record.leaving or record.nominated:
            self.drop(record.uid, is_taken=not record.nominated)
        elif held is not None:
            self._queued[record.uid] = held._replace(record=record)
        else:
            self._number += 1
            self._queued[record.uid] = _Queued(record, self._clock(), self._number)
            heappush(self._heap, (-record.priority, record.started, self._number, record.uid))
            self._forget_gone()

    def drop(self, uid: str, *, is_taken: bool = True) -> None:
        """It has been taken or is gone, or else it is nominated or left alone."""
        if self._queued.pop(uid, None) is not None:
            self.taken += is_taken

    def _forget_gone(self) -> None:
        """A replica that does not lead never asks who is next."""
        if len(self._heap) > _SPARE + 2 * len(self._queued):
            self._heap = [entry for entry in self._heap if self._is_queued(entry)]
            heapify(self._heap)

    def _is_queued(self, entry: _Entry) -> bool:
        queued = self._queued.get(entry[3])
        return queued is not None and queued.number == entry[2]

    def next(self, after: int = 0) -> tuple[PodRecord, float] | None:
        """The pod that comes after so many others, and since when it is here."""
        passed: list[_Entry] = []
        found = None
        while self._heap:
            if not self._is_queued(self._heap[0]):
                heappop(self._heap)
            elif len(passed) < after:
                passed.append(heappop(self._heap))
            else:
                queued = self._queued[self._heap[0][3]]
                found = queued.record, queued.since
                break
        for entry in passed:
            heappush(self._heap, entry)
        return found
