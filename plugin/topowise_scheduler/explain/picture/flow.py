"""The parts of which the layout consists, and the values of the whole picture that it needs before it places any part.

The parts are a column of lines of text and boxes, and boxes with the tag of a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import NamedTuple

import msgspec

from topowise.text import escaped
from topowise_scheduler.explain.picture.captions import tag
from topowise_scheduler.explain.picture.contents import Picture, Zone
from topowise_scheduler.explain.picture.measures import Measures, widest
from topowise_scheduler.explain.picture.scene import Anchor, Box, Kind, Style, Text


class Plan(msgspec.Struct, frozen=True):
    """`tag_x` is the width of a tag, `id_x` of a CPU's id (0 without ids), `largest` the full width of a memory."""

    picture: Picture
    measures: Measures
    tag_x: int
    id_x: int
    largest: Mapping[str, int]

    @property
    def cell_x(self) -> int:
        """The width of a CPU's cell."""
        measures = self.measures
        id_x = self.id_x + measures.cell_pad if measures.cell_ids and self.id_x else 0
        return id_x + self.tag_x + 2 * measures.cell_pad

    @property
    def core_x(self) -> int:
        """The width of a core."""
        return self.cell_x + 2 * self.measures.core_pad

    @property
    def label_x(self) -> int:
        """The width of what stands before a row of cells."""
        return 0 if self.measures.cell_ids or not self.id_x else self.id_x + 1

    def across(self, cores: int) -> int:
        """The width of so many cores in a row."""
        return cores * (self.core_x + self.measures.core_gap) - self.measures.core_gap


def make_plan(picture: Picture, measures: Measures) -> Plan:
    """The plan of a picture in a medium."""
    ids = [str(thread.id) for zone in picture.zones for thread in zone.threads if thread.id is not None]
    largest: dict[str, int] = {}
    for zone in picture.zones:
        for memory in zone.memory:
            largest[memory.type] = max(largest.get(memory.type, 0), memory.total)
    return Plan(
        picture=picture,
        measures=measures,
        tag_x=widest(measures.faces["tag"], ["A", *map(tag, range(len(picture.owners)))]),
        id_x=widest(measures.faces["id"], ids),
        largest=largest,
    )


def balanced(count: int, fit: int) -> int:
    """The columns that need no more rows than `fit` columns do, and leave the last row as full as can be."""
    rows = -(-count // fit)
    return -(-count // rows)


def wanted_zone(plan: Plan, across: int) -> int:
    """The width a zone wants, frame included, if so many lie side by side; all there is where that is limited."""
    measures = plan.measures
    if measures.width is not None:
        return measures.max_zone
    inner = max((_cpus_x(plan, zone, measures.cores_across[across - 1]) for zone in plan.picture.zones), default=0)
    least = measures.min_zone if across > 1 else measures.min_canvas - 2 * measures.margin
    return min(measures.max_zone, max(least, inner + 2 * measures.pad_x))


def _cpus_x(plan: Plan, zone: Zone, usual: int) -> int:
    """The width of the zone's CPUs: `usual` cores in a row, or more if there would be many more rows than that."""
    caches = [cache for socket in zone.sockets for cache in socket.caches]
    count = sum(len(cache.cores) for cache in caches)
    # Without ids a cell is half as wide, and a core half as high.
    row = max(usual, isqrt(2 * count)) if plan.id_x else max(2 * usual, isqrt(4 * count))
    largest = max((balanced(len(cache.cores), row) for cache in caches), default=0)
    if len(caches) < 2 or not largest:
        return plan.across(largest)
    measures = plan.measures
    side_by_side = min(len(caches), max(1, row // largest))
    return side_by_side * (plan.across(largest) + 2 * measures.cache_pad + measures.cache_gap) - measures.cache_gap


class Flow:
    """`y` is the top of the next element. Texts are escaped and fit into `width`."""

    def __init__(self, measures: Measures, x: int, y: int, width: int) -> None:
        self.measures = measures
        self.x = x
        self.y = y
        self.width = width
        self.texts: list[Text] = []
        self.boxes: list[Box] = []

    def line(self, style: Style, text: str, figure: str = "", *, indent: int = 0, shorter: str = "") -> None:
        """Adds a line of text, elided, or `shorter` if it would be elided.

        `figure` stands at the end of the line, or of the next line if it leaves too little space for the text.
        """
        face = self.measures.faces[style]
        x, room = self.x + indent, self.width - indent
        beside = room - self.measures.faces["figure"].width(self._safe(figure)) - self.measures.space
        if shorter and face.width(self._safe(text)) > (beside if figure else room):
            text = shorter
        is_beside = bool(figure) and (face.width(self._safe(text)) <= beside or 3 * beside >= 2 * room)
        self._put(style, text, x, beside if is_beside else room)
        if figure and not is_beside:
            self.y += face.line
        if figure:
            self._put("figure", figure, x + room, room, end=True)
        self.y += face.line

    def lines(self, style: Style, parts: Iterable[str], *, indent: int = 0) -> None:
        """Adds facts on as many lines as they need."""
        face, measures = self.measures.faces[style], self.measures
        facts = [self._safe(part) for part in parts]
        for line in face.flowed(facts, self.width - indent, measures.separator, measures.ellipsis):
            self.line(style, line, indent=indent)

    def few_lines(self, style: Style, parts: Sequence[str], most: int) -> None:
        """Adds facts on at most `most` lines, then the number of the remaining facts."""
        face, measures = self.measures.faces[style], self.measures
        for count in range(len(parts), -1, -1):
            shown = list(parts[:count])
            if count < len(parts):
                shown.append(f"{len(parts) - count} more")
            if len(face.flowed(shown, self.width, measures.separator, measures.ellipsis)) <= most:
                self.lines(style, shown)
                return

    def skip(self, amount: int) -> None:
        """Leaves space."""
        self.y += amount

    def add(self, box: Box) -> None:
        """Adds a placed box; the next element goes below it."""
        self.boxes.append(box)
        self.y = max(self.y, box.bottom)

    def _put(self, style: Style, text: str, x: int, room: int, *, end: bool = False) -> None:
        short = self.measures.faces[style].elided(self._safe(text), room, self.measures.ellipsis)
        if short:
            self.texts.append(Text(x, self.y, short, style, "end" if end else "start"))

    def _safe(self, text: str) -> str:
        return escaped(text, ascii_only=self.measures.ascii_only)


class Place(NamedTuple):
    """Where a box goes."""

    x: int
    y: int
    width: int
    height: int


def mark(plan: Plan, kind: Kind, place: Place, state: str, owner: int | None, title: str = "") -> Box:
    """A box with its tag in the middle."""
    texts = () if owner is None else (centred(plan, place, tag(owner), "tag", place.x + place.width // 2, "middle"),)
    return Box(kind, *place, state=state, owner=owner, title=title, texts=texts)


def centred(plan: Plan, place: Place, text: str, style: Style, x: int, anchor: Anchor = "start") -> Text:
    """A line at `x`, half way down the box."""
    return Text(x, place.y + (place.height - plan.measures.faces[style].line) // 2, text, style, anchor)


def mark_x(plan: Plan) -> int:
    """The width of a box that is just wide enough for a tag."""
    return plan.tag_x + 2 * plan.measures.cell_pad
