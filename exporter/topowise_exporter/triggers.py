"""Triggers a sync after an event. An event has no data: a sync reads everything.

Events are writes of the kubelet (state files, socket), uevents of the kernel (devices, CPUs, memory), a signal, and a
file that a hook of the container runtime touches. A burst of events is a single sync, and a change without an event is
found by the next timed sync.

A sync costs the kubelet two of the hundred podresources calls per second that all clients of the node share, so syncs
are limited to a few per second after a short burst.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inotify_simple import INotify, flags

from topowise.runtime.log import V4, kv

log = logging.getLogger(__name__)

# The kubelet replaces its checkpoints by a rename; a socket is made by bind; a runtime's hook may just touch its file.
_CHANGES = flags.CLOSE_WRITE | flags.MOVED_TO | flags.CREATE | flags.DELETE | flags.ATTRIB
_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.IGNORED


class Trigger:
    """The loop waits here for events. `notify` may be called from callbacks of the event loop."""

    def __init__(self) -> None:
        self._notified = asyncio.Event()
        self.reasons: set[str] = set()

    def notify(self, reason: str) -> None:
        """Wakes the loop."""
        log.log(V4, "Event", extra=kv(reason=reason))
        self.reasons.add(reason)
        self._notified.set()

    async def wait(self, at_most: float, *, quiet: float = 0.0) -> frozenset[str]:
        """Waits for an event and then for `quiet` seconds without events (at most ten times that); or for `at_most`.
        Returns the events, empty if only time has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._notified.wait()
            async with asyncio.timeout(10 * quiet):
                while self._notified.is_set():
                    self._notified.clear()
                    await asyncio.sleep(quiet)
        self._notified.clear()
        taken, self.reasons = frozenset(self.reasons), set()
        return taken


class FileWatch:
    """inotify on directories, which may be created later."""

    def __init__(self, trigger: Trigger, names: Mapping[Path, frozenset[str]], *, retry: float = 5.0) -> None:
        """`names`: directory -> file names of interest in it; an empty set means all names."""
        self._trigger = trigger
        self._names = names
        self._retry = retry
        self._watched: dict[int, Path] = {}

    async def run(self) -> None:
        """Notifies until cancelled."""
        inotify = await self._instance()
        loop = asyncio.get_running_loop()
        loop.add_reader(inotify.fileno(), self._on_readable, inotify)
        try:
            while True:
                for directory in self._missing():
                    self._watch(inotify, directory)
                await asyncio.sleep(self._retry)
        finally:
            loop.remove_reader(inotify.fileno())
            inotify.close()

    async def _instance(self) -> Any:
        """An inotify instance. By default a user may have 128, and other daemons of the node may have taken all."""
        problem = ""
        while True:
            try:
                return INotify(nonblocking=True)
            except OSError as exc:
                if str(exc) != problem:
                    problem = str(exc)
                    log.warning("Cannot watch files, changes are found by the interval only", extra=kv(why=exc))
            await asyncio.sleep(self._retry)

    def _missing(self) -> list[Path]:
        watched = set(self._watched.values())
        return [directory for directory in self._names if directory not in watched]

    def _watch(self, inotify: Any, directory: Path) -> None:
        # A missing directory is tried again; until then, timed syncs find its changes.
        with contextlib.suppress(OSError):
            self._watched[inotify.add_watch(str(directory), _CHANGES | flags.DELETE_SELF | flags.MOVE_SELF)] = directory
            self._trigger.notify(f"watching {directory}")

    def _on_readable(self, inotify: Any) -> None:
        for event in inotify.read(timeout=0):
            directory = self._watched.get(event.wd)
            if event.mask & flags.Q_OVERFLOW:
                self._trigger.notify("inotify overflow")
            elif directory is None:
                continue
            elif event.mask & _GONE:
                del self._watched[event.wd]
                self._trigger.notify(f"{directory} is gone")
            elif event.name in self._names[directory]:
                self._trigger.notify(event.name)
            elif not self._names[directory]:
                self._trigger.notify(directory.name)


@functools.cache
def libudev() -> Any:
    """The library, loaded once. Raises ImportError. pyudev finds it by a program (ldconfig), which a confined exporter
    cannot start."""
    import pyudev

    return pyudev.Context()


class Uevents:
    """Kernel uevents of PCI functions, CPUs and memory blocks. A pod with its own network namespace receives the
    kernel's multicast, not udevd's. Without libudev (distroless images) the machine is scanned at its interval only."""

    SUBSYSTEMS = ("pci", "cpu", "memory", "node")

    def __init__(self, trigger: Trigger) -> None:
        self._trigger = trigger

    async def run(self) -> None:
        """Notifies until cancelled."""
        with self._monitor() as monitor:
            if monitor is None:
                await asyncio.Event().wait()
            loop = asyncio.get_running_loop()
            loop.add_reader(monitor.fileno(), self._on_readable, monitor)
            try:
                await asyncio.Event().wait()
            finally:
                loop.remove_reader(monitor.fileno())

    @contextlib.contextmanager
    def _monitor(self) -> Iterator[Any]:
        try:
            import pyudev

            monitor = pyudev.Monitor.from_netlink(libudev(), source="kernel")
            for subsystem in self.SUBSYSTEMS:
                monitor.filter_by(subsystem)
            monitor.start()
        except (ImportError, OSError) as exc:
            log.info("No kernel uevents, hardware is read at its interval only", extra=kv(why=exc))
            yield None
            return
        yield monitor

    def _on_readable(self, monitor: Any) -> None:
        try:
            while (device := monitor.poll(timeout=0)) is not None:
                self._trigger.notify(f"{MACHINE}: {device.action} {device.sys_name}")
        except OSError:
            # The socket overflowed, such as by hot-plugged memory. pyudev leaves the error pending, and the socket is
            # readable without data until a read clears the error.
            with contextlib.suppress(OSError):
                os.read(monitor.fileno(), 1)
            self._trigger.notify(f"{MACHINE}: overflow")


# Events with this prefix make the next sync scan the machine.
MACHINE = "uevent"


def on_sighup(trigger: Trigger) -> None:
    """SIGHUP: read everything now, as for any daemon."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, trigger.notify, f"{MACHINE}: SIGHUP")
