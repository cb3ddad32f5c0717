"""The figures of a run of calls."""

from __future__ import annotations

import statistics
from typing import Final

from bench.figures import Figure, spread
from bench.scheduler.asking import Times
from bench.scheduler.loopback import say

Targets = tuple[float | None, float | None]
"""Milliseconds of p50 and p99."""

PART_TARGETS: Final[tuple[Targets, Targets]] = ((0.5, 1.5), (0.4, 2.0))
NO_TARGETS: Final[tuple[Targets, Targets]] = ((None, None), (None, None))
WHOLE_TARGETS: Final[tuple[Targets, Targets]] = ((1.2, None), (1.0, None))


def calls(title: str, times: Times, targets: tuple[Targets, Targets]) -> list[Figure]:
    """Returns times on the wall and CPU times of the service; `targets` are for filter and prioritize."""
    filters, priorities = targets
    filter_cpu, prioritize_cpu = map(statistics.median, (times.filter_cpu, times.prioritize_cpu))
    medians = statistics.median(times.filter), statistics.median(times.prioritize), filter_cpu, prioritize_cpu
    say(title + ": filter {:.2f}, prioritize {:.2f} ms; of CPU {:.2f} and {:.2f}".format(*medians))
    return [
        *spread(f"{title}: filter", times.filter, "ms", *filters),
        Figure(f"{title}: filter, CPU of the service, p50", round(filter_cpu, 3), "ms", filters[0]),
        *spread(f"{title}: prioritize", times.prioritize, "ms", *priorities),
        Figure(f"{title}: prioritize, CPU of the service, p50", round(prioritize_cpu, 3), "ms", priorities[0]),
        Figure(f"{title}: CPU of the service a pod", round(times.cpu, 2), "ms"),
    ]


def under_events(title: str, times: Times, targets: tuple[Targets, Targets]) -> list[Figure]:
    """Returns times on the wall only: the CPU time of a call cannot be separated from that of the events."""
    medians = statistics.median(times.filter), statistics.median(times.prioritize)
    say(title + ": filter {:.2f}, prioritize {:.2f} ms".format(*medians))
    return [
        *spread(f"{title}: filter", times.filter, "ms", *targets[0]),
        *spread(f"{title}: prioritize", times.prioritize, "ms", *targets[1]),
    ]
