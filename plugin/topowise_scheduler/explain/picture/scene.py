"""The drawing: nested boxes with texts, at whole numbers of the picture's unit.

A writer knows the kinds of boxes and the styles of texts, but not machines.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["canvas", "socket", "zone", "cache", "core", "cpu", "bar", "share", "device", "panel", "swatch"]
Style = Literal["node", "about", "heading", "aside", "caption", "figure", "note", "name", "id", "tag"]
Anchor = Literal["start", "middle", "end"]


class Text(msgspec.Struct, frozen=True, gc=False):
    """A line of text; `x` is its start, middle or end, `y` is the top of the line."""

    x: int
    y: int
    text: str
    style: Style
    anchor: Anchor = "start"


class Box(msgspec.Struct, frozen=True):
    """A rectangle. `state` and `owner` determine the fill; `title` is the tooltip."""

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
