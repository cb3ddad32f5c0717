"""An event loop whose time passes only where everybody waits: an hour of a cluster in some seconds, the same each time.

While anything can run its clock stands still; when all wait for timers it jumps to the first of them. `run` is for code
that waits for nothing outside of its loop. `Loop` also waits for sockets, threads and processes: its clock stands still
while one of them runs, and processes that were started with `process` share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import selectors
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Final, TypeVar

import uvloop

from topowise.runtime import clock

Result = TypeVar("Result")
_Events = list[tuple[selectors.SelectorKey, int]]

_BEGINNING: Final = datetime(2026, 1, 1, tzinfo=UTC)
# A timer is due `timeout` after the time from which the loop has computed it, so a sum may miss it by a rounding.
_ROUNDING_S: Final = 1e-9
# Real seconds without an event of a socket before threads are looked at, and how many looks in a row have to find none.
_PATIENCE_S: Final = 0.0005
_LOOKS: Final = 2
# Real seconds between two looks where no timer runs: what is waited for comes from a clock that is not ours.
_OTHER_CLOCK_S: Final = 0.02
# Seconds that pass at most in a real second beside other processes.
_SPEED: Final = 50.0
# A process's cell in the shared memory: the end of its wait. The first cell is the time.
_CELL: Final = struct.Struct("d")
_CELLS: Final = 64
# The environment variable of a process that shares the clock: descriptors of the memory and the pipe, and its cell.
SHARED: Final = "TOPOWISE_SHARED_TIME"


class StuckError(Exception):
    """Everybody waits, and for nothing that will ever happen."""


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> _Events:
        ready = super().select(0)
        if not ready and timeout is None:
            raise StuckError
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine as asyncio.run does. Raises StuckError, too."""
    with asyncio.Runner(loop_factory=_Loop) as runner, shown_by(runner.get_loop().time):
        return runner.run(main)


@contextlib.contextmanager
def shown_by(source: Callable[[], float]) -> Iterator[None]:
    """The product's clock shows the seconds of `source`."""
    clock.replace(source)
    try:
        yield
    finally:
        clock.replace(time.monotonic)


def utc_now() -> datetime:
    """Returns the wall clock, which in such a loop goes with the loop's."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return clock.utc_now()
    if isinstance(loop, _Loop):
        return _BEGINNING + timedelta(seconds=loop.time())
    return clock.utc_now()


class _Memory:
    """The time, and by process the end of its wait, in memory that processes share."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _CELL.size * _CELLS)

    @classmethod
    def create(cls) -> _Memory:
        descriptor = os.memfd_create("time")
        os.truncate(descriptor, _CELL.size * _CELLS)
        return cls(descriptor)

    def read(self, cell: int = 0) -> float:
        (value,) = _CELL.unpack_from(self._memory, cell * _CELL.size)
        return float(value)

    def write(self, value: float, cell: int = 0) -> None:
        _CELL.pack_into(self._memory, cell * _CELL.size, value)

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)


class Loop(asyncio.SelectorEventLoop):
    """The loop that owns the time: it jumps to the first timer of all when nothing runs, in no thread and process."""

    def __init__(self) -> None:
        self._memory = _Memory.create()
        self._memory.write(time.monotonic())
        # By cell: the pipe that wakes the process.
        self._pipes: dict[int, int] = {}
        super().__init__(_Patient(self._memory, self._pipes))
        clock.replace(self.time)

    def time(self) -> float:
        """Returns seconds, beginning with those of `time.monotonic`."""
        return self._memory.read()

    def skip(self, seconds: float) -> None:
        """Time passes, and nothing in this process runs, as after SIGSTOP."""
        self._memory.write(self._memory.read() + seconds)

    @contextlib.contextmanager
    def process(self) -> Iterator[tuple[dict[str, str], tuple[int, int]]]:
        """Yields what a process that shares the clock is started with: variables of its environment, and descriptors
        to pass. The process ends before the context."""
        cell = next(cell for cell in range(1, _CELLS) if cell not in self._pipes)
        reading, writing = os.pipe()
        self._pipes[cell] = writing
        self._memory.write(inf, cell)
        try:
            yield {SHARED: f"{self._memory.descriptor},{reading},{cell}"}, (self._memory.descriptor, reading)
        finally:
            del self._pipes[cell]
            os.close(reading)
            os.close(writing)

    def close(self) -> None:
        """Closes the loop; its time stands still from then on."""
        if not self.is_closed():
            clock.replace(time.monotonic)
            now = self._memory.read()
            super().close()
            self._memory.close()
            self.time = lambda: now  # type: ignore[method-assign]


