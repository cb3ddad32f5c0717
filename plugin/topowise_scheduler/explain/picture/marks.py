"""Small filled boxes with the tag of the pod that has the resource."""

from __future__ import annotations

from typing import NamedTuple

from topowise_scheduler.explain.picture.captions import tag
from topowise_scheduler.explain.picture.plan import Plan
from topowise_scheduler.explain.picture.scene import Anchor, Box, Kind, Style, Text


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
