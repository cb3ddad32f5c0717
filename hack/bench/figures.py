"""Figures as a table for people and JSON for scripts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from topowise_scheduler.kubectl.columns import columns


class Figure(msgspec.Struct, frozen=True):
    """One measured number. `target` is what it should not exceed, None if it is only told."""

    name: str
    value: float
    unit: str
    target: float | None = None


def percentile(samples: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]


def spread(name: str, samples: Sequence[float], unit: str, p50: float | None, p99: float | None) -> list[Figure]:
    """p50 and p99 of some samples."""
    return [
        Figure(f"{name}, p50", round(statistics.median(samples), 3), unit, p50),
        Figure(f"{name}, p99", round(percentile(samples, 99), 3), unit, p99),
    ]


def table(figures: Sequence[Figure]) -> str:
    """A row a figure, with what it was held against."""
    rows = []
    for one in figures:
        target = "" if one.target is None else f"<= {one.target:g}"
        verdict = "" if one.target is None else "ok" if one.value <= one.target else "MISSED"
        rows.append([one.name, f"{one.value:g} {one.unit}", target, verdict])
    return columns(["FIGURE", "VALUE", "TARGET", ""], rows)


def as_json(figures: Sequence[Figure]) -> str:
    """The same for scripts."""
    return msgspec.json.encode(figures).decode()
