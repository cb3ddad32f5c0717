"""Devices of resource claims (DRA) in a picture: the report has their numbers, the kubelet model has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from topowise import attributes, nrt
from topowise_scheduler.explain.picture.contents import Device, Devices, Picture
from topowise_scheduler.report.budget import MAX_DEVICES
from topowise_scheduler.report.zone_amounts import ZoneAmount, amounts_of_zones


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
