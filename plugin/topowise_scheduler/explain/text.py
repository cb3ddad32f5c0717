"""Phrases that the explanations, the pictures, the dashboard and kubectl share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from topowise import quantity
from topowise.pods import HUGEPAGES


def plural(count: int, noun: str) -> str:
    """1 CPU, 2 CPUs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_of(names: Iterable[str], most: int = 3) -> str:
    """ "a, b, c and 7 more"."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def enumerated(items: Sequence[object]) -> str:
    """1, 2 and 3."""
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def most_frequent_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The counts in descending order; equal counts by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def with_unit(resource: str, amount: int) -> str:
    """An amount with its unit: cores, binary bytes, or a number of devices."""
    if resource == "memory" or resource.startswith(HUGEPAGES):
        return quantity.human_bytes(amount)
    return str(amount)


def rounded_up(seconds: float) -> str:
    """A remaining time, rounded up to 10 seconds below a minute, else to minutes: "20s", "2m"."""
    return f"{math.ceil(seconds / 10) * 10}s" if seconds <= 60 else f"{math.ceil(seconds / 60)}m"


def rough_duration(seconds: float) -> str:
    """A duration of which only the order of magnitude is known."""
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}" if seconds < 1e4 * size else f"more than 10,000 {name}"
    return f"{seconds:.0f} seconds" if seconds >= 1 else "less than a second"
