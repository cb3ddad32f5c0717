"""Counts devices of resource claims by NUMA node: capacity, allocatable and available. Pure.

A device near no NUMA node or near several (topowise.claimed_devices) is in no zone, and neither is a device that is not
allocated as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from topowise.attributes import CLAIMED_DEVICES
from topowise.claimed_devices import NumaNodes
from topowise_exporter.dra.slices import Devices
from topowise_exporter.kubelet.allocations import Claim, PodAllocation
from topowise_exporter.machine.inventory import Machine
from topowise_exporter.zones import Accounts, Amount


class DeviceLocations(NumaNodes):
    """NUMA nodes of a machine's devices."""

    def __init__(self, machine: Machine) -> None:
        nodes = frozenset(node.id for node in machine.nodes)
        functions: dict[str, int] = {}
        self.roots: dict[str, set[int]] = {}
        """PCIe root -> the NUMA nodes that its functions name; nearly always a single node."""
        for function in machine.pci:
            # A function may name a node that the zones leave out.
            if function.numa_node is not None and function.numa_node in nodes:
                functions[function.address] = function.numa_node
                if function.pcie_root is not None:
                    self.roots.setdefault(function.pcie_root, set()).add(function.numa_node)
        super().__init__(nodes, functions.get, self.roots)


def numa_nodes_of_roots(machine: Machine) -> dict[str, int | None]:
    """Returns the NUMA node of each PCIe root, None for a root whose functions name several NUMA nodes or none."""
    named = DeviceLocations(machine).roots
    roots = {function.pcie_root for function in machine.pci if function.pcie_root is not None}
    return {root: next(iter(named[root])) if len(named.get(root, ())) == 1 else None for root in roots}


def allocated_claims(pods: Iterable[PodAllocation]) -> frozenset[Claim]:
    """Returns the allocated devices, each once, however many pods share the claim."""
    return frozenset(claim for pod in pods for container in pod.containers for claim in container.claims)


def with_devices(accounts: Accounts, devices: Devices, machine: Machine, pods: Iterable[PodAllocation]) -> Accounts:
    """Returns the accounts with an additional resource for each driver that has devices on a node."""
    if not devices:
        return accounts
    locations, allocated = DeviceLocations(machine), allocated_claims(pods)
    counts: dict[tuple[int, str], Counter[str]] = {}
    for claim, device in devices.items():
        node_id = locations.of(device) if device.is_whole else None
        if node_id is not None:
            count = counts.setdefault((node_id, CLAIMED_DEVICES + claim.driver), Counter())
            count["capacity"] += 1
            count["allocatable"] += device.is_open
            count["available"] += device.is_open and claim not in allocated
    amounts = {node_id: dict(of_node) for node_id, of_node in accounts.amounts.items()}
    for (node_id, resource), count in counts.items():
        amounts[node_id][resource] = Amount(count["capacity"], count["allocatable"], count["available"])
    return msgspec.structs.replace(accounts, amounts=amounts)


def held_by_node(
    devices: Devices, machine: Machine, pods: Iterable[PodAllocation]
) -> Mapping[tuple[str, int | None], int]:
    """Returns (driver, NUMA node) -> allocated devices. The node is None for a device without slice or NUMA node."""
    counts: Counter[tuple[str, int | None]] = Counter()
    allocated = allocated_claims(pods)
    if not allocated:
        return counts
    locations = DeviceLocations(machine)
    for claim in allocated:
        device = devices.get(claim)
        counts[claim.driver, None if device is None else locations.of(device)] += 1
    return counts
