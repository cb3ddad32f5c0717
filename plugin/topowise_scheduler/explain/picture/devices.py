"""Places the devices of a resource: a chip with its id for each, or a cell if there are too many."""

from __future__ import annotations

from topowise.text import escaped
from topowise_scheduler.explain.picture.captions import device_title, devices_figure, nodes
from topowise_scheduler.explain.picture.contents import Device, Devices
from topowise_scheduler.explain.picture.flow import Flow
from topowise_scheduler.explain.picture.marks import Place, centred, mark, mark_x
from topowise_scheduler.explain.picture.plan import Plan
from topowise_scheduler.explain.picture.scene import Box


def place(flow: Flow, plan: Plan, devices: Devices) -> None:
    """Places all devices, under a caption."""
    measures = plan.measures
    flow.line("caption", devices.resource, devices_figure(devices.devices))
    flow.skip(measures.after_caption)
    are_chips = len(devices.devices) <= measures.max_chips and all(device.id is not None for device in devices.devices)
    gap = measures.chip_gap if are_chips else measures.core_gap
    height = measures.chip_y if are_chips else measures.cell_y
    x, y = flow.x, flow.y
    for device in devices.devices:
        width = min(flow.width, _chip_x(plan, device)) if are_chips else mark_x(plan)
        if x > flow.x and x + width > flow.x + flow.width:
            x, y = flow.x, flow.y + gap * bool(measures.section)
        where = Place(x, y, width, height)
        title = device_title(plan.picture, devices.resource, device)
        if are_chips:
            flow.add(_chip(plan, device, where, title))
        else:
            flow.add(mark(plan, "swatch", where, _state(device), device.owner, title))
        x += width + gap


def _chip_x(plan: Plan, device: Device) -> int:
    measures = plan.measures
    marked = mark_x(plan) if _has_mark(plan, device) else 0
    return marked + measures.faces["id"].width(_shown(plan, device)) + 2 * measures.chip_pad


def _chip(plan: Plan, device: Device, place: Place, title: str) -> Box:
    """The tag of the pod that has the device, then the id."""
    measures = plan.measures
    boxes: tuple[Box, ...] = ()
    if _has_mark(plan, device):
        boxes = (mark(plan, "swatch", place._replace(width=mark_x(plan)), _state(device), device.owner, title),)
    before = sum(box.width for box in boxes) + measures.chip_pad
    room = place.width - before - measures.chip_pad
    short = measures.faces["id"].elided(_shown(plan, device), room, measures.ellipsis)
    text = centred(plan, place, short, "id", place.x + before)
    state = "" if device.is_healthy else "unhealthy"
    return Box("device", *place, state=state, title=title, texts=(text,), boxes=boxes)


def _has_mark(plan: Plan, device: Device) -> bool:
    return not device.is_free or plan.measures.marks_free


def _shown(plan: Plan, device: Device) -> str:
    near = f" on {nodes(device.zones)}" if len(device.zones) > 1 else ""
    return escaped(f"{device.id}{near}", ascii_only=plan.measures.ascii_only)


def _state(device: Device) -> str:
    if device.is_held:
        return "exclusive"
    return "free" if device.is_healthy else "unhealthy"
