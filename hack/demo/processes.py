"""The processes of the demo: starts and watches them, and stops them by their process ids."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path


class ProcessDiedError(Exception):
    """A process of the demo ended by itself."""


class Processes:
    """Child processes, each with a log file in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, module: str, *arguments: str) -> None:
        """Starts `python -m module` in a new session, so that a terminal's ^C reaches only the demo."""
        with (self._directory / f"{name}.log").open("wb") as log:
            self._running[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *arguments, stdout=log, stderr=log, start_new_session=True
            )

    def check(self) -> None:
        """Raises ProcessDiedError with the end of the log if a process has ended."""
        for name, process in self._running.items():
            if process.returncode is not None:
                raise ProcessDiedError(f"{name} ended with status {process.returncode}:\n{self._tail(name)}")

    def tails(self) -> str:
        """Returns the end of every log; a failed demo deletes the files."""
        return "\n".join(f"--- {name}\n{self._tail(name)}" for name in self._running)

    def _tail(self, name: str) -> str:
        return "\n".join((self._directory / f"{name}.log").read_text(errors="replace").splitlines()[-8:])

    def ids(self) -> dict[str, int]:
        """Returns the process ids by name."""
        return {name: process.pid for name, process in self._running.items()}

    async def stop(self) -> None:
        """Stops all processes in reverse order of their start; kills those that run on after five seconds in all."""
        for process in reversed(self._running.values()):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        deadline = asyncio.get_running_loop().time() + 5
        for process in self._running.values():
            try:
                async with asyncio.timeout_at(deadline):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                await process.wait()
        self._running.clear()
