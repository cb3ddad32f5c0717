"""The scheduling queue: pods to try next, pods in back-off, and unschedulable pods that wait for an event.

- A refused pod waits with the names of the plug-ins that refused it. An event requeues the pod if a hint of these
  plug-ins says so; for an extender, every event of a pod or a node does, even an update of the pod's own status.
- A pod that is requeued soon after a refusal waits 1 s, 2 s, ... 10 s, but only while other pods are queued: an idle
  scheduler tries it at once (SchedulerPopFromBackoffQ, since 1.33).
- After an error the back-off always applies.
- Events during an attempt count as if they followed the attempt.
- The flush of pods that waited for five minutes is left out: it would hide a lost requeueing.

Sources: pkg/scheduler/backend/queue/{scheduling_queue,backoff_queue,active_queue}.go, framework/events.go.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from sandbox.kubescheduler import extender, fit
from sandbox.kubescheduler.cache import NodeInfo, PodInfo

Kind = Literal[
    "AssignedPodAdd",
    "AssignedPodUpdate",
    "AssignedPodDelete",
    "UnscheduledPodUpdate",
    "NodeAdd",
    "NodeUpdate",
    "NodeDelete",
]
_INITIAL_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 10.0


class Event(msgspec.Struct, frozen=True):
    """What happened; `node` for a new node, and for a change of what the filters read."""

    kind: Kind
    node: NodeInfo | None = None


class QueuedPod:
    """A pod in the queue, or in an attempt. `rejectors` are the plug-ins that refused its last attempt."""

    def __init__(self, info: PodInfo, now: float) -> None:
        self.info = info
        self.since = now
        self.rejectors: frozenset[str] = frozenset()
        self.refusals = 0
        self.errors = 0
        self.attempts = 0

    @property
    def backoff_ends(self) -> float:
        """When it may be tried again; it counts from the end of the last attempt."""
        count = self.errors or self.refusals
        return self.since + min(_MAX_BACKOFF_S, _INITIAL_BACKOFF_S * 2 ** (count - 1)) if count else self.since


class SchedulingQueue:
    """Pods by uid, each in a single sub-queue. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._active: dict[str, QueuedPod] = {}
        self._order: list[tuple[int, float, int, str]] = []
        self._backoff: dict[str, QueuedPod] = {}
        self._error_backoff: dict[str, QueuedPod] = {}
        self._sleeping: dict[str, QueuedPod] = {}
        self._in_flight: dict[str, tuple[QueuedPod, list[Event]]] = {}
        self._gone: set[str] = set()
        self._changed = asyncio.Event()
        self.requeued = 0
        """Pods that an event took out of their sleep."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be tried, now or after a back-off."""
        return not (self._active or self._backoff or self._error_backoff or self._in_flight)

    def counts(self) -> dict[str, int]:
        """Pods by where they are; for people."""
        return {
            "active": len(self._active),
            "backoff": len(self._backoff),
            "error backoff": len(self._error_backoff),
            "sleeping": len(self._sleeping),
            "in flight": len(self._in_flight),
        }

    def put(self, info: PodInfo) -> None:
        """A pending pod came or changed."""
        uid = info.uid
        for place in (self._active, self._backoff, self._error_backoff):
            if uid in place:
                place[uid].info = info
                return
        if uid in self._in_flight:
            queued, events = self._in_flight[uid]
            queued.info = info
            events.append(Event("UnscheduledPodUpdate"))
            return
        sleeper = self._sleeping.get(uid)
        if sleeper is None:
            self._activate(QueuedPod(info, self._clock()))
            return
        sleeper.info = info
        self._requeue([sleeper], Event("UnscheduledPodUpdate"))

    def drop(self, uid: str) -> None:
        """The pod is gone, or assigned."""
        for place in (self._active, self._backoff, self._error_backoff, self._sleeping):
            place.pop(uid, None)
        if uid in self._in_flight:
            self._gone.add(uid)

    async def pop(self) -> QueuedPod:
        """Waits for the next pod to try, and returns it. `done`, `refuse` or `fail` must follow."""
        while True:
            self._flush()
            queued = self._take_active() or self._take_backoff()
            if queued is not None:
                queued.attempts += 1
                self._in_flight[queued.info.uid] = (queued, [])
                return queued
            self._changed.clear()
            ends = [entry.backoff_ends for entry in self._error_backoff.values()]
            timeout = max(0.0, min(ends) - self._clock()) if ends else None
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, uid: str) -> None:
        """The attempt has found a node."""
        self._in_flight.pop(uid, None)
        self._gone.discard(uid)

    def refuse(self, queued: QueuedPod, rejectors: frozenset[str]) -> None:
        """The attempt has found no node."""
        events = self._land(queued)
        if events is None:
            return
        queued.rejectors, queued.errors = rejectors, 0
        queued.refusals += 1
        self._sleeping[queued.info.uid] = queued
        for event in events:
            self._requeue([queued], event)

    def fail(self, queued: QueuedPod) -> None:
        """The attempt, or the bind after it, has failed."""
        if self._land(queued) is None:
            return
        queued.rejectors, queued.refusals = frozenset(), 0
        queued.errors += 1
        self._error_backoff[queued.info.uid] = queued
        self._changed.set()

    def tell(self, event: Event) -> None:
        """Something happened in the cluster."""
        for _, events in self._in_flight.values():
            events.append(event)
        self._requeue(list(self._sleeping.values()), event)

    def _land(self, queued: QueuedPod) -> list[Event] | None:
        """Ends an attempt, and returns the events during it; None if the pod was deleted or queued meanwhile."""
        uid = queued.info.uid
        _, events = self._in_flight.pop(uid, (queued, []))
        queued.since = self._clock()
        is_queued = any(uid in place for place in (self._active, self._backoff, self._error_backoff, self._sleeping))
        if uid in self._gone or is_queued:
            self._gone.discard(uid)
            return None
        return events

    def _requeue(self, sleepers: Iterable[QueuedPod], event: Event) -> None:
        now = self._clock()
        for queued in sleepers:
            if queued.info.uid not in self._sleeping or not _helps(queued, event):
                continue
            del self._sleeping[queued.info.uid]
            self.requeued += 1
            if queued.backoff_ends > now:
                self._backoff[queued.info.uid] = queued
                self._changed.set()
            else:
                self._activate(queued)

    def _activate(self, queued: QueuedPod) -> None:
        queued.since = self._clock()
        self._active[queued.info.uid] = queued
        order = (-queued.info.priority, queued.since, next(self._numbers), queued.info.uid)
        heapq.heappush(self._order, order)
        self._changed.set()

    def _flush(self) -> None:
        now = self._clock()
        for place in (self._backoff, self._error_backoff):
            for uid in [uid for uid, queued in place.items() if queued.backoff_ends <= now]:
                self._activate(place.pop(uid))

    def _take_active(self) -> QueuedPod | None:
        while self._order:
            *_, uid = heapq.heappop(self._order)
            queued = self._active.pop(uid, None)
            if queued is not None:
                return queued
        return None

    def _take_backoff(self) -> QueuedPod | None:
        """Returns the pod whose back-off ends first, by whole seconds; of equals the pod with the highest priority."""
        if not self._backoff:
            return None
        best = min(
            self._backoff.values(), key=lambda entry: (int(entry.backoff_ends), -entry.info.priority, entry.since)
        )
        return self._backoff.pop(best.info.uid)


def _helps(queued: QueuedPod, event: Event) -> bool:
    """Returns the queueing hints (framework/plugins/noderesources/fit.go; buildQueueingHintMap for the extender)."""
    if not queued.rejectors or extender.PLUGIN in queued.rejectors:
        return True
    if event.kind == "AssignedPodDelete":
        return fit.PLUGIN in queued.rejectors
    # Of several plug-ins that refused nodes, the hint of a single plug-in suffices.
    node = event.node
    return node is not None and any(fit.accepts(queued.info, node, {plugin}) for plugin in queued.rejectors)