@contextlib.contextmanager
def process() -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """`Loop.process` of the running loop; nothing is shared if its time is not simulated."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, Loop):
        with loop.process() as shared:
            yield shared
    else:
        yield {}, ()


def skip(seconds: float) -> None:
    """Lets time pass in the running loop while nothing in this process runs, as after SIGSTOP."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    loop.skip(seconds)


class _Patient(selectors.DefaultSelector):
    def __init__(self, memory: _Memory, pipes: dict[int, int]) -> None:
        super().__init__()
        self._memory, self._pipes = memory, pipes

    def select(self, timeout: float | None = None) -> _Events:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        own = inf if timeout is None else self._memory.read() + timeout + _ROUNDING_S
        looks, patience = 0, _PATIENCE_S
        while looks < _LOOKS:
            if ready := super().select(patience):
                return ready
            if _anything_runs():
                looks, patience = 0, min(2 * patience, _OTHER_CLOCK_S)
            else:
                looks, patience = looks + 1, _PATIENCE_S
        now = min(own, *(self._memory.read(cell) for cell in self._pipes)) if self._pipes else own
        if now == inf:
            return super().select(_OTHER_CLOCK_S)
        began = self._memory.read()
        if self._pipes:
            # What waits by the machine's own clock, such as gRPC, gets some of its time.
            since = time.monotonic()
            if ready := super().select(max(0.0, now - began) / _SPEED):
                self._memory.write(min(now, began + (time.monotonic() - since) * _SPEED))
                return ready
        self._memory.write(max(now, began))
        for cell, pipe in self._pipes.items():
            if self._memory.read(cell) <= now:
                self._memory.write(inf, cell)
                os.write(pipe, b"x")
        return []


class _Sharing(selectors.DefaultSelector):
    """The selector of a process that shares the clock of another: it waits without an end, until the owner wakes it."""

    def __init__(self, memory: _Memory, pipe: int, cell: int) -> None:
        super().__init__()
        self._memory, self._pipe, self._cell = memory, pipe, cell
        os.set_blocking(pipe, False)
        self.register(pipe, selectors.EVENT_READ)

    def select(self, timeout: float | None = None) -> _Events:
        ready = self._without_pipe(super().select(0))
        if ready or (timeout is not None and timeout <= 0):
            return ready
        self._memory.write(inf if timeout is None else self._memory.read() + timeout, self._cell)
        ready = self._without_pipe(super().select(None))
        self._memory.write(inf, self._cell)
        return ready

    def _without_pipe(self, ready: _Events) -> _Events:
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe, 4096)
        return [event for event in ready if event[0].fd != self._pipe]


class SharingLoop(asyncio.SelectorEventLoop):
    """The loop of a process with `SHARED` in its environment."""

    def __init__(self) -> None:
        descriptor, pipe, cell = map(int, os.environ[SHARED].split(","))
        self._memory = _Memory(descriptor)
        super().__init__(_Sharing(self._memory, pipe, cell))
        clock.replace(self.time)

    def time(self) -> float:
        """Returns the owner's seconds."""
        return self._memory.read()


def share() -> None:
    """Lets all event loops of this process share the clock that `SHARED` names."""
    asyncio.set_event_loop_policy(_SharingPolicy())
    uvloop.new_event_loop = SharingLoop


class _SharingPolicy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = SharingLoop


def _anything_runs() -> bool:
    """Returns whether another thread of this process or of its descendants runs, or waits for a CPU or a disk."""
    # Called at every wait of a test: plain strings, as paths cost more than the reads.
    own = (os.getpid(), threading.get_native_id())
    processes = [os.getpid()]
    for process in processes:
        folder = f"/proc/{process}/task"
        with contextlib.suppress(OSError), os.scandir(folder) as threads:
            for thread in threads:
                with contextlib.suppress(OSError):
                    if (process, int(thread.name)) != own and _state(f"{thread.path}/stat") in b"RD":
                        return True
                    processes.extend(map(int, _read(f"{thread.path}/children").split()))
    return False


def _state(file: str) -> bytes:
    """Returns the state of a thread, as in ps; the name before it may have spaces and brackets."""
    return _read(file).rpartition(b")")[2].split(maxsplit=1)[0]


def _read(file: str) -> bytes:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
