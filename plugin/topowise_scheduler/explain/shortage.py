"""Metrics of the pods that wait for free resources.

A task updates them in slices of the event loop, together with the free resources (holes.py). A scrape only reads them.
A sync looks at a pod of each class.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Final

import msgspec

from topowise.runtime import clock
from topowise.runtime.event_loop import sliced
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.next_step import CAUSES, Cause
from topowise_scheduler.explain.waiting import looking
from topowise_scheduler.ledger.holes import Holes
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.pods.records import PodRecord

_INTERVAL_S: Final = 5.0
# Pod classes of a sync; the remaining classes come in the next syncs.
_MAX_CLASSES: Final = 8


class _Wait(msgspec.Struct):
    """Since when (seconds, monotonic) a pod is known to wait, and why. `is_refused`: this service has refused it."""

    since: float
    cause: Cause | None = None
    is_refused: bool = False


class Waits:
    """Pods for which kube-scheduler found no node: why each waits, and how long bound pods have waited.

    `clock` gives seconds, monotonic; `bound` is called with the seconds that a bound pod, which this service had
    refused, has waited.
    """

    def __init__(
        self, ledger: Ledger, view: ClusterView, bound: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self._ledger, self._view = ledger, view
        self._bound, self._clock = bound, clock
        self._waits: dict[str, _Wait] = {}
        self._evaluated_at: dict[Hashable, tuple[int, int, int]] = {}

    def sync(self) -> Iterator[None]:
        """Updates the causes of waiting pods, in steps of some milliseconds."""
        now, waiting = self._clock(), self._ledger.without_node
        for uid in self._waits.keys() - waiting.keys():
            wait = self._waits.pop(uid)
            if wait.is_refused and self._ledger.pods.of(uid).node:
                self._bound(now - wait.since)
        classes: dict[Hashable, list[PodRecord]] = {}
        for uid, record in waiting.items():
            self._waits.setdefault(uid, _Wait(now)).is_refused |= record.status.waits
            classes.setdefault(record.pod_class, []).append(record)
        self._evaluated_at = {pod_class: self._evaluated_at.get(pod_class, (-1, -1, -1)) for pod_class in classes}
        # The classes that were evaluated longest ago come first; without a change of a node the cause stays.
        due = [pod_class for pod_class in classes if self._is_due(classes[pod_class], pod_class)]
        due.sort(key=self._evaluated_at.__getitem__)
        for pod_class in due[:_MAX_CLASSES]:
            self._evaluated_at[pod_class] = self._view.trial.changes
            for pod in looking(self._view, classes[pod_class][0]):
                if pod is None:
                    yield
                    continue
                for record in classes[pod_class]:
                    if (wait_of := self._waits.get(record.uid)) is not None:
                        wait_of.cause = pod.cause
            yield

    def counts(self) -> dict[Cause, int]:
        """Returns the number of waiting pods by cause."""
        counts = Counter(wait.cause for wait in self._waits.values())
        return {cause: counts[cause] for cause in CAUSES}

    def longest(self) -> dict[Cause, float]:
        """Returns by cause the longest wait in seconds."""
        now, longest = self._clock(), dict.fromkeys(CAUSES, 0.0)
        for wait in self._waits.values():
            if wait.cause is not None:
                longest[wait.cause] = max(longest[wait.cause], now - wait.since)
        return longest

    def _is_due(self, pods: list[PodRecord], pod_class: Hashable) -> bool:
        is_changed = self._evaluated_at[pod_class] != self._view.trial.changes
        return is_changed or any(self._waits[pod.uid].cause is None for pod in pods)


class Shortage:
    """Holes and waits, updated by `run`."""

    def __init__(
        self,
        ledger: Ledger,
        view: ClusterView,
        bound: Callable[[float], None],
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.holes = Holes(ledger, clock)
        self.waits = Waits(ledger, view, bound, clock)

    async def run(self) -> None:
        """Updates both until cancelled."""
        while True:
            await sliced(self.holes.sync())
            await sliced(self.waits.sync())
            await asyncio.sleep(_INTERVAL_S)
