"""How far each scheduler gets before a pod finds no place: bars in percent of the upper bound."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from bench.density.schedulers import BLIND, NAMES
from bench.pictures import drawing
from bench.pictures.drawing import Axis, Frame
from bench.results import Row
from bench.tables import median, of_bound

_WIDTH: Final = 1120
_FIRST: Final = 176
_PANEL: Final = 214
_STEP: Final = 308
_BAR: Final = 24
_LEFT: Final = 78
_PLOT: Final = 1018
_POLICY, _SCOPE = "single-numa-node", "container"


def density(rows: Sequence[Row], titles: dict[str, str]) -> str:
    """A panel a mix (`titles` by name), for single-numa-node and scope container."""
    mixes = [
        (mix, list(listed))
        for mix, listed in groupby(
            (one for one in rows if (one.policy, one.scope) == (_POLICY, _SCOPE) and one.scheduler in NAMES),
            lambda one: one.mix,
        )
    ]
    parts = [
        drawing.text(28, 38, "Pods placed before the first one that finds no place", "title"),
        drawing.text(
            28,
            60,
            f"percent of an upper bound that no scheduler can exceed: median, and range over {len(rows[0].found)}"
            f" streams of pods; {_POLICY}, {_SCOPE} scope",
            "soft",
        ),
        *_legend(),
    ]
    for place, (mix, listed) in enumerate(mixes):
        parts += _panel(Frame(_LEFT, _FIRST + _STEP * place, _PLOT, _PANEL), titles[mix], listed)
    height = _FIRST + _STEP * len(mixes) - 10
    description = "Bars by scheduler for machines of 1, 2, 4 and 8 NUMA nodes; the tables of the page have the numbers."
    return drawing.document(_WIDTH, height, "Density by scheduler", description, parts)


def _legend() -> Iterator[str]:
    for place, name in enumerate(NAMES):
        x, y = 28 + 212 * (place % 5), 78 + 24 * (place // 5)
        if place >= 5:
            x = (28, 240, 540, 770)[place - 5]
        frame = Frame(x, y, 16, 14)
        yield drawing.box(frame, f"d{place}", 2)
        if name in BLIND:
            yield drawing.hatched(frame)
        yield drawing.text(x + 23, y + 12, name, "soft")


def _panel(frame: Frame, title: str, rows: Sequence[Row]) -> Iterator[str]:
    y = Axis(0, 100, frame.y + frame.height, -frame.height)
    yield drawing.box(frame, "panel", 4)
    yield drawing.text(frame.x, frame.y - 24, title, "name")
    yield from drawing.scale_left(frame, y, (0, 25, 50, 75, 100), " %")
    groups = [(zones, list(listed)) for zones, listed in groupby(rows, lambda one: one.zones)]
    step = frame.width / len(groups)
    for place, (zones, listed) in enumerate(groups):
        middle = frame.x + step * (place + 0.5)
        x = middle - _BAR * len(listed) / 2
        for row in listed:
            yield from _bar(Frame(x, frame.y, _BAR, frame.height), y, row)
            x += _BAR
        below = frame.y + frame.height
        yield drawing.text(
            middle, below + 20, f"{zones} NUMA node{'s' if zones > 1 else ''} a machine", "label", "middle"
        )
        refused = [f"{median(one, lambda filled: filled.refused):g}" for one in listed if one.scheduler in BLIND]
        yield drawing.text(middle, below + 38, f"blind pods refused: {', '.join(refused)}", "soft", "middle")


def _bar(frame: Frame, y: Axis, row: Row) -> Iterator[str]:
    percents = of_bound(row)
    middle, top = statistics.median(percents), y.at(max(percents))
    at = y.at(middle)
    bar = Frame(frame.x + 1.5, at, frame.width - 3, y.start - at)
    yield drawing.box(bar, f"d{NAMES.index(row.scheduler)}", 1)
    if row.scheduler in BLIND:
        yield drawing.hatched(bar)
    centre = frame.x + frame.width / 2
    yield drawing.path([(centre, y.at(min(percents))), (centre, top)], "whisker")
    yield drawing.text(centre, top - 5, f"{middle:.0f}", "small", "middle")
