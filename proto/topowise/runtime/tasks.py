"""Named long-running tasks under one roof.

Every task of a daemon runs forever. One that returns or raises is a defect: the process logs which one and ends,
and the pod's restart is the cure; a daemon that lost a loop and looks alive is the worst outcome. Sources that may
fail retry inside their own loop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine, Mapping
from typing import Any

from topowise.errors import TopowiseError
from topowise.runtime.log import kv

log = logging.getLogger(__name__)


async def run_until_stopped(
    tasks: Mapping[str, Coroutine[Any, Any, None]], *, stop: asyncio.Event | None = None
) -> int:
    """Runs the tasks until SIGTERM, SIGINT or `stop`, then cancels and awaits them all.

    Returns the process's exit status: 0 after a stop, 1 if a task ended by itself.
    """
    stopping = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    running = [asyncio.create_task(work, name=name) for name, work in tasks.items()]
    waiter = asyncio.create_task(stopping.wait(), name="stop signal")
    try:
        done, _ = await asyncio.wait([waiter, *running], return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in done if task is not waiter]
        for task in ended:
            _log_end(task)
        return 1 if ended else 0
    finally:
        for task in (waiter, *running):
            task.cancel()
        await asyncio.gather(waiter, *running, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _log_end(task: asyncio.Task[Any]) -> None:
    failure, said = _failure(task), "Task ended, stopping the process"
    if isinstance(failure, TopowiseError):
        # Raised on purpose: its text says it all.
        log.error(said, extra=kv(task=task.get_name(), why=failure))
    else:
        log.error(said, extra=kv(task=task.get_name()), exc_info=failure)


def _failure(task: asyncio.Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
