"""Places a NUMA node in its frame: its CPUs, its memory, its devices.

CPUs are threads in cores, cores in rows, rows in caches where a zone has several. Devices are a chip with its id for
each, or a cell if there are too many. Of devices of resource claims (DRA) the report has numbers, and the kubelet model
has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from topowise import attributes, nrt
from topowise.text import escaped
from topowise_scheduler.explain.picture import rows
from topowise_scheduler.explain.picture.captions import (
    cpus_caption,
    device_title,
    devices_figure,
    joined,
    nodes,
    tag,
    thread_title,
)
from topowise_scheduler.explain.picture.contents import Cache, Core, Device, Devices, Picture, Thread, Zone
from topowise_scheduler.explain.picture.flow import Flow, Place, Plan, balanced, centred, mark, mark_x
from topowise_scheduler.explain.picture.scene import Box, Kind, Text
from topowise_scheduler.explain.text import plural
from topowise_scheduler.report.budget import MAX_DEVICES
from topowise_scheduler.report.synthetic_machine import ZoneAmount, amounts_of_zones


def place_cpus(flow: Flow, plan: Plan, zone: Zone) -> None:
    """All CPUs of the zone, under a caption."""
    if not zone.threads:
        flow.line("caption", "no CPUs")
        return
    long, short, figure = cpus_caption(zone)
    flow.line("caption", long, figure, shorter=short)
    flow.skip(plan.measures.after_caption)
    for number, socket in enumerate(zone.sockets):
        if len(zone.sockets) > 1:
            flow.skip(plan.measures.after_caption if number else 0)
            flow.line("note", f"socket {socket.id}")
        _caches(flow, plan, socket.caches)


def _caches(flow: Flow, plan: Plan, caches: tuple[Cache, ...]) -> None:
    """Caches beside each other while they fit."""
    measures = plan.measures
    left, end = flow.x + plan.label_x, flow.x + flow.width
    x, y = left, flow.y
    for cache in caches:
        edges = 2 * _frame(plan, cache)
        fit = max(1, (end - left - edges + measures.core_gap) // (plan.core_x + measures.core_gap))
        columns = balanced(len(cache.cores), fit)
        if x > left and x + plan.across(columns) + edges > end:
            x, y = left, flow.y + measures.cache_gap * bool(edges)
        if x == left:
            _row_labels(flow, plan, cache, columns, y)
        box = _cache(plan, cache, columns, x, y)
        flow.add(box)
        x = box.right + measures.cache_gap


def _cache(plan: Plan, cache: Cache, columns: int, x: int, y: int) -> Box:
    """The cores in rows; a cache that has no id has no frame either."""
    pad = _frame(plan, cache)
    cores = []
    top = y + pad
    for start in range(0, len(cache.cores), columns):
        row = cache.cores[start : start + columns]
        for column, core in enumerate(row):
            cores.append(_core(plan, core, x + pad + column * (plan.core_x + plan.measures.core_gap), top))
        top += _row_y(plan, row) + plan.measures.core_gap
    bottom = top - plan.measures.core_gap + pad
    title = "" if cache.id is None else f"L3 cache {cache.id}: {plural(len(cache.cores), 'core')}"
    width = plan.across(columns) + 2 * pad
    return Box("cache", x, y, width, bottom - y, state="framed" if pad else "", title=title, boxes=tuple(cores))


def _frame(plan: Plan, cache: Cache) -> int:
    return 0 if cache.id is None else plan.measures.cache_pad


def _row_y(plan: Plan, row: tuple[Core, ...]) -> int:
    return max(len(core.threads) for core in row) * plan.measures.cell_y + 2 * plan.measures.core_pad


def _row_labels(flow: Flow, plan: Plan, cache: Cache, columns: int, y: int) -> None:
    """The id of the first CPU of each row of cells, where the cells have no room for ids."""
    if not plan.label_x:
        return
    for start in range(0, len(cache.cores), columns):
        for number, thread in enumerate(cache.cores[start].threads):
            if thread.id is not None:
                top = y + number * plan.measures.cell_y
                flow.texts.append(Text(flow.x + plan.label_x - 1, top, str(thread.id), "id", "end"))
        y += _row_y(plan, cache.cores[start : start + columns]) + plan.measures.core_gap


def _core(plan: Plan, core: Core, x: int, y: int) -> Box:
    measures = plan.measures
    pad = measures.core_pad
    cells = [
        _cell(plan, thread, Place(x + pad, y + pad + number * measures.cell_y, plan.cell_x, measures.cell_y))
        for number, thread in enumerate(core.threads)
    ]
    return Box("core", x, y, plan.core_x, len(cells) * measures.cell_y + 2 * pad, boxes=tuple(cells))


def _cell(plan: Plan, thread: Thread, place: Place) -> Box:
    """The id, if there is space for it, and the tag of the pod that has the CPU."""
    title = thread_title(plan.picture, thread)
    if not plan.measures.cell_ids or thread.id is None:
        return mark(plan, "cpu", place, thread.state, thread.owner, title)
    pad = plan.measures.cell_pad
    texts = [centred(plan, place, str(thread.id), "id", place.x + pad + plan.id_x, "end")]
    if thread.owner is not None:
        texts.append(centred(plan, place, tag(thread.owner), "tag", place.x + place.width - pad - plan.tag_x))
    return Box("cpu", *place, state=thread.state, owner=thread.owner, title=title, texts=tuple(texts))


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


def place_devices(flow: Flow, plan: Plan, devices: Devices) -> None:
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


def place(plan: Plan, zone: Zone, x: int, y: int, width: int, *, names_socket: bool) -> Box:
    """The zone, as high as it needs."""
    measures = plan.measures
    flow = framed(plan, f"NUMA node {zone.id}", x, y, width, _socket(zone) if names_socket else "")
    place_cpus(flow, plan, zone)
    for number, memory in enumerate(zone.memory):
        flow.skip(measures.section)
        if zone.group and not number:
            flow.line("aside", joined(zone))
        rows.place(flow, plan, zone, memory)
    for group in zone.devices:
        flow.skip(measures.section)
        place_devices(flow, plan, group)
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
