"""What has become better or worse since another run, beyond what two runs of the same code differ by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from bench.figures import Figure
from bench.results import Found, Results
from sandbox.tables import columns

Verdict = Literal["", "better", "WORSE"]

# How much more the same code has been seen to take from run to run: CPU time on a shared machine, and time on the wall.
_NOISE_OF_CPU: Final = 1.3
_NOISE_ON_WALL: Final = 1.8
_NOISE_OF_MEMORY: Final = 1.08
_NOISE_OF_REST: Final = 1.2
# Smaller than this nothing is measured, by unit.
_LEAST: Final = {"ms": 0.05, "us": 5.0, "s": 0.1, "% of a core": 1.0, "%": 1.0}
_TIMES: Final = ("ms", "us", "s", "% of a core")
# Of these there should be many.
_RATES: Final = ("times", "events/s", "pods/s", "binds/s", "pods")


def verdict(before: Figure, now: Figure) -> Verdict:
    """Whether a figure has changed by more than noise."""
    least = _LEAST.get(now.unit, 0.0)
    old, new = max(before.value, least), max(now.value, least)
    if now.unit in _RATES:
        old, new = new, old
    noise = _noise(now)
    if new > old * noise:
        return "WORSE"
    return "better" if old > new * noise else ""


def table(before: Results, now: Results) -> str:
    """A row for each figure that both runs have and that has changed; which figures only one of them has."""
    pairs = list(_pairs(before, now))
    rows = [
        [part, one.name, f"{old.value:g}", f"{one.value:g} {one.unit}", f"{one.value / old.value:.2f}", found]
        for part, old, one in pairs
        if old.value and (found := verdict(old, one))
    ]
    rows += [
        [part, one.name, f"{old.value:g}", f"{one.value:g} {one.unit}", "", found]
        for part, old, one in pairs
        if not old.value and (found := verdict(old, one))
    ]
    lines = [f"against the run of {before.day}: {len(pairs)} figures compared, {len(rows)} differ beyond noise"]
    if before.machine.cpu != now.machine.cpu or before.machine.python != now.machine.python:
        lines.append(f"NOT THE SAME MACHINE: {before.machine.cpu}, Python {before.machine.python}")
    if now.machine.load > now.machine.cpus / 2:
        lines.append(f"NOT A QUIET MACHINE: load average {now.machine.load:g}")
    lines += [f"only in one of them: {part}: {name}" for part, name in _unpaired(before, now)]
    return "\n".join([*lines, *([columns(["PART", "FIGURE", "BEFORE", "NOW", "RATIO", ""], rows)] if rows else [])])


def figures(found: Found) -> dict[str, Figure]:
    """By name: the measured ones, and those of growth and density as such."""
    listed = list(found.figures)
    for point in found.growth:
        name = f"{point.nodes:,} nodes x {point.zones} zones"
        listed += [
            Figure(f"{name}: {what}", amount, "ms")
            for what, amount in (("cold", point.cold_ms), ("changed", point.changed_ms), ("scored", point.scored_ms))
        ]
    for row in found.density:
        name = f"{row.mix}, {row.policy}, {row.scope}, {row.zones} zones, {row.scheduler}"
        listed += [Figure(f"{name}: running, seed {at}", one.running, "pods") for at, one in enumerate(row.found)]
    return {one.name: one for one in listed}


def _noise(figure: Figure) -> float:
    if figure.unit == "MiB":
        return _NOISE_OF_MEMORY
    if figure.unit not in _TIMES:
        return _NOISE_OF_REST
    return _NOISE_ON_WALL if figure.on_wall else _NOISE_OF_CPU


def _pairs(before: Results, now: Results) -> Iterator[tuple[str, Figure, Figure]]:
    for part in now.parts.keys() & before.parts.keys():
        old, new = figures(before.parts[part]), figures(now.parts[part])
        for name in new:
            if name in old:
                yield part, old[name], new[name]


def _unpaired(before: Results, now: Results) -> Iterator[tuple[str, str]]:
    for part in sorted(now.parts.keys() & before.parts.keys()):
        old, new = figures(before.parts[part]), figures(now.parts[part])
        for name in sorted(old.keys() ^ new.keys()):
            yield part, name
