"""Devices of resource claims by NUMA node: how many there are, and how many nobody holds. Pure.

Where a device lies is the driver's word if such a NUMA node exists here, else what the machine knows of its PCI
function, else of its PCIe root: the node that the functions below it agree on. What is near no node, or near several,
is in no zone, and neither is a device that is not given as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from topowise.attributes import CLAIMED_DEVICES
from topowise_exporter.dra.slices import Device, Devices
from topowise_exporter.kubelet.allocations import Claim, PodAllocation
from topowise_exporter.machine.inventory import Machine
from topowise_exporter.zones import Accounts, Amount


class DeviceLocations:
    """Where devices of one machine lie."""

    def __init__(self, machine: Machine) -> None:
        self._nodes = frozenset(node.id for node in machine.nodes)
        self._functions: dict[str, int] = {}
        self._roots: dict[str, set[int]] = {}
        for one in machine.pci:
            # A function may name a node that is left out of the zones.
            if one.numa_node is not None and one.numa_node in self._nodes:
                self._functions[one.address] = one.numa_node
                if one.pcie_root is not None:
                    self._roots.setdefault(one.pcie_root, set()).add(one.numa_node)

    def node_of(self, device: Device) -> int | None:
        """The NUMA node, None if it has none or nobody knows it."""
        if device.numa_node in self._nodes:
            return device.numa_node
        own = self._functions.get(device.pci_bus_id)
        if own is not None:
            return own
        below = [self._roots.get(root, set()) for root in device.pcie_roots]
        # A device that is near several roots, as a CPU, is near a node only if all of them are.
        if below and all(below) and len(near := set[int]().union(*below)) == 1:
            return near.pop()
        return None


def resource_name(driver: str) -> str:
    """The resource of a zone under which the devices of a driver are counted."""
    return CLAIMED_DEVICES + driver


def held(pods: Iterable[PodAllocation]) -> frozenset[Claim]:
    """Each device once, however many pods share the claim."""
    return frozenset(claim for pod in pods for container in pod.containers for claim in container.claims)


def with_devices(accounts: Accounts, devices: Devices, machine: Machine, pods: Iterable[PodAllocation]) -> Accounts:
    """The accounts with a resource more for each driver that has devices on a node."""
    if not devices:
        return accounts
    locations, taken = DeviceLocations(machine), held(pods)
    counts: dict[tuple[int, str], Counter[str]] = {}
    for claim, device in devices.items():
        node_id = locations.node_of(device) if device.is_whole else None
        if node_id is not None:
            count = counts.setdefault((node_id, resource_name(claim.driver)), Counter())
            count["capacity"] += 1
            count["allocatable"] += device.is_open
            count["available"] += device.is_open and claim not in taken
    amounts = {node_id: dict(mine) for node_id, mine in accounts.amounts.items()}
    for (node_id, resource), count in counts.items():
        amounts[node_id][resource] = Amount(count["capacity"], count["allocatable"], count["available"])
    return msgspec.structs.replace(accounts, amounts=amounts)


def held_by_node(
    devices: Devices, machine: Machine, pods: Iterable[PodAllocation]
) -> Mapping[tuple[str, int | None], int]:
    """(driver, NUMA node) -> devices that pods hold; None for those that no slice names or that lie near no node."""
    found: Counter[tuple[str, int | None]] = Counter()
    taken = held(pods)
    if not taken:
        return found
    locations = DeviceLocations(machine)
    for claim in taken:
        device = devices.get(claim)
        found[claim.driver, None if device is None else locations.node_of(device)] += 1
    return found
