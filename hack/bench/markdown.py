"""What was found, as tables of a page: as much as somebody decides from. The terminal has all of it (tables.py)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from bench.density import schedulers
from bench.density.mix import Mix
from bench.figures import Figure
from bench.results import Filled, Found, Point, Row
from bench.tables import median, of_bound, spread
from topowise_scheduler import strategies

_DEFAULT: Final = strategies.NAMES[0]

Named = Mapping[str, Figure]


def parts(found: Mapping[str, Found]) -> str:
    """How long each took."""
    lines = [[name, f"{one.seconds:.0f} s", f"{one.cpu_seconds:.0f} s"] for name, one in found.items()]
    return _table(["part", "took", "CPU"], lines)


def figures(listed: Iterable[Figure]) -> str:
    """A line a figure."""
    lines = [
        [
            one.name,
            _value(one),
            "" if one.target is None else f"<= {one.target:g}",
            "" if one.target is None else "missed" if one.is_missed else "met",
        ]
        for one in listed
    ]
    return _table(["figure", "value", "target", ""], lines)


def grid(named: Named, title: str, rows: Mapping[str, str], heads: Mapping[str, str]) -> str:
    """Figures by names of which a head is one with "{}" for the row, each with the words that the page has for it."""
    lines = [[words, *(_value(named[head.format(row)]) for head in heads)] for row, words in rows.items()]
    return _table([title, *heads.values()], lines)


def growth(points: Sequence[Point], nodes: int) -> str:
    """A line for each number of NUMA nodes, in a cluster of so many nodes."""
    lines = [
        [
            str(one.zones),
            f"{one.cold_ms:.2f} ms",
            f"{one.changed_ms:.2f} ms",
            f"{one.scored_ms:.2f} ms",
            f"{one.loop_ms:,.0f} ms",
            f"{one.loop_ms / one.cold_ms:,.0f} times",
        ]
        for one in points
        if one.nodes == nodes
    ]
    return _table(["NUMA nodes", "cold", "10 changed", "TightFit", "loop", "loop / cold"], lines)


def density(rows: Sequence[Row], mixes: Mapping[str, Mix]) -> str:
    """The default beside a scheduler without topowise, for the plainest of settings."""
    lines = []
    plain = [
        one for one in rows if (one.policy, one.scope) == ("single-numa-node", "container") and one.zones in (2, 8)
    ]
    for (name, zones), group in groupby(plain, lambda one: (one.mix, one.zones)):
        by_name = {one.scheduler: one for one in group}
        ours, blind = by_name[_DEFAULT], by_name[schedulers.BLIND[0]]
        lines.append(
            [
                mixes[name].title,
                str(zones),
                f"{_percents(of_bound(ours))} %",
                f"{_percents(of_bound(blind))} %",
                spread([one.refused for one in blind.found]),
            ]
        )
    return _table(["mix", "NUMA nodes", _DEFAULT, schedulers.BLIND[0], "pods of it refused"], lines)


def clusters(rows: Iterable[Row]) -> list[list[Row]]:
    """All schedulers on one kind of cluster, for each kind."""
    return [list(group) for _, group in groupby(rows, lambda one: (one.mix, one.policy, one.scope, one.zones))]


def choice(kinds: Sequence[Sequence[Row]]) -> str:
    """A line a scheduler: how close it comes to the bound, and on how many kinds of clusters it leads the default."""
    names = list(dict.fromkeys(one.scheduler for listed in kinds for one in listed))
    lines = []
    for name in names:
        reached = [statistics.median(of_bound(one)) for listed in kinds for one in listed if one.scheduler == name]
        ahead = [_ahead(kinds, name, measure) if name in strategies.NAMES[1:] else "" for measure in _MEASURES]
        lines.append([name, f"{statistics.median(reached):.0f} %", f"{min(reached):.0f} %", *ahead])
    return _table(["", "of the bound, median", "worst", *(one.name for one in _MEASURES)], lines)


def folded(title: str, text: str) -> str:
    """To be opened by whoever wants it."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


class _Measure(NamedTuple):
    """`sign` 1 where more is better, -1 where less is."""

    name: str
    of: Callable[[Filled], float]
    sign: int

    def matters(self, ours: Row) -> bool:
        """Devices that never run short say nothing by how many of them are in use."""
        return self is not _DEVICES or median(ours, self.of) > _SHORT


_DEVICES: Final = _Measure("more devices in use", lambda one: one.devices, 1)
_SHORT: Final = 0.8
_MEASURES: Final = (
    _Measure("more pods", lambda one: one.first, 1),
    _Measure("more CPUs in use", lambda one: one.cpus, 1),
    _DEVICES,
    _Measure("fewer NUMA nodes a pod", lambda one: one.zones, -1),
)


def _ahead(kinds: Iterable[Sequence[Row]], name: str, measure: _Measure) -> str:
    leads = [lead for listed in kinds if (lead := _leads(listed, name, measure)) is not None]
    return f"{sum(leads)} of {len(leads)}"


def _leads(listed: Sequence[Row], name: str, measure: _Measure) -> bool | None:
    """Whether it does better than the default in all streams of pods but one at most; None where that says nothing."""
    ours = next(one for one in listed if one.scheduler == _DEFAULT)
    if not measure.matters(ours):
        return None
    (other,) = (one for one in listed if one.scheduler == name)
    pairs = list(_pairs(other, ours, measure))
    return sum(measure.sign * (a - b) > 0 for a, b in pairs) >= len(pairs) - 1


def _pairs(one: Row, other: Row, measure: _Measure) -> Iterator[tuple[float, float]]:
    return zip(map(measure.of, one.found), map(measure.of, other.found), strict=True)


def _percents(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _value(one: Figure) -> str:
    return f"{one.value:,g} {one.unit}"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
