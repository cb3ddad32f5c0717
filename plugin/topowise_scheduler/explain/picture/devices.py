"""Places the devices of a resource: a chip with its id for each, or a cell if there are too many.

Of devices of resource claims (DRA) the report has numbers, and the kubelet model has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from topowise import attributes, nrt
from topowise.text import escaped
from topowise_scheduler.explain.picture.captions import device_title, devices_figure, nodes
from topowise_scheduler.explain.picture.contents import Device, Devices, Picture
from topowise_scheduler.explain.picture.flow import Flow
from topowise_scheduler.explain.picture.marks import Place, centred, mark, mark_x
from topowise_scheduler.explain.picture.plan import Plan
from topowise_scheduler.explain.picture.scene import Box
from topowise_scheduler.report.budget import MAX_DEVICES
from topowise_scheduler.report.synthetic_machine import ZoneAmount, amounts_of_zones


def with_claimed(picture: Picture, topology: nrt.NodeResourceTopology) -> Picture:
    """Adds the devices of DRA drivers to the zones; invalid numbers are left out."""
    devices_of = {numa_id: _devices(zone) for numa_id, zone in nrt.numa_zones(topology)}
    zones = tuple(
        msgspec.structs.replace(zone, devices=(*zone.devices, *devices_of.get(zone.id, ()))) for zone in picture.zones
    )
    return msgspec.structs.replace(picture, zones=zones)


def with_devices(picture: Picture, by_numa_node: Mapping[int, Mapping[str, Sequence[tuple[str, bool]]]]) -> Picture:
    """Adds devices by NUMA node and DRA driver, each with its name and whether a claim has it."""
    zones = tuple(
        msgspec.structs.replace(
            zone,
            devices=(
                *zone.devices,
                *(
                    Devices(
                        attributes.CLAIMED_DEVICES + driver,
                        tuple([Device(name, is_held=is_held) for name, is_held in devices[:MAX_DEVICES]]),
                    )
                    for driver, devices in sorted(by_numa_node.get(zone.id, {}).items())
                ),
            ),
        )
        for zone in picture.zones
    )
    return msgspec.structs.replace(picture, zones=zones)


def _devices(zone: nrt.Zone) -> tuple[Devices, ...]:
    counts = sorted(amounts_of_zones([zone], [])[0].items())
    return tuple(
        Devices(name, _each(count))
        for name, count in counts
        if name.startswith(attributes.CLAIMED_DEVICES) and 0 < count.capacity <= MAX_DEVICES
    )


def _each(count: ZoneAmount) -> tuple[Device, ...]:
    """Allocated devices, then free devices, then tainted devices."""
    allocated, tainted = count.allocatable - count.available, count.capacity - count.allocatable
    return (
        *[Device(None, is_held=True)] * allocated,
        *[Device(None)] * count.available,
        *[Device(None, is_healthy=False)] * tainted,
    )


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
