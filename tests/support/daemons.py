"""An API server with the CRD, our client of it, and daemons as real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import forking
from sandbox import simulated_time
from sandbox.apiserver import ApiServer
from sandbox.apiserver.levers import Delay
from topowise.kube.api import Api
from topowise.kube.credentials import Credentials
from topowise.runtime import clock

CRD = Path(__file__).parents[2] / "charts/topowise/crds/noderesourcetopologies.yaml"
# Seconds between the effect of a request and its answer, as with a busy server. A test must not depend on their order:
# `LATE_ANSWERS=0.2 pytest tests/integration` checks that (except test_lease.py, whose lease times are shorter).
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.02, 0.25
LATE = float(os.environ.get("LATE_ANSWERS", "0"))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_every=0.5) as started:
        started.install_crds(CRD)
        if LATE:
            started.levers.pull(Delay(LATE, handled=True))
        yield started


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    async with Api(plain(server), "test", timeout=2) as client:
        yield client


def plain(server: ApiServer) -> Credentials:
    """Credentials for plain HTTP without a user."""

    async def nobody(renew: bool) -> str:
        return ""

    return Credentials(server.url, None, nobody)


async def assert_eventually(check: Callable[[], Any], *, within: float = 30.0) -> None:
    """Waits until a condition (or coroutine function) holds; fails with its last value otherwise."""
    deadline, pause = clock.monotonic() + within, _FIRST_PAUSE_S
    while True:
        value = check()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return
        assert clock.monotonic() < deadline, f"still {value!r} after {within}s"
        await asyncio.sleep(pause)
        pause = min(_MOST_PAUSE_S, 1.25 * pause)


Process = asyncio.subprocess.Process | forking.Process


class Daemon:
    """A console script as a process; its log is what it wrote to stderr."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def lines(self, part: str) -> list[str]:
        return [line for line in self.log.splitlines() if part in line]

    async def stop(self) -> int:
        """SIGTERM and the exit status; SIGKILL and TimeoutError if it takes no notice."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(10):
                return await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
            raise


Start = Callable[..., Awaitable[Daemon]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts `python -m module arguments`, by fork (forking.py). `config` is written to a file and passed with
    --config; `under` is a command that runs it instead, in real time."""
    running: list[Daemon] = []
    times = contextlib.ExitStack()

    async def begin(
        module: str, *arguments: str, config: dict[str, Any] | None = None, under: Sequence[str] = ()
    ) -> Daemon:
        if config is not None:
            file = tmp_path / f"{module}-{len(running)}.yaml"
            file.write_text(yaml.safe_dump(config))
            arguments = (*arguments, "--config", str(file))
        log = tmp_path / f"{module}-{len(running)}.log"
        with log.open("wb") as out:
            variables, descriptors = times.enter_context(simulated_time.process())
            environment = os.environ | variables
            if not under:
                process: Process = forking.template().start(module, arguments, out.fileno(), environment, descriptors)
            else:
                process = await asyncio.create_subprocess_exec(
                    *under, sys.executable, "-m", module, *arguments, stdout=out, stderr=out
                )
        daemon = Daemon(process, log)
        running.append(daemon)
        return daemon

    yield begin
    # Asked, not killed: whatever a test did to a daemon, it still ends when it is told to.
    with times:
        await asyncio.gather(*(daemon.stop() for daemon in running))
