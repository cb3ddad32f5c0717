"""What a process has used, from /proc."""

from __future__ import annotations

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
