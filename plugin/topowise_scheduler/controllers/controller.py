"""The loop of a controller of the leader: handles all items that are due, one at a time, and retries failed items.

The due items are computed from watched state in each pass, so the loop remembers only when to retry each item. An item
that fails waits longer after each failure and does not block other items. A failure of the whole API server pauses all
items.

Waiting pods get their turn in an order in which a tenant with many pods does not block other tenants: what they wait
for is bounded (looks of a pass, evictions a minute, nodes an hour).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from topowise.errors import ApiError
from topowise.runtime import clock
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import OncePerChange, kv
from topowise_scheduler.ledger.pods.records import PodRecord


def in_turn(
    waiting: Iterable[PodRecord], used: Mapping[str, int], not_before: Mapping[str, float] | None = None
) -> list[PodRecord]:
    """Returns the pods by `not_before`, then by priority, and of equal priority a pod of each namespace before the
    second of any; of one namespace the oldest first.

    `used`: how much of a budget a namespace has used lately; its first pod comes with the pod after as many of another
    namespace. `not_before`: by UID, the end of the pod's last pause; pods without one come first.
    """
    turns: Counter[tuple[str, int]] = Counter()
    ranks: dict[str, tuple[float, int, int]] = {}
    by_age = sorted(waiting, key=lambda record: (record.status.started, record.uid))
    for record in by_age:
        tenant = record.namespace, record.priority
        pause = (not_before or {}).get(record.uid, 0.0)
        ranks[record.uid] = pause, -record.priority, used.get(record.namespace, 0) + turns[tenant]
        turns[tenant] += 1
    return sorted(by_age, key=lambda record: ranks[record.uid])


log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 5.0
# Pause after success: the watch needs time to deliver the change.
_DONE_S: Final = 5.0
_LONGEST_S: Final = 300.0

Item = TypeVar("Item")


async def run(
    task: str,
    due: Callable[[], Mapping[str, Item]],
    do: Callable[[Item], Awaitable[None]],
    *,
    interval: float,
    clock: Callable[[], float] = clock.monotonic,
) -> None:
    """Handles due items, by name, until cancelled.

    `task` is for the log ("remove a start-up taint"), `interval` is the pause between two passes in seconds, and `do`
    raises ApiError.
    """
    backoff, failures = Backoff(), OncePerChange()
    # By name of the item: when it may be retried (seconds), and the backoff of the item.
    retries: dict[str, tuple[float, Backoff]] = {}
    while True:
        await asyncio.sleep(interval)
        items = due()
        retries = {name: retry for name, retry in retries.items() if name in items}
        for name, item in items.items():
            not_before, item_backoff = retries.get(name, (0.0, None))
            if clock() < not_before:
                continue
            try:
                await do(item)
            except ApiError as exc:
                if failures.is_change(f"{exc.status} {exc.reason}"):
                    log.warning("Cannot %s", task, extra=kv(of=name, why=exc))
                item_backoff = item_backoff or Backoff(maximum=_LONGEST_S)
                retries[name] = clock() + item_backoff.next_delay(at_least=exc.retry_after), item_backoff
                if exc.is_general:
                    await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))
                    break
            else:
                retries[name] = clock() + _DONE_S, Backoff(maximum=_LONGEST_S)
                backoff.reset()
                failures.over()
