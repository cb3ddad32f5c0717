"""The processes of a lab: detached, found again by a link in the checkout, ended by their ids whatever happens.

Each is written down as soon as it is started, so that a command that fails or is interrupted half-way leaves nothing
behind that `down` does not find.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from images.application import REPOSITORY
from lab.api import LabError, wait
from sandbox import kept

LINK: Final = REPOSITORY / ".lab"
LOGS: Final = REPOSITORY / "dist/lab-logs"
_PLAN: Final = "lab.json"
_STARTED_S: Final = 5.0


class Plan(msgspec.Struct, frozen=True):
    """Ports of loopback, and the kubelets' by the name of their machine (or the machine's file)."""

    api: int
    extender: int
    explaining: int
    metrics: int
    kubelets: dict[str, int]


class Processes:
    """`directory` holds all that they write, and is in the arguments of each."""

    def __init__(self, directory: Path, link: Path = LINK) -> None:
        self.directory = directory
        self._link = link
        self._ids = kept.running(link)

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Starts a process in its own session, so that ^C in a terminal reaches only the command."""
        with (self.directory / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._ids[name] = child.pid
        kept.keep(self.directory, self._ids, self._link)
        # For an instant a process has no arguments yet, and would not be known for what it is.
        deadline = time.monotonic() + _STARTED_S
        while self.has_ended(name) and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)

    def check(self) -> None:
        """Raises LabError with the end of the log of what has ended."""
        there = kept.running(self._link)
        for name in self._ids:
            if name not in there:
                raise LabError(f"{name} has ended: {self.tail(name)}")

    def has_ended(self, name: str) -> bool:
        """Returns whether the process has ended by itself; it may be started again then."""
        return name not in kept.running(self._link)

    def stop(self, name: str) -> None:
        """Kills a process, and waits for its end. `check` does not expect it any more, until it is started again."""
        if (number := kept.running(self._link).get(name)) is not None:
            os.kill(number, signal.SIGKILL)
        wait(lambda: self.has_ended(name), _STARTED_S, f"{name} ends", 0.05)
        self._ids.pop(name, None)
        kept.keep(self.directory, self._ids, self._link)

    def tail(self, name: str) -> str:
        """Returns the end of the process's log."""
        log = self.directory / f"{name}.log"
        return log.read_text(errors="replace")[-1200:] if log.exists() else ""


def new() -> Path:
    """Creates the directory of a lab. Raises LabError if a lab is running."""
    if there := kept.running(LINK):
        raise LabError(f"a lab is running already ({', '.join(there)}); stop it with make lab ARGS=down")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topowise-lab"
    cache.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=cache))
    kept.keep(directory, {}, LINK)
    return directory


def write(directory: Path, plan: Plan) -> None:
    (directory / _PLAN).write_bytes(msgspec.json.encode(plan))


def plan() -> tuple[Path, Plan]:
    """Returns the plan of the running lab. Raises LabError."""
    directory = LINK.resolve()
    try:
        return directory, msgspec.json.decode((directory / _PLAN).read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError):
        raise LabError("no lab is running; start a lab with make lab ARGS=up") from None


def end() -> int:
    """Ends all of it; how many processes there were. Their logs stay in dist/lab-logs, until the next end."""
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    for log in LINK.resolve().glob("*.log"):
        shutil.copy(log, LOGS)
    return kept.stop(LINK)
