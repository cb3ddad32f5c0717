"""Figures, and a table of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from sandbox.tables import columns


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measured number. `target` is what it should not exceed, None if it is only told.

    `on_wall`: a time that grows when others keep the CPUs busy.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    on_wall: bool = False

    @property
    def is_missed(self) -> bool:
        """False too where there is no target."""
        return self.target is not None and self.value > self.target


def percentile(samples: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]


def spread(name: str, samples: Sequence[float], unit: str, p50: float | None, p99: float | None) -> list[Figure]:
    """p50 and p99 of some times on the wall."""
    return [
        Figure(f"{name}, p50", round(statistics.median(samples), 3), unit, p50, on_wall=True),
        Figure(f"{name}, p99", round(percentile(samples, 99), 3), unit, p99, on_wall=True),
    ]


def table(figures: Sequence[Figure]) -> str:
    """A row a figure, with what it was held against."""
    rows = []
    for one in figures:
        target = "" if one.target is None else f"<= {one.target:g}"
        verdict = "" if one.target is None else "MISSED" if one.is_missed else "ok"
        rows.append([one.name, f"{one.value:g} {one.unit}", target, verdict])
    return columns(["FIGURE", "VALUE", "TARGET", ""], rows)
