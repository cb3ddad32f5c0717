"""The layout: name and facts, the zones in rows, devices outside of zones, and the legend.

One pass from top to bottom: widths are fixed first, heights follow. All positions are whole units of the medium, so the
same code serves pixels and characters (measures.py).
"""

from __future__ import annotations

import msgspec

from topowise_scheduler.explain.picture import legend, zone
from topowise_scheduler.explain.picture.captions import about, label
from topowise_scheduler.explain.picture.contents import Picture
from topowise_scheduler.explain.picture.flow import Flow, Plan, make_plan
from topowise_scheduler.explain.picture.measures import Measures
from topowise_scheduler.explain.picture.rows import Group, Rows, arrange
from topowise_scheduler.explain.picture.scene import Box


def lay_out(picture: Picture, measures: Measures) -> Box:
    """The picture as nested boxes; the outermost box is the canvas at 0, 0."""
    plan = make_plan(picture, measures)
    rows = arrange(plan)
    margin = measures.margin
    width = measures.width or max(
        max(rows.width(measures), legend.wanted_width(plan)) + 2 * margin, measures.min_canvas
    )
    flow = Flow(measures, margin, margin, width - 2 * margin)
    flow.line("node", picture.node)
    flow.lines("about", about(picture))
    for row in rows.rows:
        flow.skip(measures.gap_y)
        _row(flow, plan, rows, row)
    if picture.elsewhere:
        flow.skip(measures.gap_y)
        flow.add(_elsewhere(plan, flow.x, flow.y, rows.width(measures)))
    flow.skip(max(1, measures.gap_y))
    legend.place(flow, plan)
    return Box(
        kind="canvas",
        x=0,
        y=0,
        width=width,
        height=flow.y + margin,
        title=label(picture),
        texts=tuple(flow.texts),
        boxes=tuple(flow.boxes),
    )


def _row(flow: Flow, plan: Plan, rows: Rows, row: tuple[Group, ...]) -> None:
    x, y = flow.x, flow.y
    boxes = []
    for group in row:
        box = _group(plan, rows, group, x, y)
        boxes.append(box)
        x = box.right + plan.measures.gap_x
    for box in _level(boxes):
        flow.add(box)


def _group(plan: Plan, rows: Rows, group: Group, x: int, y: int) -> Box:
    """A zone alone, or the zones of a socket in its frame."""
    if group.socket is None:
        return zone.place(plan, group.zones[0], x, y, rows.zone_x, names_socket=True)
    measures = plan.measures
    width = group.width(measures, rows.across, rows.zone_x)
    flow = zone.framed(plan, f"Socket {group.socket}", x, y, width)
    columns = group.columns(rows.across)
    for start in range(0, len(group.zones), columns):
        if start:
            flow.skip(measures.gap_y)
        top = flow.y
        boxes = [
            zone.place(
                plan, member, flow.x + number * (rows.zone_x + measures.gap_x), top, rows.zone_x, names_socket=False
            )
            for number, member in enumerate(group.zones[start : start + columns])
        ]
        for box in _level(boxes):
            flow.add(box)
    return zone.frame(plan, "socket", flow, x, y, width)


def _level(boxes: list[Box]) -> list[Box]:
    """Boxes of a row, all as high as the highest."""
    height = max(box.height for box in boxes)
    return [msgspec.structs.replace(box, height=height) for box in boxes]


def _elsewhere(plan: Plan, x: int, y: int, width: int) -> Box:
    """Devices that no single zone has."""
    flow = zone.framed(plan, "Near several NUMA nodes or none", x, y, width)
    for number, group in enumerate(plan.picture.elsewhere):
        flow.skip(plan.measures.section if number else 0)
        zone.place_devices(flow, plan, group)
    return zone.frame(plan, "zone", flow, x, y, width)
