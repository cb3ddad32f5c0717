"""Shows where a hanging test stands, also in the processes that it has started.

faulthandler (faulthandler_timeout in pyproject.toml) shows the threads of the test's process, and ends it. A test of
daemons mostly waits for one of them, so the stacks of all descendants are shown before that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import psutil

_LOOK_S: Final = 5.0
_MOST_S: Final = 20.0


class HangReport:
    """Watches the tests of this process from a thread; `after` is the seconds of a test until it is reported once."""

    def __init__(self, after: float, report: int) -> None:
        """`report`: the descriptor to write to, which pytest does not capture."""
        self._after, self._report = after, report
        self._test, self._since = "", 0.0
        threading.Thread(target=self._watch, name="hang-report", daemon=True).start()

    def began(self, test: str) -> None:
        self._test, self._since = test, time.monotonic()

    def ended(self) -> None:
        self._test = ""

    def _watch(self) -> None:
        reported = ""
        while True:
            time.sleep(min(_LOOK_S, self._after / 4))
            test = self._test
            if test and test != reported and time.monotonic() - self._since >= self._after:
                reported = test
                for part in (f"\n{test} has run for {self._after:.0f} s; what it waits for:\n", *stacks()):
                    os.write(self._report, part.encode())


def stacks() -> list[str]:
    """Returns what each descendant of this process does: its stacks if it is Python, else its state."""
    return [_shown(process) for process in psutil.Process().children(recursive=True)]


def _shown(process: psutil.Process) -> str:
    try:
        head = f"--- {process.pid} {process.status()} {' '.join(process.cmdline())[:200]}\n"
    except psutil.Error as exc:
        return f"--- {process.pid}: {exc}\n"
    dump = subprocess.run(
        (Path(sys.executable).with_name("py-spy"), "dump", "--pid", str(process.pid)),
        capture_output=True, text=True, timeout=_MOST_S, check=False,
    )  # fmt: skip
    return head + (dump.stdout or dump.stderr.splitlines()[0] + "\n")
