"""What was found, as tables of a page: as much as somebody decides from. The terminal has all of it (tables.py)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from bench.density import schedulers
from bench.density.mix import Mix
from bench.figures import Figure
from bench.p5 import choosing
from bench.results import ChurnRow, Filled, Found, OfferedRow, Point, Row, SteadyRow
from bench.tables import mean, median, of_bound, spread
from topowise_scheduler import strategies

_DEFAULT: Final = strategies.NAMES[0]
_BESIDE: Final = (_DEFAULT, *schedulers.FGD, schedulers.BLIND[0])

Named = Mapping[str, Figure]


def parts(found: Mapping[str, Found]) -> str:
    """How long each took."""
    lines = [[name, f"{one.seconds:.0f} s", f"{one.cpu_seconds:.0f} s", one.day] for name, one in found.items()]
    return _table(["part", "took", "CPU", "measured again on"], lines)


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
    """The default beside others, for the plainest of settings."""
    lines = []
    plain = [
        one for one in rows if (one.policy, one.scope) == ("single-numa-node", "container") and one.zones in (2, 8)
    ]
    for (name, zones), group in groupby(plain, lambda one: (one.mix, one.zones)):
        by_name = {one.scheduler: one for one in group}
        shown = [f"{_percents(of_bound(by_name[one]))} %" if one in by_name else "" for one in _BESIDE]
        refused = spread([one.refused for one in by_name[schedulers.BLIND[0]].found])
        lines.append([mixes[name].title, str(zones), *shown, refused])
    return _table(["mix", "NUMA nodes", *_BESIDE, "pods of the last refused"], lines)


def clusters(rows: Iterable[Row]) -> list[list[Row]]:
    """All schedulers on one kind of cluster, for each kind."""
    return [list(group) for _, group in groupby(rows, lambda one: (one.mix, one.policy, one.scope, one.zones))]


def choice(kinds: Sequence[Sequence[Row]]) -> str:
    """A line a scheduler: how close it comes to the bound, and on how many kinds of clusters it leads the default."""
    # On some kinds only are yardsticks.
    names = [name for name in _names(kinds) if all(any(one.scheduler == name for one in listed) for listed in kinds)]
    lines = []
    for name in names:
        reached = [statistics.median(of_bound(one)) for listed in kinds for one in listed if one.scheduler == name]
        compared = name in (*strategies.NAMES[1:], *schedulers.FGD)
        ahead = [_ahead(kinds, name, measure) if compared else "" for measure in _MEASURES]
        lines.append([name, f"{statistics.median(reached):.0f} %", f"{min(reached):.0f} %", *ahead])
    return _table(["", "of the bound, median", "worst", *(one.name for one in _MEASURES)], lines)


def with_yardsticks(kinds: Iterable[Sequence[Row]]) -> list[Sequence[Row]]:
    """Those on which FGD was measured."""
    return [listed for listed in kinds if set(schedulers.FGD) <= set(_names([listed]))]


def offered(rows: Sequence[OfferedRow]) -> str:
    """A line a scheduler, means over all kinds of clusters: of the same pods, how many run and what they use."""
    lines = []
    for name in dict.fromkeys(one.scheduler for one in rows):
        mine = [
            (found.placed / most, found.devices, found.cpus)
            for one in rows
            if one.scheduler == name
            for found, most in zip(one.found, one.bounds, strict=True)
        ]
        lines.append([name, *(f"{100 * statistics.mean(shares):.1f} %" for shares in zip(*mine, strict=True))])
    return _table(["", "of the pods run", "devices in use", "CPUs in use"], lines)


def steady(rows: Sequence[SteadyRow], mixes: Mapping[str, Mix]) -> str:
    """A line a scheduler, a column a kind of cluster: what large pods met with."""
    kinds = list(dict.fromkeys((one.mix, one.policy, one.zones) for one in rows))
    by_name = {(one.mix, one.policy, one.zones, one.scheduler): one for one in rows}
    lines = []
    for name in dict.fromkeys(one.scheduler for one in rows):
        found = [by_name.get((*kind, name)) for kind in kinds]
        lines.append([name, *("" if one is None else _of_large(one) for one in found)])
    return _table(["", *(f"{mixes[name].title}, {policy}, {zones} NUMA nodes" for name, policy, zones in kinds)], lines)


def churn(rows: Sequence[ChurnRow]) -> str:
    """A line a scheduler: medians of several days."""
    lines = [
        [
            one.scheduler,
            spread([day.refused for day in one.found]),
            str(max(day.most_refused for day in one.found)),
            f"{100 * statistics.median(day.of_bound for day in one.found):.1f} %",
            f"{statistics.median(day.wait for day in one.found):.0f} min",
            f"{statistics.median(day.large_wait for day in one.found):.0f} min",
            f"{statistics.median(day.large_wait_p95 for day in one.found):.0f} min",
        ]
        for one in rows
        if one.scheduler != choosing.UNTAINTED
    ]
    heads = ["", "pods refused", "most of one job", "GPUs in use, of the bound", "jobs wait", "those of 8 GPUs", "p95"]
    return _table(heads, lines)


def before(then: Sequence[Row], now: Sequence[Row], mixes: Mapping[str, Mix]) -> str:
    """The default on the same streams of pods then and now: a line a mix, medians over its kinds of clusters."""
    lines = []
    for name, one in mixes.items():
        pair = [[row for row in rows if row.mix == name and row.scheduler == _DEFAULT] for rows in (then, now)]
        shares = [f"{_of_kinds(pair[0], of):.1f} to {_of_kinds(pair[1], of):.1f} %" for of in _THEN_AND_NOW.values()]
        streams = [
            (new.first > old.first) - (new.first < old.first)
            for a, b in zip(*pair, strict=True)
            for old, new in zip(a.found, b.found, strict=True)
        ]
        lines.append([one.title, *shares, f"{streams.count(1)}, {streams.count(-1)} of {len(streams)}"])
    return _table(["mix", *_THEN_AND_NOW, "streams with more, fewer pods"], lines)


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


_THEN_AND_NOW: Final[Mapping[str, Callable[[Row], float]]] = {
    "of the bound": lambda row: statistics.median(of_bound(row)),
    "CPUs at the end": lambda row: 100 * median(row, lambda one: one.cpus),
    "devices at the end": lambda row: 100 * median(row, lambda one: one.devices),
}


def _of_kinds(rows: Iterable[Row], of: Callable[[Row], float]) -> float:
    return statistics.mean(map(of, rows))


def _of_large(row: SteadyRow) -> str:
    at_once, wait = mean(row, lambda one: one.large_at_once), mean(row, lambda one: one.large_wait)
    devices = 100 * mean(row, lambda one: one.devices)
    moved = 100 * mean(row, lambda one: one.moved)
    text = f"{100 * at_once:.0f} %, {100 * wait:.1f} %" + (f", {devices:.1f} %" if devices else "")
    return text + (f"; {moved:.1f} % moved" if moved else "")


def _names(kinds: Iterable[Iterable[Row]]) -> list[str]:
    return list(dict.fromkeys(one.scheduler for listed in kinds for one in listed))


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
