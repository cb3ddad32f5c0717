"""The parts of which the layout consists: a column of lines of text and boxes, and boxes with the tag of a pod."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topowise.text import escaped
from topowise_scheduler.explain.picture.captions import tag
from topowise_scheduler.explain.picture.measures import Measures
from topowise_scheduler.explain.picture.plan import Plan
from topowise_scheduler.explain.picture.scene import Anchor, Box, Kind, Style, Text


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
