"""The arrangement of zones in rows, the zones of a socket together in its frame.

Memory is drawn as bars: each type has one scale over all zones, and each share is a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from topowise_scheduler.explain.picture.captions import memory_figure, share_title, shares, tags
from topowise_scheduler.explain.picture.contents import Memory, Share, Zone
from topowise_scheduler.explain.picture.flow import Flow, Place, Plan, balanced, centred, wanted_zone
from topowise_scheduler.explain.picture.measures import Measures
from topowise_scheduler.explain.picture.scene import Box, Text

_MOST_LINES: Final = 3


def place(flow: Flow, plan: Plan, zone: Zone, memory: Memory) -> None:
    """Places a memory type of the zone: caption, bar, and the shares in numbers."""
    measures = plan.measures
    flow.line("caption", memory.type, memory_figure(memory))
    if not memory.total:
        return
    flow.skip(measures.after_caption)
    to_scale = flow.width * memory.total // plan.largest[memory.type]
    drawn = _drawable(memory.shares, flow.width)
    width = max(len(drawn), to_scale)
    parts = []
    x = flow.x
    for share, share_x in zip(drawn, apportioned(width, [part.size for part in drawn]), strict=True):
        parts.append(_part(plan, zone, memory, share, Place(x, flow.y, share_x, measures.bar_y)))
        x += share_x
    state = "joined" if zone.group else ""
    flow.add(Box("bar", flow.x, flow.y, width, measures.bar_y, state=state, boxes=tuple(parts)))
    flow.skip(measures.after_caption)
    flow.few_lines("note", shares(memory), _MOST_LINES)


def apportioned(width: int, sizes: Sequence[int]) -> list[int]:
    """Divides `width` into whole parts to scale, each at least 1; the largest remainders get the rest."""
    total = sum(sizes)
    exact = [size * (width - len(sizes)) for size in sizes]
    parts = [1 + size // total for size in exact]
    order = sorted(range(len(sizes)), key=lambda at: (-(exact[at] % total), at))
    for at in order[: width - sum(parts)]:
        parts[at] += 1
    return parts


def _drawable(shares: Sequence[Share], room: int) -> list[Share]:
    """The shares; allocations are joined to a single part if there are more shares than columns."""
    if len(shares) <= room:
        return list(shares)
    allocated = [share for share in shares if share.kind == "held"]
    owners = tuple(dict.fromkeys(owner for share in allocated for owner in share.owners))
    joint = Share("held", sum(share.size for share in allocated), owners)
    before = shares.index(allocated[0])
    return [*shares[:before], joint, *(share for share in shares[before:] if share.kind != "held")]


def _part(plan: Plan, zone: Zone, memory: Memory, share: Share, place: Place) -> Box:
    measures = plan.measures
    texts: tuple[Text, ...] = ()
    label = tags(share.owners)
    if label and measures.faces["tag"].width(label) + 2 * measures.cell_pad <= place.width:
        texts = (centred(plan, place, label, "tag", place.x + measures.cell_pad),)
    return Box(
        "share",
        *place,
        state="joint" if len(share.owners) > 1 else "exclusive" if share.kind == "held" else share.kind,
        owner=share.owners[0] if len(share.owners) == 1 else None,
        title=share_title(plan.picture, zone, memory, share),
        texts=texts,
    )


class Group(NamedTuple):
    """Zones in the frame of their `socket`, or a zone without a frame."""

    socket: int | None
    zones: tuple[Zone, ...]

    def columns(self, across: int) -> int:
        """The zones side by side."""
        return min(across, len(self.zones))

    def width(self, measures: Measures, across: int, zone_x: int) -> int:
        """The width, frame included."""
        columns = self.columns(across)
        frame = 0 if self.socket is None else 2 * measures.pad_x
        return columns * zone_x + (columns - 1) * measures.gap_x + frame


class Rows(NamedTuple):
    """The rows, the number of zones across, and the width of each."""

    rows: tuple[tuple[Group, ...], ...]
    across: int
    zone_x: int

    def width(self, measures: Measures) -> int:
        """The width of the widest row."""
        return max((_width(measures, row, self.across, self.zone_x) for row in self.rows), default=0)


def arrange(plan: Plan) -> Rows:
    """As many zones across as fit, in rows of about the same length."""
    groups = tuple(_groups(plan.picture.zones))
    measures = plan.measures
    most = max(1, min(measures.zones_across, len(plan.picture.zones)))
    for most_across in range(most, 0, -1):
        across = _even(groups, most_across)
        rows = tuple(_rows(groups, across))
        zone_width = wanted_zone(plan, across)
        if measures.width is None:
            return Rows(rows, across, zone_width)
        # What is left of the width once there is a column of no width for every zone.
        left = measures.width - max(_width(measures, row, across, 0) for row in rows)
        zone_x = min(zone_width, left // across)
        if zone_x >= measures.min_zone or across == 1:
            return Rows(rows, across, zone_x)
    raise AssertionError("unreachable: one zone across always fits")


def _width(measures: Measures, row: tuple[Group, ...], across: int, zone_x: int) -> int:
    return sum(group.width(measures, across, zone_x) for group in row) + (len(row) - 1) * measures.gap_x


def _groups(zones: tuple[Zone, ...]) -> Iterator[Group]:
    """A group for each socket with several zones; a zone of several sockets is a group of its own."""
    of_socket: dict[int, list[Zone]] = {}
    for zone in zones:
        socket = _only_socket(zone)
        if socket is not None:
            of_socket.setdefault(socket, []).append(zone)
    for zone in zones:
        socket = _only_socket(zone)
        if socket is None or len(of_socket[socket]) == 1:
            yield Group(None, (zone,))
        elif of_socket[socket][0] is zone:
            yield Group(socket, tuple(of_socket[socket]))


def _only_socket(zone: Zone) -> int | None:
    return zone.sockets[0].id if len(zone.sockets) == 1 else None


def _even(groups: tuple[Group, ...], across: int) -> int:
    """The number of columns, at most `across`, that fills the last row best: 3 and 3 instead of 4 and 2.

    With sockets it is a multiple of the largest socket, or a part of it.
    """
    largest = max((len(group.zones) for group in groups), default=1)
    if largest > across:
        return balanced(largest, across)
    return balanced(len(groups), across) if largest == 1 else across // largest * largest


def _rows(groups: tuple[Group, ...], across: int) -> Iterator[tuple[Group, ...]]:
    row: list[Group] = []
    for group in groups:
        taken = sum(member.columns(across) for member in row)
        if row and taken + group.columns(across) > across:
            yield tuple(row)
            row = []
        row.append(group)
    if row:
        yield tuple(row)
