"""Geometry of every picture in every medium: no box overlaps another box, is cut off, or is outside its parent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples import examples
from topowise_scheduler.explain.picture import Picture, svg, terminal
from topowise_scheduler.explain.picture.contents import (
    Cache,
    Core,
    Device,
    Devices,
    Memory,
    Owner,
    Share,
    Socket,
    Thread,
    Zone,
)
from topowise_scheduler.explain.picture.layout import lay_out
from topowise_scheduler.explain.picture.measures import PIXELS, Measures, characters
from topowise_scheduler.explain.picture.rows import apportioned
from topowise_scheduler.explain.picture.scene import Box, Text

MEDIA = {
    "pixels": PIXELS,
    "24": characters(24),
    "40": characters(40),
    "80": characters(80),
    "100-ascii": characters(100, ascii_only=True),
    "120": characters(120),
    "200": characters(200),
}
FRAMED = ("zone", "socket")


def area(text: Text, measures: Measures) -> Box:
    """The estimated area of a text."""
    face = measures.faces[text.style]
    width = face.width(text.text)
    x = text.x - {"start": 0, "middle": width // 2, "end": width}[text.anchor]
    return Box("canvas", x, text.y, width, face.line, title=text.text)


def is_within(inner: Box, outer: Box, edge: int = 0) -> bool:
    return (
        inner.x >= outer.x + edge
        and inner.y >= outer.y + edge
        and inner.right <= outer.right - edge
        and inner.bottom <= outer.bottom - edge
    )


def overlap(first: Box, second: Box) -> bool:
    return first.x < second.right and second.x < first.right and first.y < second.bottom and second.y < first.bottom


def overlapping(boxes: list[Box]) -> Iterator[tuple[Box, Box]]:
    """Pairs that overlap; boxes are swept from top to bottom."""
    ordered = sorted(boxes, key=lambda box: (box.y, box.x))
    for at, first in enumerate(ordered):
        for second in ordered[at + 1 :]:
            if second.y >= first.bottom:
                break
            if overlap(first, second):
                yield first, second


def faults(box: Box, measures: Measures) -> list[str]:
    """All faults of a box and its inner boxes."""
    problems = []
    # A frame of characters takes a cell on each side; the heading is written on it.
    edge = 1 if measures.heading_on_edge and box.kind in FRAMED else 0
    if box.width <= 0 or box.height <= 0:
        problems.append(f"{box.kind} has no area")
    texts = [area(text, measures) for text in box.texts]
    for text in texts:
        on_edge = edge and text.y == box.y
        room = msgspec.structs.replace(box, x=box.x + 2, width=box.width - 4) if on_edge else box
        if not is_within(text, room, 0 if on_edge else edge):
            problems.append(f"text {text.title!r} leaves its {box.kind}")
    problems += [f"{inner.kind} leaves its {box.kind}" for inner in box.boxes if not is_within(inner, box, edge)]
    for first, second in overlapping([*box.boxes, *texts]):
        problems.append(f"{first.kind} {first.title!r} overlaps {second.kind} {second.title!r}")
    for inner in box.boxes:
        problems += faults(inner, measures)
    return problems


def boxes_of(box: Box) -> Iterator[Box]:
    yield box
    for inner in box.boxes:
        yield from boxes_of(inner)


@pytest.mark.parametrize("medium", MEDIA)
def test_nothing_overlaps_and_nothing_is_cut_off(picture: Picture, medium: str) -> None:
    canvas = lay_out(picture, MEDIA[medium])
    assert faults(canvas, MEDIA[medium]) == []
    assert (canvas.x, canvas.y) == (0, 0)
    assert all(is_within(box, canvas) for box in boxes_of(canvas))
    assert MEDIA[medium].width in (None, canvas.width)


def test_a_socket_frames_its_numa_nodes_only_if_it_has_several(picture_of: Callable[[str], Picture]) -> None:
    large = [box for box in boxes_of(lay_out(picture_of("large"), PIXELS)) if box.kind == "socket"]
    assert [[inner.kind for inner in socket.boxes] for socket in large] == [["zone"] * 4, ["zone"] * 4]
    assert not any(box.kind == "socket" for box in boxes_of(lay_out(picture_of("two-zones"), PIXELS)))


@pytest.mark.parametrize(("width", "across"), [(60, 1), (80, 2), (120, 3), (160, 3)])
def test_a_terminal_has_as_many_numa_nodes_across_as_fit(
    width: int, across: int, picture_of: Callable[[str], Picture]
) -> None:
    zones = [box for box in boxes_of(lay_out(picture_of("group"), characters(width))) if box.kind == "zone"]
    assert [zone.y for zone in zones].count(zones[0].y) == across


def test_numa_nodes_keep_their_order_and_come_in_even_rows() -> None:
    zones = [Zone(number, (), ()) for number in (0, 1, 2, 5, 8, 9)]
    canvas = lay_out(Picture("n", "none", "pod", "exact", tuple(zones)), PIXELS)
    drawn = sorted((box.y, box.x, box.texts[0].text) for box in boxes_of(canvas) if box.kind == "zone")
    assert [text for _, _, text in drawn] == [f"NUMA node {number}" for number in (0, 1, 2, 5, 8, 9)]
    assert [y for y, _, _ in drawn].count(drawn[0][0]) == 3


@pytest.mark.parametrize("medium", MEDIA)
def test_bars_of_a_type_have_the_same_scale(medium: str, picture_of: Callable[[str], Picture]) -> None:
    # 32 GiB, none and 128 GiB.
    bars = [box for box in boxes_of(lay_out(picture_of("odd"), MEDIA[medium])) if box.kind == "bar"]
    assert [bar.width * 4 // bars[1].width for bar in bars] in ([1, 4], [0, 4])


@given(st.lists(st.integers(1, 1 << 50), min_size=1, max_size=20), st.integers(0, 800))
def test_shares_are_to_scale_and_never_vanish(sizes: list[int], spare: int) -> None:
    width = len(sizes) + spare
    parts = apportioned(width, sizes)
    assert sum(parts) == width
    assert min(parts) >= 1
    for size, part in zip(sizes, parts, strict=True):
        assert abs(part - 1 - spare * size / sum(sizes)) < 1
    for (size, part), (larger, more) in pairwise(sorted(zip(sizes, parts, strict=True))):
        assert size == larger or part <= more


NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)
STATES = (("free",), ("shared",), ("reserved",), ("offline",), ("exclusive",), ("exclusive", 0), ("exclusive", 29))


@st.composite
def caches(draw: st.DrawFn) -> Cache:
    """Up to 40 cores of up to eight threads, with ids or without."""
    count, threads, first = draw(st.integers(1, 40)), draw(st.integers(1, 8)), draw(st.integers(0, 65000))
    has_ids, states = draw(st.booleans()), draw(st.lists(st.sampled_from(STATES), min_size=1, max_size=6))
    cores = [
        Core(
            tuple(
                Thread(first + core * threads + number if has_ids else None, *states[(core + number) % len(states)])
                # Cores of a machine may differ.
                for number in range(1 + (core % threads if draw(st.booleans()) else threads - 1))
            )
        )
        for core in range(count)
    ]
    return Cache(draw(st.one_of(st.none(), st.integers(0, 999))), tuple(cores))


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    """Any sizes, and more pods than a bar may have characters."""
    sizes = st.integers(1, 1 << 45)
    shares = [Share(kind, draw(sizes)) for kind in draw(st.sets(st.sampled_from(["reserved", "hugepages"])))]
    owners = st.sampled_from([(), (0,), (0, 1), (29,)])
    shares += [Share("held", draw(sizes), draw(owners)) for _ in range(draw(st.sampled_from([0, 1, 2, 5, 60])))]
    shares += [Share("free", draw(sizes))] * draw(st.integers(0, 1))
    return Memory("memory", sum(share.size for share in shares), tuple(shares))


SOCKETS = st.builds(
    Socket, id=st.one_of(st.none(), st.integers(0, 3)), caches=st.lists(caches(), min_size=1, max_size=3).map(tuple)
)
DEVICES = st.builds(
    Device,
    id=st.one_of(st.none(), NAMES),
    is_held=st.booleans(),
    owner=st.sampled_from([None, 1]),
    is_healthy=st.booleans(),
    zones=st.sampled_from([(), (0,), (0, 12)]),
)
RESOURCES = st.builds(Devices, resource=NAMES, devices=st.lists(DEVICES, min_size=1, max_size=30).map(tuple))


@st.composite
def machines(draw: st.DrawFn) -> Picture:
    """Any machine, likely or unlikely."""
    count = draw(st.integers(1, 9))
    zones = tuple(
        Zone(
            id=number * draw(st.integers(1, 120)),
            sockets=draw(st.lists(SOCKETS, max_size=2).map(tuple)),
            memory=(draw(memories()),),
            devices=draw(st.lists(RESOURCES, max_size=2).map(tuple)),
            group=draw(st.sampled_from([(), (0, 1, 2)])),
        )
        for number in range(count)
    )
    rows = st.lists(st.integers(10, 255), min_size=count, max_size=count).map(tuple)
    owners = tuple(
        Owner(f"{draw(st.text(max_size=8))}/{number}" + "x" * (number % 100), 3, frozenset({1, 5, 9}))
        for number in range(draw(st.sampled_from([30, 70])))
    )
    return Picture(
        node=draw(NAMES),
        policy="none",
        scope="pod",
        precision="exact",
        zones=zones,
        owners=owners,
        elsewhere=draw(st.lists(RESOURCES, max_size=1).map(tuple)),
        distances=draw(st.one_of(st.none(), st.lists(rows, min_size=count, max_size=count).map(tuple))),
        age=draw(NAMES),
    )


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(machines(), st.sampled_from(sorted(MEDIA)))
def test_any_machine_is_drawn_without_a_fault(machine: Picture, medium: str) -> None:
    assert faults(lay_out(machine, MEDIA[medium]), MEDIA[medium]) == []


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(machines(), st.integers(24, 200), st.booleans())
def test_any_machine_can_be_written(machine: Picture, width: int, is_ascii: bool) -> None:
    ElementTree.fromstring(svg(machine))
    text = terminal(machine, width=width, ascii_only=is_ascii)
    assert max(map(characters(width).faces["note"].width, text.splitlines())) <= width
    assert text.isascii() or not is_ascii
