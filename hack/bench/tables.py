"""What was found, for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from bench import figures
from bench.results import ChurnRow, Filled, Found, Machine, OfferedRow, Point, Results, Row, Steady, SteadyRow
from sandbox.tables import columns


def whole(results: Results) -> str:
    """All tables."""
    return "\n\n".join([machine(results.machine), *(_part(name, found) for name, found in results.parts.items())])


def machine(one: Machine) -> str:
    """In a line."""
    return (
        f"{one.cpu}, {one.cpus} CPUs, {one.memory_gib:g} GiB, {one.system}, Python {one.python}, numpy {one.numpy},"
        f" load average {one.load:g} at the start"
    )


def median(row: Row, of: Callable[[Filled], float]) -> float:
    """Of a row's seeds."""
    return statistics.median(map(of, row.found))


def mean(row: SteadyRow, of: Callable[[Steady], float]) -> float:
    """Of a row's seeds."""
    return statistics.mean(map(of, row.found))


def of_bound(row: Row) -> list[float]:
    """Per seed, how many percent of the upper bound ran before the first refusal."""
    return [100 * one.first / most for one, most in zip(row.found, row.bounds, strict=True)]


def _part(name: str, found: Found) -> str:
    parts = [f"{name} ({found.seconds:.0f} s, {found.cpu_seconds:.0f} s of CPU)"]
    if found.figures:
        parts.append(figures.table(found.figures))
    if found.growth:
        parts.append(_growth(found.growth))
    if found.density:
        parts.append(_density(found.density))
    if found.offered:
        parts.append(_offered(found.offered))
    if found.steady:
        parts.append(_steady(found.steady))
    if found.churn:
        parts.append(_churn(found.churn))
    return "\n\n".join(parts)


def _growth(points: Sequence[Point]) -> str:
    rows = [
        [
            str(one.zones),
            f"{one.nodes:,}",
            f"{one.cold_ms:.3f} ms",
            f"{one.changed_ms:.3f} ms",
            f"{one.scored_ms:.3f} ms",
            f"{one.loop_ms:,.0f} ms",
            f"{one.loop_ms / one.cold_ms:.0f}",
        ]
        for one in points
    ]
    return columns(
        ["NUMA NODES", "NODES", "COLD", "10 CHANGED", "SCORED", "LOOP OVER THE MODEL", "TIMES AS LONG"], rows
    )


def _density(found: Iterable[Row]) -> str:
    parts = []
    for (mix, policy, scope, zones), group in groupby(found, lambda one: (one.mix, one.policy, one.scope, one.zones)):
        listed = list(group)
        rows = [
            [
                one.scheduler,
                spread([filled.first for filled in one.found]),
                f"{statistics.median(of_bound(one)):.0f} %",
                spread([filled.running for filled in one.found]),
                f"{100 * median(one, lambda filled: filled.cpus):.0f} %",
                f"{100 * median(one, lambda filled: filled.devices):.0f} %",
                spread([filled.refused for filled in one.found]),
                f"{median(one, lambda filled: filled.zones):.2f}",
            ]
            for one in listed
        ]
        heads = [
            "SCHEDULER",
            "UNTIL ONE WAITS",
            "OF BOUND",
            "RUNNING",
            "CPUS",
            "DEVICES",
            "REFUSED",
            "NUMA NODES A POD",
        ]
        title = f"{mix}, {policy}, {scope} scope, {zones} NUMA nodes a machine"
        parts.append(f"{title}; bound {spread(listed[0].bounds)}\n" + columns(heads, rows))
    return "\n\n".join(parts)


def _offered(found: Iterable[OfferedRow]) -> str:
    parts = []
    for (mix, policy, scope, zones), group in groupby(found, lambda one: (one.mix, one.policy, one.scope, one.zones)):
        listed = list(group)
        rows = [
            [
                one.scheduler,
                spread([offered.placed for offered in one.found]),
                spread_percents([offered.cpus for offered in one.found]),
                spread_percents([offered.devices for offered in one.found]),
            ]
            for one in listed
        ]
        title = f"{mix}, {policy}, {scope} scope, {zones} NUMA nodes a machine, offered the same pods"
        parts.append(
            f"{title}: {spread(listed[0].bounds)}\n" + columns(["SCHEDULER", "PLACED", "CPUS", "DEVICES"], rows)
        )
    return "\n\n".join(parts)


def _steady(found: Iterable[SteadyRow]) -> str:
    parts = []
    heads = [
        "SCHEDULER",
        "LARGE PODS PLACED AT ONCE",
        "ALL PODS",
        "LARGE PODS WAIT",
        "ALL PODS",
        "CPUS",
        "DEVICES",
        "REFUSED",
        "MOVED",
    ]
    for (mix, policy, scope, zones), group in groupby(found, lambda one: (one.mix, one.policy, one.scope, one.zones)):
        rows = [
            [
                one.scheduler,
                _shares(one, lambda kept: kept.large_at_once),
                _shares(one, lambda kept: kept.at_once),
                _shares(one, lambda kept: kept.large_wait),
                _shares(one, lambda kept: kept.wait),
                _shares(one, lambda kept: kept.cpus),
                _shares(one, lambda kept: kept.devices),
                spread([kept.refused for kept in one.found]),
                _shares(one, lambda kept: kept.moved),
            ]
            for one in group
        ]
        title = f"{mix}, {policy}, {scope} scope, {zones} NUMA nodes a machine, kept busy"
        parts.append(f"{title}; waits in percent of a pod's mean running time\n" + columns(heads, rows))
    return "\n\n".join(parts)


def _churn(found: Sequence[ChurnRow]) -> str:
    heads = [
        "SCHEDULER",
        "JOBS",
        "MACHINES JOINED",
        "REFUSED",
        "MOST OF ONE JOB",
        "GPUS OF BOUND",
        "GPUS IN USE",
        "MEAN WAIT",
        "8 GPUS WAIT",
        "P95",
        "8 GPUS AT ONCE",
    ]
    rows = [
        [
            one.scheduler,
            spread([day.jobs for day in one.found]),
            spread([day.joined for day in one.found]),
            spread([day.refused for day in one.found]),
            spread([day.most_refused for day in one.found]),
            spread_percents([day.of_bound for day in one.found]),
            spread_percents([day.in_use for day in one.found]),
            f"{spread([day.wait for day in one.found])} min",
            f"{spread([day.large_wait for day in one.found])} min",
            f"{spread([day.large_wait_p95 for day in one.found])} min",
            spread_percents([day.large_at_once for day in one.found]),
        ]
        for one in found
    ]
    return f"p5, {found[0].machines} machines, {found[0].hours:g} hours\n" + columns(heads, rows)


def _shares(row: SteadyRow, of: Callable[[Steady], float]) -> str:
    return spread_percents([of(one) for one in row.found])


def spread_percents(shares: Sequence[float]) -> str:
    """Mean, and range."""
    return f"{100 * statistics.mean(shares):.1f} % ({100 * min(shares):.1f}-{100 * max(shares):.1f})"


def spread(values: Sequence[float]) -> str:
    """Median, and range."""
    low, high = min(values), max(values)
    middle = f"{statistics.median(values):g}"
    return middle if low == high else f"{middle} ({low:g}-{high:g})"
