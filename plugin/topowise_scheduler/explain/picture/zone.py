"""Places a NUMA node in its frame: its CPUs, its memory, its devices."""

from __future__ import annotations

from topowise_scheduler.explain.picture import cpus, devices, rows
from topowise_scheduler.explain.picture.captions import joined
from topowise_scheduler.explain.picture.contents import Zone
from topowise_scheduler.explain.picture.flow import Flow
from topowise_scheduler.explain.picture.plan import Plan
from topowise_scheduler.explain.picture.scene import Box, Kind


def place(plan: Plan, zone: Zone, x: int, y: int, width: int, *, names_socket: bool) -> Box:
    """The zone, as high as it needs."""
    measures = plan.measures
    flow = framed(plan, f"NUMA node {zone.id}", x, y, width, _socket(zone) if names_socket else "")
    cpus.place(flow, plan, zone)
    for number, memory in enumerate(zone.memory):
        flow.skip(measures.section)
        if zone.group and not number:
            flow.line("aside", joined(zone))
        rows.place(flow, plan, zone, memory)
    for group in zone.devices:
        flow.skip(measures.section)
        devices.place(flow, plan, group)
    return frame(plan, "zone", flow, x, y, width)


def framed(plan: Plan, heading: str, x: int, y: int, width: int, figure: str = "") -> Flow:
    """The inside of a frame, below its heading."""
    measures = plan.measures
    top = y if measures.heading_on_edge else y + measures.pad_y
    flow = Flow(measures, x + measures.pad_x, top, width - 2 * measures.pad_x)
    flow.line("heading", heading, figure)
    flow.skip(measures.after_caption)
    return flow


def frame(plan: Plan, kind: Kind, flow: Flow, x: int, y: int, width: int) -> Box:
    """The frame around what is in the flow."""
    height = flow.y + plan.measures.pad_y - y
    return Box(kind, x, y, width, height, texts=tuple(flow.texts), boxes=tuple(flow.boxes))


def _socket(zone: Zone) -> str:
    """The socket, if there is only one."""
    ids = [socket.id for socket in zone.sockets if socket.id is not None]
    return f"socket {ids[0]}" if len(ids) == 1 else ""
