"""Maps devices of podresources to PCI functions. Pure.

Plug-ins choose device ids freely. SR-IOV's and AMD's use PCI addresses, NVIDIA's UUIDs and `UUID::N` where several pods
share a GPU, Intel's GPU plug-in `card0-1`; other plug-ins use the driver's device name. All of these lead to a
function. A MIG device, an IOMMU group and a number that the plug-in assigned do not, and such devices are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from topowise import pci
from topowise.attributes import pci_devices
from topowise.attributes.pci_devices import Located, Written
from topowise_exporter.kubelet.allocations import Device
from topowise_exporter.machine.inventory import PciFunction

_NVIDIA_REPLICA: Final = re.compile(r"(.+)::[0-9]+")
_INTEL_SHARE: Final = re.compile(r"(card[0-9]+)-[0-9]+")


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
