"""The results of a run as Markdown tables: the figures that decisions need. tables.py prints all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from bench.density import schedulers
from bench.density.mix import Mix
from bench.figures import Figure
from bench.results import DensityRow, Filled, PartResults, Point
from bench.tables import median, of_bound, spread
from sandbox.tables import markdown
from topowise_scheduler.verdicts import strategies

_DEFAULT: Final = strategies.NAMES[0]
_BESIDE: Final = (_DEFAULT, schedulers.BLIND[0])

Named = Mapping[str, Figure]


def parts(results: Mapping[str, PartResults]) -> str:
    """Returns a line per part with its duration."""
    lines = [[name, f"{part.seconds:.0f} s", f"{part.cpu_seconds:.0f} s", part.day] for name, part in results.items()]
    return markdown(["part", "took", "CPU", "measured again on"], lines)


def figures(listed: Iterable[Figure]) -> str:
    """Returns a line per figure."""
    lines = [
        [
            figure.name,
            _value(figure),
            "" if figure.target is None else f"<= {figure.target:g}",
            "" if figure.target is None else "missed" if figure.is_missed else "met",
        ]
        for figure in listed
    ]
    return markdown(["figure", "value", "target", ""], lines)


def grid(named: Named, title: str, rows: Mapping[str, str], heads: Mapping[str, str]) -> str:
    """Returns a table of figures. A figure's name is a key of `heads`, with a key of `rows` in place of "{}"."""
    lines = [[words, *(_value(named[head.format(row)]) for head in heads)] for row, words in rows.items()]
    return markdown([title, *heads.values()], lines)


def growth(points: Sequence[Point], nodes: int) -> str:
    """Returns a line per number of NUMA nodes, for a cluster of `nodes` nodes."""
    lines = [
        [
            str(point.zones),
            f"{point.cold_ms:.2f} ms",
            f"{point.changed_ms:.2f} ms",
            f"{point.scored_ms:.2f} ms",
            f"{point.loop_ms:,.0f} ms",
            f"{point.loop_ms / point.cold_ms:,.0f} times",
        ]
        for point in points
        if point.nodes == nodes
    ]
    return markdown(["NUMA nodes", "cold", "10 changed", "TightFit", "loop", "loop / cold"], lines)


def density(rows: Sequence[DensityRow], mixes: Mapping[str, Mix]) -> str:
    """Returns the default strategy beside kube-scheduler alone, for single-numa-node and scope container."""
    lines = []
    plain = [
        row for row in rows if (row.policy, row.scope) == ("single-numa-node", "container") and row.zones in (2, 8)
    ]
    for (name, zones), group in groupby(plain, lambda row: (row.mix, row.zones)):
        by_scheduler = {row.scheduler: row for row in group}
        shares = [f"{_percents(of_bound(by_scheduler[scheduler]))} %" for scheduler in _BESIDE]
        refused = spread([filled.refused for filled in by_scheduler[schedulers.BLIND[0]].filled])
        lines.append([mixes[name].title, str(zones), *shares, refused])
    return markdown(["mix", "NUMA nodes", *_BESIDE, "pods refused by kubelets with the latter"], lines)


def clusters(rows: Iterable[DensityRow]) -> list[list[DensityRow]]:
    """Returns the rows of all schedulers, grouped by kind of cluster."""
    return [list(group) for _, group in groupby(rows, lambda row: (row.mix, row.policy, row.scope, row.zones))]


def choice(kinds: Sequence[Sequence[DensityRow]]) -> str:
    """Returns a line per scheduler: its share of the bound, and on how many kinds of clusters it beats the default."""
    lines = []
    for name in dict.fromkeys(row.scheduler for rows in kinds for row in rows):
        shares = [statistics.median(of_bound(row)) for rows in kinds for row in rows if row.scheduler == name]
        wins = [_wins(kinds, name, measure) if name in strategies.NAMES[1:] else "" for measure in _MEASURES]
        lines.append([name, f"{statistics.median(shares):.0f} %", f"{min(shares):.0f} %", *wins])
    return markdown(["", "of the bound, median", "worst", *(measure.name for measure in _MEASURES)], lines)


class _Measure(NamedTuple):
    """`sign` is 1 where more is better, -1 where less is."""

    name: str
    of: Callable[[Filled], float]
    sign: int

    def matters(self, default: DensityRow) -> bool:
        """Returns whether the cluster is short of the measured resource; unused devices say nothing."""
        return self is not _DEVICES or median(default, self.of) > _SHORT


_DEVICES: Final = _Measure("more devices in use", lambda filled: filled.devices, 1)
_SHORT: Final = 0.8
_MEASURES: Final = (
    _Measure("more pods", lambda filled: filled.first, 1),
    _Measure("more CPUs in use", lambda filled: filled.cpus, 1),
    _DEVICES,
    _Measure("fewer NUMA nodes a pod", lambda filled: filled.zones, -1),
)


def _wins(kinds: Iterable[Sequence[DensityRow]], name: str, measure: _Measure) -> str:
    wins = [win for rows in kinds if (win := _is_better(rows, name, measure)) is not None]
    return f"{sum(wins)} of {len(wins)}"


def _is_better(rows: Sequence[DensityRow], name: str, measure: _Measure) -> bool | None:
    """Returns whether the scheduler beats the default on all seeds but at most one; None if the measure is moot."""
    by_scheduler = {row.scheduler: row for row in rows}
    default = by_scheduler[_DEFAULT]
    if not measure.matters(default):
        return None
    pairs = list(_pairs(by_scheduler[name], default, measure))
    return sum(measure.sign * (a - b) > 0 for a, b in pairs) >= len(pairs) - 1


def _pairs(row: DensityRow, default: DensityRow, measure: _Measure) -> Iterator[tuple[float, float]]:
    return zip(map(measure.of, row.filled), map(measure.of, default.filled), strict=True)


def _percents(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _value(figure: Figure) -> str:
    return f"{figure.value:,g} {figure.unit}"
