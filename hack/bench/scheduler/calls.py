"""The figures of a run of calls."""

from __future__ import annotations

import statistics

from bench.figures import Figure, spread
from bench.scheduler.asking import Times
from bench.scheduler.loopback import say


def calls(title: str, times: Times) -> list[Figure]:
    """Returns times on the wall and CPU times of the service."""
    filter_cpu, prioritize_cpu = map(statistics.median, (times.filter_cpu, times.prioritize_cpu))
    medians = statistics.median(times.filter), statistics.median(times.prioritize), filter_cpu, prioritize_cpu
    say(title + ": filter {:.2f}, prioritize {:.2f} ms; of CPU {:.2f} and {:.2f}".format(*medians))
    return [
        *spread(f"{title}: filter", times.filter, "ms"),
        Figure(f"{title}: filter, CPU of the service, p50", round(filter_cpu, 3), "ms"),
        *spread(f"{title}: prioritize", times.prioritize, "ms"),
        Figure(f"{title}: prioritize, CPU of the service, p50", round(prioritize_cpu, 3), "ms"),
        Figure(f"{title}: CPU of the service a pod", round(times.cpu, 2), "ms"),
    ]


def under_events(title: str, times: Times) -> list[Figure]:
    """Returns times on the wall only: the CPU time of a call cannot be separated from that of the events."""
    medians = statistics.median(times.filter), statistics.median(times.prioritize)
    say(title + ": filter {:.2f}, prioritize {:.2f} ms".format(*medians))
    return [
        *spread(f"{title}: filter", times.filter, "ms"),
        *spread(f"{title}: prioritize", times.prioritize, "ms"),
    ]
