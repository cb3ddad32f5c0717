"""Processes of a lab: recorded as soon as they start, and ended by any process that finds the link."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.running import Processes
from sandbox import kept

WAITS = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_started_process_is_recorded_at_once_and_ends_with_all(tmp_path: Path) -> None:
    """A process that had no arguments yet when it was looked for was never ended."""
    link, directory = tmp_path / "link", tmp_path / "run"
    directory.mkdir()
    for number in range(8):
        Processes(directory, link).start(f"one-{number}", [*WAITS, str(directory)])
    there = kept.running(link)
    assert len(there) == 8
    assert kept.stop(link) == 8
    for number in there.values():
        os.waitpid(number, 0)
    assert not directory.exists()


def test_a_process_that_was_stopped_is_not_missed(tmp_path: Path) -> None:
    link, directory = tmp_path / "link", tmp_path / "run"
    directory.mkdir()
    processes = Processes(directory, link)
    for name in ("stays", "goes"):
        processes.start(name, [*WAITS, str(directory)])
    number = kept.running(link)["goes"]
    # The kernel keeps a child that nobody waits for.
    threading.Thread(target=os.waitpid, args=(number, 0)).start()
    processes.stop("goes")
    processes.check()
    Processes(directory, link).check()
    assert list(kept.running(link)) == ["stays"]
    kept.stop(link)


def test_who_has_ended_is_named_with_its_last_words(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    processes = Processes(directory, tmp_path / "link")
    processes.start("brief", ["sh", "-c", f"echo no room in {directory}"])
    subprocess.run(["sleep", "0.2"], check=True)
    assert processes.has_ended("brief")
    with pytest.raises(LabError, match="brief has ended: no room in"):
        processes.check()
