"""Compares a run with an earlier run, and ignores differences that two runs of the same code show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from bench.figures import Figure
from bench.results import PartResults, Results
from sandbox.tables import columns

Verdict = Literal["", "better", "WORSE"]

# Observed ratios between two runs of the same code on a shared machine: CPU time, and time on the wall.
_NOISE_OF_CPU: Final = 1.3
_NOISE_ON_WALL: Final = 1.8
_NOISE_OF_MEMORY: Final = 1.08
_NOISE_OF_REST: Final = 1.2
# The resolution of a measurement, by unit.
_LEAST: Final = {"ms": 0.05, "us": 5.0, "s": 0.1, "% of a core": 1.0, "%": 1.0}
_TIMES: Final = ("ms", "us", "s", "% of a core")
# Units in which more is better.
_RATES: Final = ("pods/s", "pods")


def verdict(before: Figure, now: Figure) -> Verdict:
    """Returns whether a figure has changed by more than noise."""
    least = _LEAST.get(now.unit, 0.0)
    old, new = max(before.value, least), max(now.value, least)
    if now.unit in _RATES:
        old, new = new, old
    noise = _noise(now)
    if new > old * noise:
        return "WORSE"
    return "better" if old > new * noise else ""


def table(before: Results, now: Results) -> str:
    """Returns a table of the changed figures, and the names of figures that are missing in either run."""
    pairs = list(_pairs(before, now))
    rows = [
        [part, new.name, f"{old.value:g}", f"{new.value:g} {new.unit}", _ratio(old, new), change]
        for part, old, new in pairs
        if (change := verdict(old, new))
    ]
    lines = [f"against the run of {before.day}: {len(pairs)} figures compared, {len(rows)} differ beyond noise"]
    if before.machine.cpu != now.machine.cpu or before.machine.python != now.machine.python:
        lines.append(f"NOT THE SAME MACHINE: {before.machine.cpu}, Python {before.machine.python}")
    if now.machine.load > now.machine.cpus / 2:
        lines.append(f"NOT A QUIET MACHINE: load average {now.machine.load:g}")
    lines += [f"only in one of the runs: {part}: {name}" for part, name in _unpaired(before, now)]
    return "\n".join([*lines, *([columns(["PART", "FIGURE", "BEFORE", "NOW", "RATIO", ""], rows)] if rows else [])])


def _ratio(old: Figure, new: Figure) -> str:
    return f"{new.value / old.value:.2f}" if old.value else ""


def _noise(figure: Figure) -> float:
    if figure.unit == "MiB":
        return _NOISE_OF_MEMORY
    if figure.unit not in _TIMES:
        return _NOISE_OF_REST
    return _NOISE_ON_WALL if figure.on_wall else _NOISE_OF_CPU


def _by_name(part: PartResults) -> dict[str, Figure]:
    return {figure.name: figure for figure in part.figures}


def _pairs(before: Results, now: Results) -> Iterator[tuple[str, Figure, Figure]]:
    for part in now.parts.keys() & before.parts.keys():
        old, new = _by_name(before.parts[part]), _by_name(now.parts[part])
        for name in new:
            if name in old:
                yield part, old[name], new[name]


def _unpaired(before: Results, now: Results) -> Iterator[tuple[str, str]]:
    for part in sorted(now.parts.keys() & before.parts.keys()):
        old, new = _by_name(before.parts[part]), _by_name(now.parts[part])
        for name in sorted(old.keys() ^ new.keys()):
            yield part, name
