"""What a process has used, from /proc, and what a call has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Of all its threads; the scheduler's own count, as clock ticks of 10 ms are too coarse."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def memory(pid: int) -> tuple[float, float]:
    """MiB resident now, and the most there ever were (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {key: text for key, _, text in (line.partition(":") for line in lines)}
    return int(found["VmRSS"].split()[0]) / 1024, int(found["VmHWM"].split()[0]) / 1024


def thread_ms(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Milliseconds of CPU of this thread for each call."""
    found = []
    for call in calls:
        since = time.thread_time()
        call()
        found.append((time.thread_time() - since) * 1e3)
    return found
