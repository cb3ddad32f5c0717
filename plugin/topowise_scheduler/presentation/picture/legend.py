"""The legend below the zones: the key, the distances of the zones, and the allocations of each pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from topowise_scheduler.presentation.picture.captions import STATES, holds, nodes, owner_title, pods_without_resources
from topowise_scheduler.presentation.picture.contents import Owner, Picture
from topowise_scheduler.presentation.picture.flow import Flow
from topowise_scheduler.presentation.picture.marks import Place, centred, mark, mark_x
from topowise_scheduler.presentation.picture.plan import Plan
from topowise_scheduler.presentation.picture.scene import Box, Style, Text

_HEAT_LEVELS: Final = 4
_TALL: Final = 2
_LONG: Final = 20
_MOST_COLUMNS: Final = 3
# With more zones, distances are grouped.
_FEW: Final = 8

_Fill = Callable[[Flow, Plan], None]


def place(flow: Flow, plan: Plan) -> None:
    """Places key and distances beside the pods, or above them if the space is narrow or the pods are few."""
    measures = plan.measures
    sides: list[_Fill] = [_key, _distances] if _has_distances(plan.picture) else [_key]
    gap = max(2, measures.gap_x)
    side = max(measures.side, _matrix_x(plan) + 2 * measures.panel_x)
    rest = flow.width - side - gap
    if rest >= measures.entry + 2 * measures.panel_x:
        left = _column(plan, sides, flow.x, flow.y, side)
        right = _column(plan, [_pods], flow.x + side + gap, flow.y, rest)
        if right[-1].bottom - flow.y <= _TALL * (left[-1].bottom - flow.y):
            _add(flow, _level([left, right]))
            return
        if len(sides) > 1:
            x = flow.x + measures.side + gap
            key = _column(plan, [_key], flow.x, flow.y, measures.side)
            _add(flow, _level([key, _column(plan, [_distances], x, flow.y, flow.x + flow.width - x)]))
            flow.skip(max(1, measures.gap_y))
            sides = []
    _add(flow, _column(plan, [*sides, _pods], flow.x, flow.y, flow.width))


def wanted_width(plan: Plan) -> int:
    """The width that keeps a long list of pods from becoming much longer than wide."""
    columns = min(_MOST_COLUMNS, -(-len(plan.picture.owners) // _LONG))
    return columns * (plan.measures.entry + plan.measures.gap_x) + 2 * plan.measures.panel_x


def _column(plan: Plan, fills: Sequence[_Fill], x: int, y: int, width: int) -> list[Box]:
    """Panels below each other."""
    measures = plan.measures
    panels = []
    for fill in fills:
        inside = Flow(measures, x + measures.panel_x, y + measures.panel_y, width - 2 * measures.panel_x)
        fill(inside, plan)
        height = inside.y + measures.panel_y - y
        panels.append(Box("panel", x, y, width, height, texts=tuple(inside.texts), boxes=tuple(inside.boxes)))
        y += height + max(1, measures.gap_y)
    return panels


def _level(columns: list[list[Box]]) -> list[Box]:
    """Columns that end together."""
    lowest = max(column[-1].bottom for column in columns)
    for column in columns:
        column[-1] = msgspec.structs.replace(column[-1], height=lowest - column[-1].y)
    return [box for column in columns for box in column]


def _add(flow: Flow, boxes: Sequence[Box]) -> None:
    for box in boxes:
        flow.add(box)


def _key(flow: Flow, plan: Plan) -> None:
    """The fills that occur in the picture."""
    _heading(flow, plan, "Key")
    for state in _states(plan.picture):
        _entry(flow, plan, state, None, STATES[state])


def _states(picture: Picture) -> list[str]:
    states: set[str] = set()
    for zone in picture.zones:
        states.update(thread.state for thread in zone.threads if thread.owner is None)
        for memory in zone.memory:
            for share in memory.shares:
                if share.kind != "held":
                    states.add(share.kind)
                elif len(share.owners) != 1:
                    states.add("joint" if share.owners else "exclusive")
    devices = [device for zone in picture.zones for resource in zone.devices for device in resource.devices]
    devices += [device for resource in picture.elsewhere for device in resource.devices]
    for device in devices:
        if device.is_held and device.owner is None:
            states.add("exclusive")
        elif not device.is_held:
            states.add("free" if device.is_healthy else "unhealthy")
    return [state for state in STATES if state in states]


def _entry(flow: Flow, plan: Plan, state: str, owner: int | None, text: str, title: str = "") -> None:
    """A mark and what it means."""
    measures = plan.measures
    line = measures.faces["name" if owner is not None else "about"].line
    place = Place(flow.x, flow.y + (line - measures.cell_y) // 2, mark_x(plan), measures.cell_y)
    flow.boxes.append(mark(plan, "swatch", place, state, owner, title))
    flow.line("about" if owner is None else "name", text, indent=mark_x(plan) + measures.space)


def _has_distances(picture: Picture) -> bool:
    return picture.distances is not None and len(picture.zones) > 1


def _matrix_x(plan: Plan) -> int:
    return (len(plan.picture.zones) + 1) * plan.heat_x if _has_distances(plan.picture) else 0


def _distances(flow: Flow, plan: Plan) -> None:
    """A row for each zone; the farther, the stronger the fill. As phrases if the table is too wide."""
    picture = plan.picture
    _heading(flow, plan, "Distances")
    rows = picture.distances or ()
    ids = [str(zone.id) for zone in picture.zones]
    if _matrix_x(plan) > flow.width:
        for row_id, row in zip(ids, rows, strict=True):
            flow.lines("note", [f"from {row_id}", *_in_words(picture, row)])
        return
    far = max(value for row in rows for value in row)
    place = Place(flow.x, flow.y, plan.heat_x, plan.measures.heat_y)
    for zone_id in ids:
        place = place._replace(x=place.x + place.width)
        flow.texts.append(_number(plan, place, zone_id, "id"))
    for row_id, row in zip(ids, rows, strict=True):
        place = place._replace(x=flow.x, y=place.y + place.height)
        flow.texts.append(_number(plan, place, row_id, "id"))
        for column_id, value in zip(ids, row, strict=True):
            place = place._replace(x=place.x + place.width)
            title = f"from node {row_id} to node {column_id}: {value}"
            text = _number(plan, place, str(value), "value")
            flow.add(Box("heat", *place, state=str(_heat(value, far)), title=title, texts=(text,)))


def _in_words(picture: Picture, row: Sequence[int]) -> list[str]:
    """The distance of each zone; many zones are grouped by distance."""
    ids = [zone.id for zone in picture.zones]
    if len(ids) <= _FEW:
        return [f"{zone_id} is {value}" for zone_id, value in zip(ids, row, strict=True)]
    by_value: dict[int, list[int]] = {}
    for zone_id, value in zip(ids, row, strict=True):
        by_value.setdefault(value, []).append(zone_id)
    return [
        f"{nodes(zone_ids)} {'is' if len(zone_ids) == 1 else 'are'} {value}"
        for value, zone_ids in sorted(by_value.items())
    ]


def _number(plan: Plan, place: Place, text: str, style: Style) -> Text:
    return centred(plan, place, text, style, place.x + place.width - plan.measures.chip_pad, "end")


def _heat(value: int, far: int) -> int:
    """0 for the zone itself (distance 10 by definition), then 1 to _HEAT_LEVELS."""
    return 0 if value <= 10 else 1 + (value - 11) * _HEAT_LEVELS // max(1, far - 10)


def _pods(flow: Flow, plan: Plan) -> None:
    """The pods in columns, each with its allocations."""
    measures, picture = plan.measures, plan.picture
    _heading(flow, plan, "Pods")
    owners = list(enumerate(picture.owners))
    if owners:
        count = max(1, min((flow.width + measures.gap_x) // (measures.entry + measures.gap_x), len(owners)))
        gap = max(2, measures.gap_x)
        width = (flow.width - (count - 1) * gap) // count
        length = -(-len(owners) // count)
        top = flow.y
        for number in range(count):
            column = Flow(measures, flow.x + number * (width + gap), top, width)
            for owner, pod in owners[number * length : (number + 1) * length]:
                _pod(column, plan, owner, pod)
            flow.texts += column.texts
            flow.boxes += column.boxes
            flow.y = max(flow.y, column.y)
    note = pods_without_resources(picture)
    if note:
        flow.line("about", note)


def _pod(flow: Flow, plan: Plan, owner: int, pod: Owner) -> None:
    measures = plan.measures
    _entry(flow, plan, "exclusive", owner, pod.name, owner_title(pod))
    flow.lines("note", holds(pod), indent=mark_x(plan) + measures.space)
    flow.skip(measures.section // 2)


def _heading(flow: Flow, plan: Plan, text: str) -> None:
    flow.line("heading", text)
    flow.skip(plan.measures.after_caption)
