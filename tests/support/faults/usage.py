"""What a process holds, from outside."""

from __future__ import annotations

from typing import NamedTuple

import psutil


class Usage(NamedTuple):
    """`rss` is bytes; `files` counts descriptors."""

    rss: int
    files: int
    threads: int


def usage(pid: int) -> Usage:
    """As it is now. Linux."""
    process = psutil.Process(pid)
    with process.oneshot():
        return Usage(process.memory_info().rss, process.num_fds(), process.num_threads())
