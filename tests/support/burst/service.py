"""The scheduler service as a process that can be killed and comes back on the same ports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from scheduler_process import Listener


def bucket(metrics: Mapping[str, float], histogram: str, share: float) -> float:
    """Returns the upper bound of the bucket with this share of the samples, 0 without samples. `histogram` is the name
    with its labels, "extender_request_duration_seconds{verb=\"filter\"}"."""
    name, _, labels = histogram.rstrip("}").partition("{")
    prefix = f"{name}_bucket{{"
    counts = {}
    for key, count in metrics.items():
        pairs = key.removeprefix(prefix).rstrip("}").split(",") if key.startswith(prefix) else []
        bounds = [pair for pair in pairs if pair.startswith("le=")]
        if bounds and {*pairs} - {*bounds} == {*filter(None, labels.split(","))}:
            counts[float(bounds[0][4:-1])] = count
    most = max(counts.values(), default=0.0)
    return min((bound for bound, count in counts.items() if most and count >= share * most), default=0.0)


class Process:
    """`python -m module`, with a log file, and variables beside ours."""

    def __init__(self, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._environment = environment or {}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, module: str, *arguments: str) -> None:
        with self.log.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *arguments,
                stdout=out,
                stderr=out,
                env={**os.environ, **self._environment},
            )

    @property
    def pid(self) -> int:
        """Its id, 0 while it does not run."""
        return 0 if self._process is None else self._process.pid

    def check(self) -> None:
        """Fails with the end of the log if the process is gone."""
        if self._process is not None and self._process.returncode is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise AssertionError(f"{self.log.stem} ended with status {self._process.returncode}:\n{tail}")

    async def kill(self) -> None:
        """SIGKILL, by its id."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class Service(Listener):
    """A replica of the service."""

    def __init__(
        self,
        name: str,
        kubeconfig: Path,
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(kubeconfig, **settings)
        self._process = Process(directory / f"{name}.log", environment)
        self._file = directory / f"{name}.yaml"
        self._file.write_text(yaml.safe_dump(self.config))

    async def start(self) -> None:
        """Returns when it is ready."""
        await self._process.start("topowise_scheduler", "serve", "--config", str(self._file))
        async with asyncio.timeout(180):
            while not await self.is_ready():
                self.check()
                await asyncio.sleep(0.05)

    @property
    def pid(self) -> int:
        """Its id, 0 while it does not run."""
        return self._process.pid

    def check(self) -> None:
        """Fails if the process is gone."""
        self._process.check()

    async def kill(self) -> None:
        """SIGKILL: no goodbye to anybody."""
        await self._process.kill()

    async def explain(self, session: aiohttp.ClientSession, pod: str, node: str) -> str:
        """What the ledger believes of a pod, "namespace/name", on a node."""
        url = f"{self.pages}/explain"
        try:
            async with session.get(url, params={"pod": pod, "node": node}) as response:
                return await response.text()
        except aiohttp.ClientError as exc:
            return f"no explanation: {exc}"
