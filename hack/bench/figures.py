"""Measured figures, and their table."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import msgspec

from bench.targets import TARGETS
from sandbox.tables import columns


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measured number. `on_wall`: a time on the wall, which grows with the load of the machine."""

    name: str
    value: float
    unit: str
    on_wall: bool = False

    @property
    def target(self) -> float | None:
        """The upper limit, None for a figure without a target."""
        return TARGETS.get(self.name)

    @property
    def is_missed(self) -> bool:
        """Whether the figure exceeds its target; False without a target."""
        return self.target is not None and self.value > self.target


def percentile(samples: Sequence[float], percent: int) -> float:
    """Returns the nearest-rank percentile."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]


def spread(name: str, samples: Sequence[float], unit: str) -> list[Figure]:
    """Returns the p50 and the p99 of times on the wall."""
    return [
        Figure(f"{name}, p50", round(statistics.median(samples), 3), unit, on_wall=True),
        Figure(f"{name}, p99", round(percentile(samples, 99), 3), unit, on_wall=True),
    ]


def say(text: str) -> None:
    """Prints progress."""
    print(f"  {text}", file=sys.stderr, flush=True)


def table(figures: Sequence[Figure]) -> str:
    """Returns a row per figure, with its target."""
    rows = []
    for figure in figures:
        target = "" if figure.target is None else f"<= {figure.target:g}"
        verdict = "" if figure.target is None else "MISSED" if figure.is_missed else "ok"
        rows.append([figure.name, f"{figure.value:g} {figure.unit}", target, verdict])
    return columns(["FIGURE", "VALUE", "TARGET", ""], rows)
