"""What was found, as tables of a page."""

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
_SHOWN_ZONES: Final = (2, 8)


def parts(found: Mapping[str, Found]) -> str:
    """How long each took."""
    lines = [[name, f"{one.seconds:.0f} s", f"{one.cpu_seconds:.0f} s"] for name, one in found.items()]
    return _table(["part", "took", "CPU"], lines)


def figures(listed: Iterable[Figure]) -> str:
    """A line a figure."""
    lines = [
        [
            one.name,
            f"{one.value:,g} {one.unit}",
            "" if one.target is None else f"<= {one.target:g}",
            "" if one.target is None else "missed" if one.is_missed else "met",
        ]
        for one in listed
    ]
    return _table(["figure", "value", "target", ""], lines)


def growth(points: Sequence[Point], nodes: Sequence[int]) -> str:
    """A line for each number of NUMA nodes and each of these numbers of nodes."""
    lines = [
        [
            str(one.zones),
            f"{one.nodes:,}",
            f"{one.cold_ms:.2f} ms",
            f"{one.changed_ms:.2f} ms",
            f"{one.scored_ms:.2f} ms",
            f"{one.loop_ms:,.0f} ms",
            f"{one.loop_ms / one.cold_ms:,.0f}",
        ]
        for one in points
        if one.nodes in nodes
    ]
    return _table(["NUMA nodes", "nodes", "cold", "10 changed", "TightFit", "loop", "loop / cold"], lines)


def density(rows: Sequence[Row], mixes: Mapping[str, Mix]) -> Iterator[str]:
    """A section for each mix, policy and scope."""
    for (name, policy, scope), group in groupby(rows, lambda one: (one.mix, one.policy, one.scope)):
        listed = list(group)
        title = mixes[name].title
        yield f"### {title[0].upper()}{title[1:]}, `{policy}`, scope `{scope}`"
        yield "Until one waits, in percent of the upper bound: median and range."
        yield _grid(listed)
        left_out = [
            f"{100 * one.left_out:.1f} % of the pods with {_counted(one.zones)}"
            for one in listed
            if one.scheduler == _DEFAULT and one.left_out
        ]
        if left_out:
            yield f"Left out, as not even an empty machine takes them: {', '.join(left_out)}."
        for zones, of_zones in groupby(listed, lambda one: one.zones):
            yield folded(f"In pods, and at the end: {_counted(zones)} a machine", _ends(list(of_zones)))


def density_short(rows: Sequence[Row], mixes: Mapping[str, Mix]) -> str:
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


def behind(rows: Sequence[Row]) -> Iterator[str]:
    """Where another strategy does better than the default, by each measure."""
    kinds = [list(group) for _, group in groupby(rows, lambda one: (one.mix, one.policy, one.scope, one.zones))]
    yield (
        f"{_DEFAULT} is the default. Is it the best of the strategies? On {len(kinds)} kinds of clusters, another is\n"
        "ahead of it where it does better in all streams of pods but one at most:"
    )
    strategy = ["strategy", "its median", f"{_DEFAULT}'s", "better in", "worse in"]
    for measure in _MEASURES:
        compared = [listed for listed in kinds if measure.matters(listed[0])]
        ahead = list(_ahead(compared, measure))
        title = f"{measure.name}: {len(ahead)} of {len(compared) * (len(strategies.NAMES) - 1)} comparisons"
        table = _table(["mix", "policy", "scope", "NUMA nodes", *strategy], ahead)
        yield folded(title, table) if ahead else f"{title}."


def folded(title: str, text: str) -> str:
    """To be opened by whoever wants it."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


class _Measure(NamedTuple):
    """`sign` 1 where more is better, -1 where less is."""

    name: str
    of: Callable[[Filled], float]
    sign: int
    spelling: str

    def matters(self, ours: Row) -> bool:
        """Devices that never run short say nothing by how many of them are in use."""
        return self is not _DEVICES or median(ours, self.of) > _SHORT


_DEVICES: Final = _Measure("More devices in use at the end, where they run short", lambda one: one.devices, 1, "{:.1%}")
_SHORT: Final = 0.8
_MEASURES: Final = (
    _Measure("More pods until one waits", lambda one: one.first, 1, "{:g}"),
    _Measure("More CPUs in use at the end", lambda one: one.cpus, 1, "{:.1%}"),
    _DEVICES,
    _Measure("Fewer NUMA nodes a pod", lambda one: one.zones, -1, "{:.2f}"),
)


def _ahead(kinds: Iterable[Sequence[Row]], measure: _Measure) -> Iterator[list[str]]:
    for listed in kinds:
        ours = next(one for one in listed if one.scheduler == _DEFAULT)
        for one in listed:
            leads = [measure.sign * (measure.of(a) - measure.of(b)) for a, b in zip(one.found, ours.found, strict=True)]
            more, fewer = sum(lead > 0 for lead in leads), sum(lead < 0 for lead in leads)
            if one.scheduler in strategies.NAMES and more >= len(leads) - 1:
                yield [
                    one.mix,
                    one.policy,
                    one.scope,
                    str(one.zones),
                    one.scheduler,
                    measure.spelling.format(median(one, measure.of)),
                    measure.spelling.format(median(ours, measure.of)),
                    f"{more} of {len(leads)}",
                    str(fewer),
                ]


def _grid(rows: Sequence[Row]) -> str:
    """A line a scheduler, a column a number of NUMA nodes."""
    names = dict.fromkeys(one.scheduler for one in rows)
    lines = [[name, *(_percents(of_bound(one)) for one in rows if one.scheduler == name)] for name in names]
    return _table(["", *map(_counted, sorted({one.zones for one in rows}))], lines)


def _ends(rows: Sequence[Row]) -> str:
    def shares(one: Row, of: Callable[[Filled], float]) -> str:
        return f"{100 * median(one, of):.1f} %"

    lines = [
        [
            one.scheduler,
            spread([filled.first for filled in one.found]),
            spread([filled.running for filled in one.found]),
            shares(one, lambda filled: filled.cpus),
            shares(one, lambda filled: filled.devices),
            spread([filled.refused for filled in one.found]),
            f"{median(one, lambda filled: filled.zones):.2f}",
        ]
        for one in rows
    ]
    lines.append(["*upper bound*", spread(rows[0].bounds), "", "", "", "", ""])
    heads = ["", "until one waits", "at the end", "CPUs in use", "devices in use", "refused", "NUMA nodes a pod"]
    return _table(heads, lines)


def _percents(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _counted(zones: int) -> str:
    return f"{zones} NUMA node{'s' if zones > 1 else ''}"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
