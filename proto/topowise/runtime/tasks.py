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
    running = [asyncio.create_task(unending(name, work), name=name) for name, work in tasks.items()]
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


class TaskEndedError(Exception):
    """A task that runs until it is cancelled has ended by itself; the text names the task and says how."""


async def unending(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Runs work that ends by a cancellation of this task alone. Raises TaskEndedError, from what the work has raised.

    A CancelledError without a call of `Task.cancel` is a defect of the work, such as a time limit that leaked out.
    asyncio takes a task that ends by it for cancelled: the log gets no reason, and a TaskGroup goes on without it.
    """
    try:
        await work
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TaskEndedError(f"{name}: {type(exc).__name__}, although nobody cancelled the task") from exc
    except Exception as exc:
        raise TaskEndedError(f"{name}: {_text(exc)}") from exc
    raise TaskEndedError(f"{name}: returned, expected to run until it is cancelled")


def _log_end(task: asyncio.Task[Any]) -> None:
    said = "Task ended, stopping the process"
    failure = asyncio.CancelledError() if task.cancelled() else task.exception()
    cause = None if failure is None else failure.__cause__
    if isinstance(cause, TopowiseError):
        # Raised on purpose: its text says it all.
        log.error(said, extra=kv(task=task.get_name(), why=cause))
    else:
        log.error(said, extra=kv(task=task.get_name(), why=_text(failure)), exc_info=failure)


def _text(failure: BaseException | None) -> str:
    """Type and text; of a group, those of all in it, as the group's own text names none."""
    if isinstance(failure, BaseExceptionGroup):
        return "; ".join(_text(part) for part in failure.exceptions)
    if isinstance(failure, TaskEndedError):
        return str(failure)
    return f"{type(failure).__name__}: {failure}"
