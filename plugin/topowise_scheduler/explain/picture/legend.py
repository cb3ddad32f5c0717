"""The legend below the zones: the key, and the allocations of each pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from topowise_scheduler.explain.picture.captions import STATES, holds, owner_title, pods_without_resources
from topowise_scheduler.explain.picture.contents import Owner, Picture
from topowise_scheduler.explain.picture.flow import Flow, Place, Plan, mark, mark_x
from topowise_scheduler.explain.picture.scene import Box

_TALL: Final = 2
_LONG: Final = 20
_MOST_COLUMNS: Final = 3

_Fill = Callable[[Flow, Plan], None]


def place(flow: Flow, plan: Plan) -> None:
    """Places the key beside the pods, or above them if the space is narrow or the list of pods is long."""
    measures = plan.measures
    gap = max(2, measures.gap_x)
    rest = flow.width - measures.side - gap
    if rest >= measures.entry + 2 * measures.panel_x:
        left = _column(plan, [_key], flow.x, flow.y, measures.side)
        right = _column(plan, [_pods], flow.x + measures.side + gap, flow.y, rest)
        if right[-1].bottom - flow.y <= _TALL * (left[-1].bottom - flow.y):
            _add(flow, _level([left, right]))
            return
    _add(flow, _column(plan, [_key, _pods], flow.x, flow.y, flow.width))


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
