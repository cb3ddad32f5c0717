"""A loop that stands still says what keeps it, and a task that ends says why."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from topowise.errors import SourceError
from topowise.runtime import event_loop, tasks
from topowise.runtime.event_loop import StallWatch

STANDS, GOES_ON = "The event loop stands still", "The event loop goes on"


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [(record.getMessage(), record.kv) for record in caplog.records]  # type: ignore[attr-defined]


def test_a_stalled_loop_is_logged_once_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    watch = StallWatch(5.0, lambda: now[0])
    for second in range(60):
        now[0] = float(second)
        if second < 3 or second == 20:
            watch.beat()
        watch.look()
    messages = said(caplog)
    assert [message for message, _ in messages] == [STANDS, GOES_ON, STANDS]
    assert messages[0][1]["seconds"] == 5.0
    assert "test_a_stalled_loop_is_logged_once_with_its_stack" in messages[0][1]["stack"]
    assert messages[1][1] == {"stood_still_s": 18.0}


def test_a_process_that_was_stopped_is_not_a_call_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    watch = StallWatch(5.0, lambda: now[0])
    watch.look()
    now[0] = 100.0
    watch.look()
    now[0] = 100.5
    watch.beat()
    watch.look()
    assert [message for message, _ in said(caplog)] == ["The process stood still: stopped, or without CPU"]


async def test_the_lag_meter_watches_the_loop_from_a_thread(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "StallWatch", lambda: StallWatch(0.5))
    lag = asyncio.create_task(event_loop.Lag(CollectorRegistry(), "t").run())
    await asyncio.sleep(0.3)

    def block() -> None:
        until = time.monotonic() + 30
        while not any(message == STANDS for message, _ in said(caplog)) and time.monotonic() < until:
            time.sleep(0.01)

    block()
    async with asyncio.timeout(30):
        while not any(message == GOES_ON for message, _ in said(caplog)):
            await asyncio.sleep(0.01)
    stacks = [values["stack"] for message, values in said(caplog) if message == STANDS]
    assert any("block (" in stack for stack in stacks)
    lag.cancel()
    await asyncio.gather(lag, return_exceptions=True)
    async with asyncio.timeout(30):
        while any(thread.name == "stall watch" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)


def test_a_stack_in_the_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    watch = StallWatch(5.0, lambda: now[0])

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
            return
        for now[0] in (4.0, 6.0):
            watch.look()

    deep(300)
    ((_, values),) = said(caplog)
    assert values["stack"].count(" > ") == event_loop._MOST_CALLS - 1


async def returns() -> None:
    await asyncio.sleep(0)


async def leaks() -> None:
    await asyncio.sleep(0)
    raise asyncio.CancelledError


async def fails() -> None:
    await asyncio.sleep(0)
    raise KeyError("no such thing")


async def fails_in_groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(tasks.unending("requeue", fails()))
        group.create_task(tasks.unending("nominator", asyncio.Event().wait()))  # type: ignore[arg-type]


async def refuses_in_a_group() -> None:
    async def refuses() -> None:
        raise SourceError("/dev/null", "is no certificate")

    async with asyncio.TaskGroup() as group:
        group.create_task(tasks.unending("requeue", refuses()))


async def leaks_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(tasks.unending("requeue", leaks()))
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("work", "why", "where"),
    [
        (returns, "broken: returned, expected to run until it is cancelled", "unending"),
        (leaks, "broken: CancelledError, although the task was not cancelled", "leaks"),
        (fails, "broken: KeyError: 'no such thing'", "fails"),
        (fails_in_groups, "broken: requeue: KeyError: 'no such thing'", "fails"),
        (refuses_in_a_group, "broken: requeue: SourceError: /dev/null: is no certificate", "refuses"),
        (leaks_in_a_group, "broken: requeue: CancelledError, although the task was not cancelled", "leaks"),
    ],
)
async def test_a_task_that_ends_says_how_and_where(
    caplog: pytest.LogCaptureFixture, work: Any, why: str, where: str
) -> None:
    async with asyncio.timeout(30):
        assert await tasks.run_until_stopped({"broken": work()}) == 1
    (record,) = caplog.records
    assert record.getMessage() == "Task ended, stopping the process"
    assert record.kv == {"task": "broken", "why": why}  # type: ignore[attr-defined]
    assert f"in {where}\n" in logging.Formatter().formatException(record.exc_info)  # type: ignore[arg-type]
