"""The loop that writes the decisions to the status of their pods, several at a time.

The write names the version of the pod that was decided on, so it overwrites neither another writer's nomination nor a
changed pod. After a failed write:

- the pod has changed or is gone (409, 404, 422): an event of the pod follows and leads to a new decision;
- the API server throttles (429): the pod is queued again, and all writes wait as long as the API server demands;
- no response, or a server error: the outcome is unknown. An event shows the nomination, or its booking expires.

A decision is made only when a writer is free: while the API server is slow, no resources are booked in advance.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, OncePerChange, kv
from topowise_scheduler.controllers.nomination import nominate
from topowise_scheduler.controllers.nominator.deciding import Decisions, Write
from topowise_scheduler.ledger.ledger import Ledger

log = logging.getLogger(__name__)

NotReady = Callable[[], str | None]
"""Returns why no decision can be made yet, None if decisions can be made."""

_IDLE_S: Final = 0.02
# Concurrent writes: an API server answers each in some milliseconds, so that eight keep ahead of kube-scheduler.
_WRITES: Final = 8
# Withdrawals that failed and are retried.
_MAX_RETRIES: Final = 1000


class Nominator:
    """`writes` bounds the concurrent writes; no decision is made while `not_ready` returns a reason."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        decisions: Decisions,
        *,
        writes: int = _WRITES,
        not_ready: NotReady = lambda: None,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._decisions = decisions
        self._writers = asyncio.Semaphore(writes)
        self._not_ready = not_ready
        self._clock = clock
        self._backoff = Backoff()
        self._paused_until = 0.0
        self._retries: deque[Write] = deque(maxlen=_MAX_RETRIES)
        self._failures = OncePerChange()

    async def run(self) -> None:
        """Nominates pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._writers.acquire()
                write = await self._next()
                group.create_task(self._write(write))
                # Requests of schedulers have priority on the event loop.
                await asyncio.sleep(0)

    async def _next(self) -> Write:
        while True:
            if (pause := self._paused_until - self._clock()) > 0:
                await asyncio.sleep(pause)
            # Without the reports no node takes a pod, and the pod would not be nominated later.
            if self._not_ready() is None:
                write = self._retries.popleft() if self._retries else self._decisions.next()
                if write is not None:
                    return write
            await asyncio.sleep(_IDLE_S)

    async def _write(self, write: Write) -> None:
        record = write.record
        try:
            is_written = await nominate(self._api, record, write.node, version=record.status.version, ahead=True)
        except ApiError as exc:
            self._note_failure(write, exc)
        else:
            self._backoff.reset()
            self._failures.clear()
            self._ledger.count("nomination_written" if is_written else "nomination_conflict")
            if is_written:
                log.log(V2, "Nominated a pod", extra=kv(pod=_name(write), node=write.node))
            else:
                self._drop_unwritten(write)
        finally:
            self._writers.release()

    def _note_failure(self, write: Write, exc: ApiError) -> None:
        is_transient = not exc.status or exc.status >= 500 or exc.status == 429
        if self._failures.is_change(f"{exc.status} {exc.reason}"):
            log.warning("Cannot nominate a pod", extra=kv(pod=_name(write), node=write.node, why=exc))
        self._ledger.count("nomination_failed")
        # Without permission every write fails, so the pause keeps the failures rare.
        if is_transient or exc.status in (401, 403):
            pause = self._backoff.next_delay(at_least=exc.retry_after)
            self._paused_until = max(self._paused_until, self._clock() + pause)
        if not write.node:
            if is_transient:
                self._retries.append(write)
        elif exc.status == 429:
            if self._drop_unwritten(write):
                self._ledger.queue.put(write.record)
        elif not is_transient:
            self._drop_unwritten(write)

    def _drop_unwritten(self, write: Write) -> bool:
        """Ends the booking of a nomination that was not written. Returns False if the pod has
        another nomination by now."""
        nomination = self._ledger.nominations.of(write.record.uid)
        if nomination is None or not nomination.unobserved or nomination.record is not write.record:
            return False
        self._ledger.withdraw(write.record.uid)
        return True


def _name(write: Write) -> str:
    return f"{write.record.namespace}/{write.record.name}"
