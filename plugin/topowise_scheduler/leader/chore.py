"""A chore of the leader: whatever is due is done, one after the other, and tried again if that failed.

What is due is read anew each time from what the watches have brought, so nothing is remembered of a chore but when each
thing may be tried again. One that cannot be done waits longer each time and holds up no other; a server that is in
trouble is left alone by all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from topowise.errors import ApiError
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import kv
from topowise.runtime.log_once import OncePerChange

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 5.0
# Until the watch shows what was done.
_DONE_S: Final = 5.0
_LONGEST_S: Final = 300.0

Item = TypeVar("Item")


async def run(
    task: str,
    due: Callable[[], Mapping[str, Item]],
    do: Callable[[Item], Awaitable[None]],
    *,
    interval: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Does what is due, by name, until cancelled. `task` is for the log ("remove a start-up taint"), `interval` is
    seconds between two looks, `do` raises ApiError."""
    backoff, failures = Backoff(), OncePerChange()
    # By name: when it may be tried again, and its own backoff.
    retries: dict[str, tuple[float, Backoff]] = {}
    while True:
        await asyncio.sleep(interval)
        items = due()
        retries = {name: retry for name, retry in retries.items() if name in items}
        for name, item in items.items():
            not_before, own = retries.get(name, (0.0, None))
            if clock() < not_before:
                continue
            try:
                await do(item)
            except ApiError as exc:
                if failures.is_change(f"{exc.status} {exc.reason}"):
                    log.warning("Cannot %s", task, extra=kv(of=name, why=exc))
                own = own or Backoff(maximum=_LONGEST_S)
                retries[name] = clock() + own.next_delay(at_least=exc.retry_after), own
                if exc.is_general:
                    await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))
                    break
            else:
                retries[name] = clock() + _DONE_S, Backoff(maximum=_LONGEST_S)
                backoff.reset()
                failures.over()
