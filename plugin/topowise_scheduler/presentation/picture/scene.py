"""What a writer draws: boxes in boxes, with texts on them, at whole numbers of the picture's unit.

A writer knows the kinds of boxes and the styles of texts, and nothing of machines.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["canvas", "socket", "zone", "cache", "core", "cpu", "bar", "share", "device", "panel", "swatch", "heat"]
Style = Literal["node", "about", "heading", "aside", "caption", "figure", "note", "name", "id", "value", "tag"]
Anchor = Literal["start", "middle", "end"]


class Text(msgspec.Struct, frozen=True, gc=False):
    """One line; `x` is its start, middle or end, `y` the top of the line."""

    x: int
    y: int
    text: str
    style: Style
    anchor: Anchor = "start"


class Box(msgspec.Struct, frozen=True):
    """A rectangle. `state` and `owner` say how it is filled; `title` is all there is to know of it, in words."""

    kind: Kind
    x: int
    y: int
    width: int
    height: int
    state: str = ""
    owner: int | None = None
    title: str = ""
    texts: tuple[Text, ...] = ()
    boxes: tuple[Box, ...] = ()

    @property
    def right(self) -> int:
        """The first column that is not in the box."""
        return self.x + self.width

    @property
    def bottom(self) -> int:
        """The first row that is not in the box."""
        return self.y + self.height
