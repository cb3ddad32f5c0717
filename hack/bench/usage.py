"""CPU time and memory of processes, from /proc, and CPU time of calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of all threads, from schedstat: the clock ticks of stat are 10 ms long, too coarse here."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def memory(pid: int) -> tuple[float, float]:
    """Returns the resident memory and its peak (VmHWM), in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {key: text for key, _, text in (line.partition(":") for line in lines)}
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["VmHWM"].split()[0]) / 1024


def thread_ms(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Returns the CPU time of this thread for each call, in milliseconds."""
    times = []
    for call in calls:
        since = time.thread_time()
        call()
        times.append((time.thread_time() - since) * 1e3)
    return times
