"""Zones above and below NUMA nodes: processors, and the PCIe root complexes that devices hang on. Pure.

The API has `parent` and any `type`, and no consumer of today reads more than zones of type Node. Some add up whatever
has resources without a look at the type, so zones of other types have none: nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from topowise import attributes, nrt
from topowise.attributes import devices as device_ids
from topowise.attributes.pci_devices import Located
from topowise_exporter.kubelet.allocations import Device
from topowise_exporter.machine.inventory import Machine

SOCKET: Final = "Socket"
PCIE_ROOT: Final = "PCIeRoot"


def nested(
    zones: Iterable[nrt.Zone], machine: Machine, located: Mapping[str, Located], devices: Iterable[Device]
) -> Iterator[nrt.Zone]:
    """The zones with their processors as parents, the processors, and the root complexes that have devices."""
    sockets = {nrt.zone_name(node.id): node.sockets[0] for node in machine.nodes if _is_in_one(node.sockets)}
    for zone in zones:
        socket = sockets.get(zone.name)
        yield zone if socket is None else msgspec.structs.replace(zone, parent=_socket_name(socket))
    for socket in sorted(set(sockets.values())):
        yield nrt.Zone(name=_socket_name(socket), type=SOCKET)
    yield from _roots(machine, located, devices)


def _roots(machine: Machine, located: Mapping[str, Located], devices: Iterable[Device]) -> Iterator[nrt.Zone]:
    below: dict[str, list[Device]] = {}
    for device in devices:
        if device.id in located:
            below.setdefault(located[device.id].place.path[0], []).append(device)
    nodes = _nodes_of_roots(machine)
    for root, mine in sorted(below.items()):
        near = nodes.get(root, set())
        text = device_ids.write(device_ids.Device(one.resource, one.id, one.nodes) for one in mine)
        yield nrt.Zone(
            name=root,
            type=PCIE_ROOT,
            parent=nrt.zone_name(min(near)) if len(near) == 1 else "",
            attributes=(nrt.Attribute(attributes.DEVICES, text),),
        )


def _nodes_of_roots(machine: Machine) -> dict[str, set[int]]:
    """The NUMA nodes that the functions of each root complex name; nearly always the same one."""
    there = {node.id for node in machine.nodes}
    found: dict[str, set[int]] = {}
    for function in machine.pci:
        if function.pcie_root is not None and function.numa_node in there:
            found.setdefault(function.pcie_root, set()).add(function.numa_node)
    return found


def _is_in_one(sockets: tuple[int, ...]) -> bool:
    return len(sockets) == 1 and sockets[0] >= 0


def _socket_name(socket: int) -> str:
    return f"socket-{socket}"
