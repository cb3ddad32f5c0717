"""Events: a burst is one sync, silence lasts as long as it should, and syncs are limited."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from topowise.runtime import clock
from topowise_exporter import triggers
from topowise_exporter.triggers import FileWatch, Trigger, Uevents


async def test_a_burst_of_hints_is_a_single_sync() -> None:
    trigger = Trigger()

    async def burst() -> None:
        for number in range(5):
            trigger.notify(f"event {number}")
            await asyncio.sleep(0.005)

    task = asyncio.create_task(burst())
    reasons = await trigger.wait(5, quiet=0.02)
    assert reasons == {f"event {number}" for number in range(5)}
    await task
    assert await trigger.wait(0.05, quiet=0.01) == frozenset()


async def test_a_storm_does_not_put_a_look_off_for_ever() -> None:
    trigger = Trigger()

    async def storm() -> None:
        while True:
            trigger.notify("again")
            await asyncio.sleep(0.002)

    task = asyncio.create_task(storm())
    started = clock.monotonic()
    assert await trigger.wait(60, quiet=0.01)
    assert clock.monotonic() - started < 30
    task.cancel()


async def test_without_an_event_only_time_passes() -> None:
    started = clock.monotonic()
    assert await Trigger().wait(0.05, quiet=0.01) == frozenset()
    assert clock.monotonic() - started >= 0.05


async def test_files_are_noticed_in_directories_that_come_and_go(tmp_path: Path) -> None:
    trigger = Trigger()
    directory = tmp_path / "later"
    watch = asyncio.create_task(FileWatch(trigger, {directory: frozenset({"state"})}, retry=0.02).run())
    await asyncio.sleep(0.05)
    directory.mkdir()
    assert await trigger.wait(2, quiet=0.01)
    (directory / "other").write_text("x")
    assert await trigger.wait(0.1, quiet=0.01) == frozenset()
    (directory / "scratch").write_text("x")
    (directory / "scratch").rename(directory / "state")
    assert await trigger.wait(2, quiet=0.01) == {"state"}
    (directory / "state").unlink()
    (directory / "other").unlink()
    await trigger.wait(2, quiet=0.01)
    directory.rmdir()
    assert any("gone" in reason for reason in await trigger.wait(2, quiet=0.01))
    directory.mkdir()
    await trigger.wait(2, quiet=0.01)
    (directory / "state").write_text("x")
    assert "state" in await trigger.wait(2, quiet=0.01)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch


async def test_uevents_can_be_cancelled_with_and_without_libudev() -> None:
    task = asyncio.create_task(Uevents(Trigger()).run())
    await asyncio.sleep(0.1)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Monitor:
    """Like pyudev's monitor: pending events, and a descriptor that is readable while an event is pending."""

    def __init__(self, *events: tuple[str, str]) -> None:
        self._events = [SimpleNamespace(action=action, sys_name=name) for action, name in events]

    def poll(self, timeout: float) -> Any:
        return self._events.pop(0) if self._events else None


async def test_pci_functions_that_come_or_go_ask_for_the_machine() -> None:
    assert "pci" in Uevents.SUBSYSTEMS
    trigger = Trigger()
    Uevents(trigger)._on_readable(Monitor(("remove", "0000:98:00.1"), ("bind", "0000:98:00.2")))
    reasons = await trigger.wait(1, quiet=0.001)
    assert reasons == {"uevent: remove 0000:98:00.1", "uevent: bind 0000:98:00.2"}
    assert all(reason.startswith(triggers.MACHINE) for reason in reasons)


class Overflown(Monitor):
    """As pyudev's on a socket that has an error: it looks at the error, and does not take it off the socket."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__()
        self._socket = connected

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self, timeout: float) -> Any:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if any(mask & select.POLLERR for _, mask in poller.poll(timeout)):
            raise OSError(f"Error while polling fd: {self.fileno()}")
        return super().poll(timeout)


async def test_an_overflow_of_the_uevent_socket_scans_the_machine_once(caplog: pytest.LogCaptureFixture) -> None:
    trigger = Trigger()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone, socket.socket(type=socket.SOCK_DGRAM) as connected:
        gone.bind(("127.0.0.1", 0))
        connected.connect(gone.getsockname())
        connected.setblocking(False)
        gone.close()
        monitor = Overflown(connected)
        asyncio.get_running_loop().add_reader(connected, Uevents(trigger)._on_readable, monitor)
        # Without a listener the socket has a pending error until it is read.
        connected.send(b"x")
        assert await trigger.wait(2, quiet=0.05) == {"uevent: overflow"}
        assert monitor.poll(0) is None
        assert await trigger.wait(0.05, quiet=0.01) == frozenset()
        asyncio.get_running_loop().remove_reader(connected)
    assert "Exception in callback" not in caplog.text


async def test_a_machine_without_inotify_instances_to_spare_has_timed_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = triggers.INotify
    left = [OSError(errno.EMFILE, "Too many open files")]

    def scarce(**options: Any) -> Any:
        if left:
            raise left.pop()
        return real(**options)

    monkeypatch.setattr(triggers, "INotify", scarce)
    trigger = Trigger()
    watch = asyncio.create_task(FileWatch(trigger, {tmp_path: frozenset({"state"})}, retry=0.02).run())
    await trigger.wait(2, quiet=0.01)
    (tmp_path / "state").write_text("x")
    assert "state" in await trigger.wait(2, quiet=0.01)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
