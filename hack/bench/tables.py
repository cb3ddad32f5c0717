"""The results of a run as tables for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from bench import figures
from bench.results import DensityRow, Filled, Machine, PartResults, Point, Results
from sandbox.tables import columns


def whole(results: Results) -> str:
    """Returns the tables of all parts."""
    return "\n\n".join([machine(results.machine), *(_part(name, part) for name, part in results.parts.items())])


def machine(described: Machine) -> str:
    """Returns the description of a machine, on a line."""
    return (
        f"{described.cpu}, {described.cpus} CPUs, {described.memory_gib:g} GiB, {described.system},"
        f" Python {described.python}, numpy {described.numpy}, load average {described.load:g} at the start"
    )


def median(row: DensityRow, of: Callable[[Filled], float]) -> float:
    """Returns the median over a row's seeds."""
    return statistics.median(map(of, row.filled))


def of_bound(row: DensityRow) -> list[float]:
    """Returns, per seed, `first` in percent of the upper bound."""
    return [100 * filled.first / bound for filled, bound in zip(row.filled, row.bounds, strict=True)]


def _part(name: str, part: PartResults) -> str:
    tables = [f"{name} ({part.seconds:.0f} s, {part.cpu_seconds:.0f} s of CPU)"]
    if part.figures:
        tables.append(figures.table(part.figures))
    if part.growth:
        tables.append(_growth(part.growth))
    if part.density:
        tables.append(_density(part.density))
    return "\n\n".join(tables)


def _growth(points: Sequence[Point]) -> str:
    rows = [
        [
            str(point.zones),
            f"{point.nodes:,}",
            f"{point.cold_ms:.3f} ms",
            f"{point.changed_ms:.3f} ms",
            f"{point.scored_ms:.3f} ms",
            f"{point.loop_ms:,.0f} ms",
            f"{point.loop_ms / point.cold_ms:.0f}",
        ]
        for point in points
    ]
    return columns(
        ["NUMA NODES", "NODES", "COLD", "10 CHANGED", "SCORED", "LOOP OVER THE MODEL", "TIMES AS LONG"], rows
    )


def _density(density: Iterable[DensityRow]) -> str:
    tables = []
    heads = ["SCHEDULER", "UNTIL A POD WAITS", "OF BOUND", "RUNNING", "CPUS", "DEVICES", "REFUSED", "NUMA NODES A POD"]
    for (mix, policy, scope, zones), group in groupby(density, lambda row: (row.mix, row.policy, row.scope, row.zones)):
        rows = list(group)
        lines = [
            [
                row.scheduler,
                spread([filled.first for filled in row.filled]),
                f"{statistics.median(of_bound(row)):.0f} %",
                spread([filled.running for filled in row.filled]),
                f"{100 * median(row, lambda filled: filled.cpus):.0f} %",
                f"{100 * median(row, lambda filled: filled.devices):.0f} %",
                spread([filled.refused for filled in row.filled]),
                f"{median(row, lambda filled: filled.zones):.2f}",
            ]
            for row in rows
        ]
        title = f"{mix}, {policy}, {scope} scope, {zones} NUMA nodes a machine"
        tables.append(f"{title}; bound {spread(rows[0].bounds)}\n" + columns(heads, lines))
    return "\n\n".join(tables)


def spread(values: Sequence[float]) -> str:
    """Returns the median and the range."""
    low, high = min(values), max(values)
    middle = f"{statistics.median(values):g}"
    return middle if low == high else f"{middle} ({low:g}-{high:g})"
