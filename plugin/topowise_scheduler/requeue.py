"""Requeueing pods that were refused for want of NUMA room when there is some.

kube-scheduler tries a pod that an extender has refused again on events of pods and nodes, not on those of NRTs; in a
quiet cluster such a pod sleeps five minutes beside a free node. An annotation on the pod is an event of that pod, and
requeues nobody else. A pod is requeued when a node has improved on which we would say yes to it, as many at a time as
there are such nodes. What else kube-scheduler may have against the node we do not know, so a pod that was requeued in
vain is left alone for a second, then for two, up to five minutes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, kv
from topowise.runtime.once import OncePerChange
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.records import PodRecord

log = logging.getLogger(__name__)

REQUEUED_ANNOTATION: Final = "topowise.io/requeued"
# Groups of like pods tried in one tick: some milliseconds of work.
_MAX_GROUPS: Final = 64
_TIMEOUT_S: Final = 5.0
_SHORTEST_S: Final = 0.01
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 300.0

Fits = Callable[[PodRecord, Sequence[str]], NDArray[np.bool_]]
"""Whether a pod would be let onto each of these nodes (Answers.fits)."""


class _Requeued(msgspec.Struct, frozen=True):
    """The tick in which a pod was requeued last, when it may be requeued again, and the pause after that (seconds)."""

    tick: int
    not_before: float
    pause: float


class Requeuer:
    """`interval` is seconds between two ticks, `per_second` the most pods that are requeued in a second."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        fits: Fits,
        *,
        interval: float,
        per_second: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._fits = fits
        self._interval = max(_SHORTEST_S, interval)
        self._per_second = per_second
        self._clock = clock
        self._allowance = self._most
        self._tick = 0
        self._first_group = 0
        self._open: dict[str, int] = {}
        self._requeued: dict[str, _Requeued] = {}
        self._failures = OncePerChange()

    @property
    def _most(self) -> float:
        return max(1.0, self._per_second)

    async def run(self) -> None:
        """Requeues pods until cancelled."""
        backoff = Backoff()
        while True:
            await asyncio.sleep(self._interval)
            self._allowance = min(self._most, self._allowance + self._per_second * self._interval)
            for record in self.due():
                try:
                    await self._requeue(record)
                except ApiError as exc:
                    self._log_failure(record, exc)
                    if exc.status and exc.status < 500 and exc.status != 429:
                        # This pod's own trouble, such as a webhook's refusal.
                        continue
                    del self._requeued[record.uid]
                    await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))
                    break
                backoff.reset()
                self._failures.clear()

    def due(self) -> Iterator[PodRecord]:
        """The pods to requeue now, the most important first."""
        self._tick += 1
        ledger, now = self._ledger, self._clock()
        self._open.update(dict.fromkeys(ledger.take_improved(), self._tick))
        self._requeued = {uid: requeued for uid, requeued in self._requeued.items() if uid in ledger.waiting}
        if not ledger.waiting:
            self._open.clear()
        if not self._open:
            return
        names = list(self._open)
        since = np.array([self._open[name] for name in names])
        useful = np.zeros(len(names), np.bool_)
        # One pod of a shape for each node that takes it: the first may fill it.
        room: dict[bytes, int] = {}
        groups = self._groups()
        for group in groups[:_MAX_GROUPS]:
            fits = self._fits(group[0], names)
            useful |= fits
            shape = group[0].shape
            room.setdefault(shape, int(fits.sum()))
            for record in group:
                if not room[shape] or self._allowance < 1:
                    break
                requeued = self._requeued.get(record.uid)
                if requeued is None:
                    requeued = _Requeued(0, now, _FIRST_PAUSE_S)
                if requeued.not_before <= now and bool((fits & (since > requeued.tick)).any()):
                    pause = min(_LONGEST_PAUSE_S, 2 * requeued.pause)
                    self._requeued[record.uid] = _Requeued(self._tick, now + requeued.pause, pause)
                    self._allowance -= 1
                    room[shape] -= 1
                    yield record
        if len(groups) <= _MAX_GROUPS:
            # Nobody who waits fits there: no reason to try again before it changes.
            self._open = {name: self._open[name] for name, keep in zip(names, useful, strict=True) if keep}

    def _groups(self) -> list[list[PodRecord]]:
        """The pods that wait, those of which the same is true together, by priority and then by age.

        If there are too many groups for one tick, each begins with others.
        """
        grouped: dict[object, list[PodRecord]] = {}
        for record in sorted(self._ledger.waiting.values(), key=lambda one: (-one.priority, one.started, one.uid)):
            grouped.setdefault((record.shape, record.priority, record.demand), []).append(record)
        groups = list(grouped.values())
        if len(groups) > _MAX_GROUPS:
            self._first_group = (self._first_group + _MAX_GROUPS) % len(groups)
            groups = groups[self._first_group :] + groups[: self._first_group]
        return groups

    async def _requeue(self, record: PodRecord) -> None:
        path = paths.pod(record.namespace, record.name)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        body = {"metadata": {"uid": record.uid, "annotations": {REQUEUED_ANNOTATION: now}}}
        try:
            await self._api.request(
                "PATCH", path, body=msgspec.json.encode(body), content_type=MERGE_PATCH, timeout=_TIMEOUT_S
            )
        except ApiError as exc:
            # With another uid the patch is invalid (client-go, PodControllerRefManager.ReleasePod).
            has_other_uid = exc.status == 422 and "metadata.uid" in exc.message
            if exc.status not in (404, 409) and not has_other_uid:
                raise
            # It is gone, or another one of its name is there.
            self._ledger.stop_waiting(record.uid)
            return
        self._ledger.count("requeued")
        log.log(V2, "Requeued a pod", extra=kv(pod=f"{record.namespace}/{record.name}"))

    def _log_failure(self, record: PodRecord, exc: ApiError) -> None:
        if self._failures.is_change(f"{exc.status} {exc.reason}"):
            log.warning("Cannot requeue a pod", extra=kv(pod=f"{record.namespace}/{record.name}", why=exc))
