"""Pending pods that kube-scheduler has not tried yet, in the order in which it will try them.

The queue of kube-scheduler (PrioritySort) orders by priority, then by the time at which it first saw the pod. Both
processes see pods in the order of the API server's events. After a restart of this process the creation time is the
closest approximation.

Invariant: a pod is queued at most once, and only while kube-scheduler may still try it for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from topowise_scheduler.ledger.pods.records import PodRecord

_Entry = tuple[int, str, int, str]
"""Negative priority, start time, sequence number, UID."""

_SPARE: Final = 64


class _Queued(NamedTuple):
    record: PodRecord
    since: float
    number: int


class SchedulingQueue:
    """Queued pods by UID. `clock` gives seconds, monotonic. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queued: dict[str, _Queued] = {}
        # Entries of removed and re-queued pods stay until they reach the top: a heap removes nothing from its middle.
        self._heap: list[_Entry] = []
        self._number = 0
        self.taken = 0
        """Number of pods that left the queue without a nomination: kube-scheduler tried them, or they are gone."""

    def __len__(self) -> int:
        return len(self._queued)

    def put(self, record: PodRecord) -> None:
        """Queues, updates or removes a pod, as its last event shows it."""
        queued = self._queued.get(record.uid)
        # kube-scheduler tries such a pod not for the first time, or the pod has a nomination already.
        if record.constraints is None or record.status.tried or record.status.leaving or record.status.nominated:
            self.drop(record.uid, is_taken=not record.status.nominated)
        elif queued is not None:
            self._queued[record.uid] = queued._replace(record=record)
        else:
            self._number += 1
            self._queued[record.uid] = _Queued(record, self._clock(), self._number)
            heappush(self._heap, (-record.priority, record.status.started, self._number, record.uid))
            self._compact()

    def drop(self, uid: str, *, is_taken: bool = True) -> None:
        """Removes a pod that is tried or gone (`is_taken`), or that is nominated or never will be."""
        if self._queued.pop(uid, None) is not None:
            self.taken += is_taken

    def _compact(self) -> None:
        """Bounds the heap in replicas that are not the leader: they never call `next`."""
        if len(self._heap) > _SPARE + 2 * len(self._queued):
            self._heap = [entry for entry in self._heap if self._is_queued(entry)]
            heapify(self._heap)

    def _is_queued(self, entry: _Entry) -> bool:
        queued = self._queued.get(entry[3])
        return queued is not None and queued.number == entry[2]

    def next(self, after: int = 0) -> tuple[PodRecord, float] | None:
        """Returns the pod behind the first `after` pods, and since when it is queued."""
        passed: list[_Entry] = []
        pod = None
        while self._heap:
            if not self._is_queued(self._heap[0]):
                heappop(self._heap)
            elif len(passed) < after:
                passed.append(heappop(self._heap))
            else:
                queued = self._queued[self._heap[0][3]]
                pod = queued.record, queued.since
                break
        for entry in passed:
            heappush(self._heap, entry)
        return pod
