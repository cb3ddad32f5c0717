"""PCI functions of the devices of podresources, and the zones above and below NUMA nodes that follow from them. Pure.

Plug-ins choose device ids freely. SR-IOV's and AMD's use PCI addresses, NVIDIA's UUIDs and `UUID::N` where several pods
share a GPU, Intel's GPU plug-in `card0-1`; other plug-ins use the driver's device name. All of these lead to a
function. A MIG device, an IOMMU group and a number that the plug-in assigned do not, and such devices are left out.

Zones are processors, and the PCIe root complexes of devices. The API allows `parent` and any `type`, but today's
consumers read zones of type Node only. Some consumers add up the resources of all zones without a look at the type. So
zones of other types have no resources: nothing is counted twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from topowise import attributes, nrt, pci
from topowise.attributes import devices as device_ids
from topowise.attributes import pci_devices
from topowise.attributes.pci_devices import Located, Written
from topowise_exporter.dra.slices import DeviceLocations
from topowise_exporter.kubelet.allocations import Device
from topowise_exporter.machine.inventory import Machine, PciFunction

_NVIDIA_REPLICA: Final = re.compile(r"(.+)::[0-9]+")
_INTEL_SHARE: Final = re.compile(r"(card[0-9]+)-[0-9]+")
SOCKET: Final = "Socket"
PCIE_ROOT: Final = "PCIeRoot"


@lru_cache(maxsize=2)
def written(
    functions: tuple[PciFunction, ...], names: tuple[tuple[str, str], ...], devices: tuple[Device, ...]
) -> Written:
    """Returns the text of `topowise.io/pci`. Cached: functions and devices of a node hardly ever change."""
    return pci_devices.write(located(functions, names, devices))


@lru_cache(maxsize=2)
def located(
    functions: tuple[PciFunction, ...], names: tuple[tuple[str, str], ...], devices: tuple[Device, ...]
) -> Mapping[str, Located]:
    """Returns the PCI function of each device, by device id; `names` are Machine.pci_names."""
    functions_by_address = {
        function.address: Located(function.address, pci.Place(function.path, function.numa_node))
        for function in functions
        if function.path
    }
    by_name = dict(names)
    function_of_device: dict[str, Located] = {}
    for device in devices:
        for spelling in _spellings(device.id):
            place = functions_by_address.get(by_name.get(spelling, spelling))
            if place is not None:
                function_of_device[device.id] = place
                break
    return function_of_device


def _spellings(device_id: str) -> list[str]:
    """Returns the id, and the names and addresses that it may stand for."""
    spellings = [device_id]
    # nvidia-smi writes 00000000:3B:00.0.
    numbers = pci.numbers(device_id.lower())
    if numbers:
        domain, bus, slot, function = numbers
        spellings.append(f"{domain:04x}:{bus:02x}:{slot:02x}.{function}")
    for part in (_NVIDIA_REPLICA, _INTEL_SHARE):
        match = part.fullmatch(device_id)
        if match is not None:
            spellings.append(match[1])
    return spellings


def nested(
    zones: Iterable[nrt.Zone], machine: Machine, located: Mapping[str, Located], devices: Iterable[Device]
) -> Iterator[nrt.Zone]:
    """Returns the zones with their processors as parents, the processors, and the root complexes that have devices."""
    socket_of_zone = {
        nrt.zone_name(node.id): node.sockets[0]
        for node in machine.nodes
        if len(node.sockets) == 1 and node.sockets[0] >= 0
    }
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


def _socket_name(socket: int) -> str:
    return f"socket-{socket}"
