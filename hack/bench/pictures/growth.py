"""Cost of a decision over the number of nodes, a line for each number of NUMA nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

from bench.pictures import drawing
from bench.pictures.drawing import Axis, Frame
from bench.results import Point

_WIDTH: Final = 1120
_HEIGHT: Final = 800
_PLOT: Final = (450, 250)
_LEFT: Final = (78, 628)
_TOP: Final = (118, 480)
_X_TICKS: Final = (100, 1000, 10000)

Value = Callable[[Point], float]


def growth(points: Sequence[Point]) -> str:
    """Four panels: beside a loop, and the three steps on a linear scale."""
    most = max(one.nodes for one in points)
    parts = [
        drawing.text(28, 38, "What one pod costs the engine, asked about every node of the cluster", "title"),
        drawing.text(28, 60, "CPU time, median; servers full of pods, a pod with 5 resources", "soft"),
        *_legend(sorted({one.zones for one in points})),
        *_against_a_loop(points, Frame(_LEFT[0], _TOP[0], *_PLOT)),
    ]
    steps: tuple[tuple[str, Value], ...] = (
        ("a shape of pod never asked before", lambda one: one.cold_ms),
        ("a known shape, after 10 nodes have changed", lambda one: one.changed_ms),
        ("TightFit scores the nodes that fit", lambda one: one.scored_ms),
    )
    top = max(value(one) for _, value in steps for one in points)
    for place, (title, value) in enumerate(steps, start=1):
        frame = Frame(_LEFT[place % 2], _TOP[place // 2], *_PLOT)
        parts += _panel(points, frame, title, value, Axis(0, most, frame.x, frame.width), _from_zero(frame, top))
    description = f"Lines for 1 to 8 NUMA nodes over 100 to {most:,} nodes; the table of the page has the numbers."
    return drawing.document(_WIDTH, _HEIGHT, "Cost of a decision as nodes and NUMA nodes grow", description, parts)


def _legend(zones: Sequence[int]) -> Iterator[str]:
    for place, count in enumerate(zones):
        x = 560 + 138 * place
        yield drawing.path([(x, 55), (x + 26, 55)], f"line s{_colour(place)}")
        yield drawing.marker(x + 13, 55, place, f"d{_colour(place)}")
        yield drawing.text(x + 34, 60, f"{count} NUMA node{'s' if count > 1 else ''}", "soft")


def _against_a_loop(points: Sequence[Point], frame: Frame) -> Iterator[str]:
    low, high = 0.1, 10000.0
    x = Axis(min(one.nodes for one in points), max(one.nodes for one in points), frame.x, frame.width, is_log=True)
    y = Axis(low, high, frame.y + frame.height, -frame.height, is_log=True)
    yield drawing.box(frame, "panel", 4)
    yield drawing.text(frame.x, frame.y - 12, "beside a loop over the model of one node (dashed)", "name")
    yield from drawing.scale_left(frame, y, (0.1, 1, 10, 100, 1000, 10000), " ms")
    yield from drawing.scale_below(frame, x, _X_TICKS)
    for place, line in enumerate(_lines(points)):
        for kind, value in (("dashed", _loop), ("line", _cold)):
            at = [(x.at(one.nodes), y.at(value(one))) for one in line]
            yield drawing.path(at, f"{kind} s{_colour(place)}")
            yield from (drawing.marker(*one, place, f"d{_colour(place)}") for one in at)
    yield drawing.text(frame.x + frame.width, frame.y + frame.height + 38, "nodes", "soft", "end")


def _panel(points: Sequence[Point], frame: Frame, title: str, value: Value, x: Axis, y: Axis) -> Iterator[str]:
    yield drawing.box(frame, "panel", 4)
    yield drawing.text(frame.x, frame.y - 12, title, "name")
    yield from drawing.scale_left(frame, y, range(int(y.high) + 1), " ms")
    yield from drawing.scale_below(frame, x, (1000, 5000, 10000, 20000))
    for place, line in enumerate(_lines(points)):
        at = [(x.at(one.nodes), y.at(value(one))) for one in line]
        yield drawing.path(at, f"line s{_colour(place)}")
        yield from (drawing.marker(*one, place, f"d{_colour(place)}") for one in at)
    yield drawing.text(frame.x + frame.width, frame.y + frame.height + 38, "nodes", "soft", "end")


def _from_zero(frame: Frame, top: float) -> Axis:
    return Axis(0, int(top) + 1, frame.y + frame.height, -frame.height)


def _lines(points: Sequence[Point]) -> Iterator[list[Point]]:
    for _, line in groupby(points, lambda one: one.zones):
        yield list(line)


def _colour(place: int) -> int:
    return (6, 2, 4, 0)[place]


def _cold(one: Point) -> float:
    return one.cold_ms


def _loop(one: Point) -> float:
    return one.loop_ms
