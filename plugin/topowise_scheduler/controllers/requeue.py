"""Requeues pods that were refused for lack of NUMA capacity once a node has that capacity.

kube-scheduler retries a pod that an extender has refused on events of pods and nodes, and not on events of NRTs. In a
quiet cluster such a pod waits five minutes beside a free node. An annotation on the pod is an event of that pod and
requeues no other pod. A pod is requeued when a node that would take the pod has improved, at most a pod for each such
node. kube-scheduler may have other reasons against the node, so the pause after a requeue in vain doubles from a second
up to five minutes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime import clock
from topowise.runtime.backoff import Backoff
from topowise.runtime.event_loop import SLICE_S
from topowise.runtime.log import V2, OncePerChange, kv
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.pods.demands import Demands
from topowise_scheduler.ledger.pods.records import PodRecord

log = logging.getLogger(__name__)

REQUEUED_ANNOTATION: Final = "topowise.io/requeued"
# Groups of a tick: some milliseconds of work. The remaining groups come in the next ticks.
_MAX_GROUPS: Final = 64
# From kube-scheduler's request to the event that shows the refused pod: its status is written in between.
_RECENT_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
# A tick without an improved node costs microseconds, and a pod notices no shorter wait.
_INTERVAL_S: Final = 0.1
# The most pods requeued per second: a write each, and a scheduling attempt of kube-scheduler, which has 50 a second by
# its default limits of requests.
_PER_SECOND: Final = 20.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 300.0

Fits = Callable[[PodRecord, Sequence[str]], NDArray[np.bool_]]
"""Returns whether a pod fits on each of these nodes (Answers.fits)."""


class _Requeued(msgspec.Struct, frozen=True):
    """The tick in which a pod was requeued last, when it may be requeued again, and the pause after that (seconds)."""

    tick: int
    not_before: float
    pause: float


_NEVER: Final = _Requeued(0, float("-inf"), _FIRST_PAUSE_S)
_Key = tuple[bytes, int, Demands, tuple[str, ...]]
"""Shape, priority, what annotations demand, and claims: pods of equal keys fit on the same nodes."""
_Groups = dict[_Key, list[PodRecord]]


class Requeuer:
    """`interval` is the time between two ticks in seconds, `per_second` the most requeued pods per second.

    `prepare` does in steps what `fits` would take long for.
    """

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        fits: Fits,
        *,
        interval: float = _INTERVAL_S,
        per_second: float = _PER_SECOND,
        prepare: Callable[[PodRecord, Sequence[str]], Iterable[None]] = lambda _record, _names: (),
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._fits = fits
        self._prepare = prepare
        self._interval = interval
        self._per_second = per_second
        self._clock = clock
        self._allowance = self._most
        self._tick = 0
        # Nodes that have improved, with the tick of it, while they may be of use.
        self._open: dict[str, int] = {}
        # Tick and time (seconds, monotonic) of improvements that a pod may have missed while its refusal was written.
        self._recent: dict[str, tuple[int, float]] = {}
        self._began = 0
        # The last tick in which a group was tried, and the groups that would still fit on some node.
        self._tried: dict[_Key, int] = {}
        self._useful: set[_Key] = set()
        # By open node: the last tick in which the node was of use to a group that has to pause.
        self._of_use: dict[str, int] = {}
        # Until this time (seconds, monotonic) there is nothing to do unless a node improves.
        self._rests_until = 0.0
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
            since = time.monotonic()
            for record in self._steps():
                if record is None:
                    if time.monotonic() - since > SLICE_S:
                        await asyncio.sleep(0)
                        since = time.monotonic()
                    continue
                try:
                    await self._requeue(record)
                except ApiError as exc:
                    self._log_failure(record, exc)
                    if not exc.is_general:
                        # The failure concerns this pod only, such as the refusal of a webhook.
                        continue
                    del self._requeued[record.uid]
                    await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))
                    break
                backoff.reset()
                self._failures.clear()

    def _steps(self) -> Iterator[PodRecord | None]:
        """Yields the pods to requeue now, and None between steps of about a millisecond."""
        self._tick += 1
        # Without an allowance no pod can be requeued, so none is tried.
        if self._allowance < 1 or not self._has_news():
            return
        groups: _Groups = {}
        for _ in self._sort(groups):
            yield None
        if not groups.keys() <= self._tried.keys():
            # Pods of a new group were refused before the latest improvements and became known only now.
            self._open = {name: opened for name, (opened, _) in self._recent.items()} | self._open
        self._tried = {key: self._tried.get(key, 0) for key in groups}
        self._useful.intersection_update(groups)
        if not groups:
            # Only gated pods wait.
            self._open.clear()
        if not self._open:
            self._rests_until = float("inf")
            return
        yield from self._try_all(groups)

    def _has_news(self) -> bool:
        """Returns whether a node or a group has changed since all groups were tried, or a pause has ended."""
        ledger, now = self._ledger, self._clock()
        improved, began = ledger.node_states.take_improved(), ledger.began_to_wait
        if not improved and began == self._began and now < self._rests_until:
            return False
        self._began, self._rests_until = began, 0.0
        self._note(improved, now)
        self._requeued = {uid: requeued for uid, requeued in self._requeued.items() if uid in ledger.waiting}
        if not ledger.waiting:
            self._open.clear()
        return bool(self._open or self._recent)

    def _try_all(self, groups: _Groups) -> Iterator[PodRecord | None]:
        """Tries the due groups on the open nodes, the groups first that were tried longest ago."""
        now, names = self._clock(), list(self._open)
        since = np.array(list(self._open.values()))
        # By open node: the last tick in which the node was of use to a group.
        of_use = np.array([self._of_use.get(name, 0) for name in names])
        newest = int(since.max())
        due = [key for key in groups if self._tried[key] < newest or self._is_ready(key, groups[key], now)]
        due.sort(key=self._tried.__getitem__)
        # At most one pod of a shape for each node that takes it: the first pod may fill the node.
        capacity: dict[bytes, int] = {}
        tried = 0
        for key in due[:_MAX_GROUPS]:
            if self._allowance < 1:
                break
            for _ in self._prepare(groups[key][0], names):
                yield None
            fits = self._fits(groups[key][0], names)
            capacity.setdefault(groups[key][0].shape, int(fits.sum()))
            yield from self._choose(groups[key], fits, since, capacity)
            # Set last: a caller that failed to requeue the pod comes back to the group.
            self._tried[key] = self._tick
            tried += 1
            last = min(self._requeued.get(record.uid, _NEVER).tick for record in groups[key])
            self._useful.discard(key)
            if (later := fits & (since > last)).any():
                self._useful.add(key)
                of_use[later] = self._tick
            yield None
        if tried == len(due):
            starts = (
                self._requeued.get(record.uid, _NEVER).not_before for key in self._useful for record in groups[key]
            )
            self._rests_until = min(starts, default=float("inf"))
        self._close(dict(zip(names, of_use.tolist(), strict=True)))

    def _choose(
        self, group: list[PodRecord], fits: NDArray[np.bool_], since: NDArray[np.int64], capacity: dict[bytes, int]
    ) -> Iterator[PodRecord]:
        """Yields pods of a group for which a node is open that was not open at their last requeue."""
        now, shape = self._clock(), group[0].shape
        for record in group:
            if not capacity[shape] or self._allowance < 1:
                return
            requeued = self._requeued.get(record.uid, _NEVER)
            if requeued.not_before <= now and bool((fits & (since > requeued.tick)).any()):
                pause = min(_LONGEST_PAUSE_S, 2 * requeued.pause)
                self._requeued[record.uid] = _Requeued(self._tick, now + requeued.pause, pause)
                self._allowance -= 1
                capacity[shape] -= 1
                yield record

    def _close(self, useful: dict[str, int]) -> None:
        """Closes nodes that every group was tried on, unless a group that has to pause can use them."""
        oldest = min(self._tried.values())
        self._open = {name: at for name, at in self._open.items() if at > oldest or useful.get(name, 0) >= oldest}
        self._of_use = {name: useful[name] for name in self._open if useful.get(name, 0)}

    def _note(self, improved: set[str], now: float) -> None:
        self._open.update(dict.fromkeys(improved, self._tick))
        late = [name for name, (_, at) in self._recent.items() if at + _RECENT_S < now]
        for name in late:
            del self._recent[name]
        self._recent.update(dict.fromkeys(improved, (self._tick, now)))

    def _is_ready(self, key: _Key, group: Sequence[PodRecord], now: float) -> bool:
        """Returns whether the group fits on a node, as found before, and one of its pods may be requeued now."""
        return key in self._useful and any(self._requeued.get(record.uid, _NEVER).not_before <= now for record in group)

    def _sort(self, groups: _Groups) -> Iterator[None]:
        """Fills `groups` with the waiting pods, groups by priority and age; yields between steps."""
        by_key: _Groups = {}
        for record in list(self._ledger.waiting.values()):
            if record.status.gates:
                # No scheduler looks at it.
                continue
            claims = (record.namespace, *record.claims) if record.claims else ()
            by_key.setdefault((record.shape, record.priority, record.demands, claims), []).append(record)
            yield
        for group in by_key.values():
            group.sort(key=_age)
            yield
        # Groups of equal priority are ordered by their oldest pod, which is the first.
        for key in sorted(by_key, key=lambda key: (-key[1], *_age(by_key[key][0]))):
            groups[key] = by_key[key]

    async def _requeue(self, record: PodRecord) -> None:
        # A status patch can change the annotations of a pod, and cannot change its spec, such as an image.
        path = paths.pod(record.namespace, record.name, "status")
        now = clock.utc_now().isoformat(timespec="milliseconds")
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
            # Deleted, or a new pod of the name exists.
            self._ledger.stop_waiting(record.uid)
            return
        self._ledger.count("requeued")
        log.log(V2, "Requeued a pod", extra=kv(pod=f"{record.namespace}/{record.name}"))

    def _log_failure(self, record: PodRecord, exc: ApiError) -> None:
        if self._failures.is_change(f"{exc.status} {exc.reason}"):
            log.warning("Cannot requeue a pod", extra=kv(pod=f"{record.namespace}/{record.name}", why=exc))


def _age(record: PodRecord) -> tuple[str, str]:
    return record.status.started, record.uid
