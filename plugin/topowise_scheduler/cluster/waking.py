"""Waking pods that were refused for want of NUMA room when there is some.

kube-scheduler tries a pod that an extender has refused again on events of pods and nodes, not on those of NRTs; in a
quiet cluster such a pod sleeps five minutes beside a free node. An annotation on the pod is an event of that pod, and
wakes nobody else. Each pod is woken once for each improvement of a node on which it would fit, a few at a time: a node
that the first of them fills is no reason for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np

from topowise.errors import ApiError
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, kv
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.engine import Outcome

log = logging.getLogger(__name__)

WOKEN_ANNOTATION: Final = "topowise.io/woken"
# Shapes tried in one round: some milliseconds of work.
_MAX_SHAPES: Final = 64
_TIMEOUT_S: Final = 5.0


class Waker:
    """`interval` is seconds between two rounds, `per_second` the most pods that are woken in a second."""

    def __init__(self, api: Api, ledger: Ledger, *, interval: float, per_second: float) -> None:
        self._api = api
        self._ledger = ledger
        self._interval = interval
        self._per_second = per_second
        self._allowance = per_second
        self._round = 0
        self._open: dict[str, int] = {}
        self._woken: dict[str, int] = {}

    async def run(self) -> None:
        """Wakes pods until cancelled."""
        backoff = Backoff()
        while True:
            await asyncio.sleep(self._interval)
            self._allowance = min(self._per_second, self._allowance + self._per_second * self._interval)
            for record in list(self.due()):
                try:
                    await self._wake(record)
                except ApiError as exc:
                    log.warning("Cannot wake a pod", extra=kv(pod=f"{record.namespace}/{record.name}", why=exc))
                    await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))
                    break
                backoff.reset()

    def due(self) -> Iterator[PodRecord]:
        """The pods to wake now, the most important first; each is only named once for one improvement of a node."""
        self._round += 1
        ledger = self._ledger
        self._open.update(dict.fromkeys(ledger.improved, self._round))
        ledger.improved.clear()
        self._woken = {uid: when for uid, when in self._woken.items() if uid in ledger.waiting}
        if not self._open or not ledger.waiting:
            return
        names = list(self._open)
        rows = ledger.engine.rows(names)
        known = rows >= 0
        names = [name for name, is_known in zip(names, known, strict=True) if is_known]
        rows = rows[known]
        since = np.array([self._open[name] for name in names])
        useful = np.zeros(len(names), np.bool_)
        shapes = self._shapes()
        for pods in shapes[:_MAX_SHAPES]:
            needs = pods[0].needs
            if needs is None or not len(names):
                continue
            fits = ledger.engine.judge(needs, rows).outcome == Outcome.FITS
            for name in ledger.quarantined(pods[0].shape):
                if name in names:
                    fits[names.index(name)] = False
            useful |= fits
            room = int(fits.sum())
            for record in pods:
                if not room or self._allowance < 1:
                    break
                if bool((fits & (since > self._woken.get(record.uid, 0))).any()):
                    self._woken[record.uid] = self._round
                    self._allowance -= 1
                    room -= 1
                    yield record
        if len(shapes) <= _MAX_SHAPES and self._allowance >= 1:
            # Nobody who waits fits there: no reason to look again before it changes.
            self._open = {name: self._open[name] for name, keep in zip(names, useful, strict=True) if keep}

    def _shapes(self) -> list[list[PodRecord]]:
        """The pods that wait, those of one shape together, by priority and then by age."""
        grouped: dict[bytes, list[PodRecord]] = {}
        for record in sorted(self._ledger.waiting.values(), key=lambda one: (-one.priority, one.started, one.uid)):
            grouped.setdefault(record.shape, []).append(record)
        return list(grouped.values())

    async def _wake(self, record: PodRecord) -> None:
        path = f"/api/v1/namespaces/{record.namespace}/pods/{record.name}"
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        body = {"metadata": {"uid": record.uid, "annotations": {WOKEN_ANNOTATION: now}}}
        try:
            await self._api.request(
                "PATCH", path, body=msgspec.json.encode(body), content_type=MERGE_PATCH, timeout=_TIMEOUT_S
            )
        except ApiError as exc:
            if exc.status not in (404, 409):
                raise
            # It is gone, or another one of its name is there.
            self._ledger.waiting.pop(record.uid, None)
            return
        self._ledger.events["woken"] += 1
        log.log(V2, "Woke a pod", extra=kv(pod=f"{record.namespace}/{record.name}"))
