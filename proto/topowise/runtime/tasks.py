"""Runs named long-running tasks.

Every task of a daemon runs forever. If a task returns or raises, that is a defect: the process logs its name and ends,
and the pod is restarted. A daemon that lost a loop and looks alive would be worse. Sources that may fail retry inside
their own loop.
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


async def run_until_stopped(tasks: Mapping[str, Coroutine[Any, Any, None]]) -> int:
    """Runs the tasks until SIGTERM or SIGINT, then cancels and awaits them. Returns the process's exit status: 0 after
    a signal, 1 if a task ended by itself."""
    stopping = asyncio.Event()
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
    """A task that should run until it is cancelled has ended by itself; the text names the task and the cause."""


async def unending(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Runs work that must end only by a cancellation of this task. Raises TaskEndedError, from the work's exception.

    A CancelledError without a call of `Task.cancel` is a defect of the work, such as a time limit that leaked out.
    asyncio would treat the task as cancelled: the log would get no reason, and a TaskGroup would continue without it.
    """
    try:
        await work
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TaskEndedError(f"{name}: {type(exc).__name__}, although the task was not cancelled") from exc
    except Exception as exc:
        raise TaskEndedError(f"{name}: {_text(exc)}") from exc
    raise TaskEndedError(f"{name}: returned, expected to run until it is cancelled")


def _log_end(task: asyncio.Task[Any]) -> None:
    message = "Task ended, stopping the process"
    failure = asyncio.CancelledError() if task.cancelled() else task.exception()
    cause = None if failure is None else failure.__cause__
    if isinstance(cause, TopowiseError):
        # A deliberate error: its text is complete without a traceback.
        log.error(message, extra=kv(task=task.get_name(), why=cause))
    else:
        log.error(message, extra=kv(task=task.get_name(), why=_text(failure)), exc_info=failure)


def _text(failure: BaseException | None) -> str:
    """Returns type and text; for a group those of all its exceptions, which the group's own text does not name."""
    if isinstance(failure, BaseExceptionGroup):
        return "; ".join(_text(part) for part in failure.exceptions)
    if isinstance(failure, TaskEndedError):
        return str(failure)
    return f"{type(failure).__name__}: {failure}"
