"""The loop around the decisions: each is written to its pod's status, several at once.

The write names the version of the pod that was decided on, so it overwrites neither another's nomination nor a pod that
has changed. What becomes of a failed one:

- the pod has changed or is gone (409, 404, 422): its event tells, and decides anew;
- refused for now (429): it waits its turn again, and all others wait as long as the API server asks;
- no answer, or a server's trouble: it may be written or not. Its event tells, or the room is given back after a while.

Nothing is decided unless there is somebody free to write it: while the API server is slow, no room is booked ahead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, kv
from topowise.runtime.log_once import OncePerChange
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.leader.nomination import nominate
from topowise_scheduler.leader.nominator.deciding import Decisions, Write

log = logging.getLogger(__name__)

NotReady = Callable[[], str | None]
"""Why nothing can be decided yet, None if it can."""

_IDLE_S: Final = 0.02
# Withdrawals that failed and are tried again.
_MAX_AGAIN: Final = 1000


class Nominator:
    """`writes` are so many at once; nothing is decided while `not_ready` says why not."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        decisions: Decisions,
        *,
        writes: int,
        not_ready: NotReady = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._decisions = decisions
        self._free = asyncio.Semaphore(writes)
        self._not_ready = not_ready
        self._clock = clock
        self._backoff = Backoff()
        self._pauses_until = 0.0
        self._again: deque[Write] = deque(maxlen=_MAX_AGAIN)
        self._failures = OncePerChange()

    async def run(self) -> None:
        """Nominates pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._free.acquire()
                write = await self._next()
                group.create_task(self._write(write))
                # The answers to schedulers come first.
                await asyncio.sleep(0)

    async def _next(self) -> Write:
        while True:
            if (pause := self._pauses_until - self._clock()) > 0:
                await asyncio.sleep(pause)
            # Without the reports no node takes a pod, and it would be left alone.
            if self._not_ready() is None:
                write = self._again.popleft() if self._again else self._decisions.next()
                if write is not None:
                    return write
            await asyncio.sleep(_IDLE_S)

    async def _write(self, write: Write) -> None:
        record = write.record
        try:
            is_written = await nominate(self._api, record, write.node, version=record.version, ahead=True)
        except ApiError as exc:
            self._note_failure(write, exc)
        else:
            self._backoff.reset()
            self._failures.clear()
            self._ledger.count("nomination_written" if is_written else "nomination_conflict")
            if is_written:
                log.log(V2, "Nominated a pod", extra=kv(pod=_name(write), node=write.node))
            else:
                self._give_back(write)
        finally:
            self._free.release()

    def _note_failure(self, write: Write, exc: ApiError) -> None:
        is_passing = not exc.status or exc.status >= 500 or exc.status == 429
        if self._failures.is_change(f"{exc.status} {exc.reason}"):
            log.warning("Cannot nominate a pod", extra=kv(pod=_name(write), node=write.node, why=exc))
        self._ledger.count("nomination_failed")
        # Without the right to do it nobody needs to be told so for each pod.
        if is_passing or exc.status in (401, 403):
            pause = self._backoff.next_delay(at_least=exc.retry_after)
            self._pauses_until = max(self._pauses_until, self._clock() + pause)
        if not write.node:
            if is_passing:
                self._again.append(write)
        elif exc.status == 429:
            if self._give_back(write):
                self._ledger.queue.put(write.record)
        elif not is_passing:
            self._give_back(write)

    def _give_back(self, write: Write) -> bool:
        """The room of a nomination that is known not to be written. False if it is another by now."""
        mine = self._ledger.nominations.of(write.record.uid)
        if mine is None or not mine.unseen or mine.record is not write.record:
            return False
        self._ledger.withdraw(write.record.uid)
        return True


def _name(write: Write) -> str:
    return f"{write.record.namespace}/{write.record.name}"
