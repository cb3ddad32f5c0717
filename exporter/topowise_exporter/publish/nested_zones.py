"""Zones above and below NUMA nodes: processors, and the PCIe root complexes of devices. Pure.

The API allows `parent` and any `type`, but today's consumers read zones of type Node only. Some consumers add up the
resources of all zones without a look at the type. So zones of other types have no resources: nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from topowise import attributes, nrt
from topowise.attributes import devices as device_ids
from topowise.attributes.pci_devices import Located
from topowise_exporter.dra.device_counts import DeviceLocations
from topowise_exporter.kubelet.allocations import Device
from topowise_exporter.machine.inventory import Machine

SOCKET: Final = "Socket"
PCIE_ROOT: Final = "PCIeRoot"


def nested(
    zones: Iterable[nrt.Zone], machine: Machine, located: Mapping[str, Located], devices: Iterable[Device]
) -> Iterator[nrt.Zone]:
    """Returns the zones with their processors as parents, the processors, and the root complexes that have devices."""
    socket_of_zone = {nrt.zone_name(node.id): node.sockets[0] for node in machine.nodes if _is_in_one(node.sockets)}
    for zone in zones:
        socket = socket_of_zone.get(zone.name)
        yield zone if socket is None else msgspec.structs.replace(zone, parent=_socket_name(socket))
    for socket in sorted(set(socket_of_zone.values())):
        yield nrt.Zone(name=_socket_name(socket), type=SOCKET)
    yield from _roots(machine, located, devices)


def _roots(machine: Machine, located: Mapping[str, Located], devices: Iterable[Device]) -> Iterator[nrt.Zone]:
    below: dict[str, list[Device]] = {}
    for device in devices:
        if device.id in located:
            below.setdefault(located[device.id].place.path[0], []).append(device)
    nodes = DeviceLocations(machine).roots
    for root, root_devices in sorted(below.items()):
        near = nodes.get(root, set())
        yield nrt.Zone(
            name=root,
            type=PCIE_ROOT,
            parent=nrt.zone_name(min(near)) if len(near) == 1 else "",
            attributes=(nrt.Attribute(attributes.DEVICES, device_ids.write(root_devices)),),
        )


def _is_in_one(sockets: tuple[int, ...]) -> bool:
    return len(sockets) == 1 and sockets[0] >= 0


def _socket_name(socket: int) -> str:
    return f"socket-{socket}"
