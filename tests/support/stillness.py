"""Waiting until nothing moves any more.

For how long nothing has moved is counted in turns of our own event loop, not in seconds: a process that did not run for
two seconds has seen nothing move either, and all that was due meanwhile is still to come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from topowise.runtime import clock

Seen = TypeVar("Seen")


async def until_still(
    look: Callable[[], Awaitable[Seen | None]],
    *,
    seconds: float,
    limit: float,
    state: Callable[[], object],
    every: float = 0.05,
) -> Seen:
    """What `look`, asked `every` so many seconds, has returned all the time; None means that something moves.

    After `limit` seconds it is an AssertionError with the `state`.
    """
    deadline = clock.monotonic() + limit
    before: Seen | None = None
    iterations = 0
    while True:
        seen = await look()
        iterations = iterations + 1 if seen is not None and seen == before else 0
        if seen is not None and iterations * every >= seconds:
            return seen
        before = seen
        assert clock.monotonic() < deadline, f"still moving after {limit:.0f}s: {state()}"
        await asyncio.sleep(every)
