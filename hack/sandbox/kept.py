"""Processes that outlive the command that started them; a later command finds them by a link, and stops them.

A file in the linked directory has the process ids. The kernel may have reused an id, so a process is only signalled if
its arguments name the directory, as the arguments of every kept process do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

_IDS: Final = "processes.json"
_PATIENCE_S: Final = 10.0


def keep(directory: Path, ids: dict[str, int], link: Path) -> None:
    """Writes the process ids into the directory, and points `link` at the directory."""
    (directory / _IDS).write_bytes(msgspec.json.encode(ids))
    link.unlink(missing_ok=True)
    link.symlink_to(directory)


def running(link: Path) -> dict[str, int]:
    """Returns the running processes by name, empty if none runs."""
    try:
        directory = link.resolve()
        ids = msgspec.json.decode((directory / _IDS).read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError):
        return {}
    return {name: number for name, number in ids.items() if _is_of(number, directory)}


def stop(link: Path) -> int:
    """Ends the processes, removes their directory, and returns how many ran."""
    directory, there = link.resolve(), running(link)
    # The API server started first and ends last: other processes complain without it.
    for number in reversed(there.values()):
        _tell(number, signal.SIGTERM)
    if not _are_gone(there.values(), directory):
        for number in there.values():
            if _is_of(number, directory):
                _tell(number, signal.SIGKILL)
    if (directory / _IDS).exists():
        shutil.rmtree(directory, ignore_errors=True)
    link.unlink(missing_ok=True)
    return len(there)


def _is_of(number: int, directory: Path) -> bool:
    try:
        arguments = Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False
    return os.fsencode(directory) in arguments


def _are_gone(numbers: Iterable[int], directory: Path) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while any(_is_of(number, directory) for number in numbers):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _tell(number: int, signal_number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal_number)
