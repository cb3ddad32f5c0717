"""The devices of a pod's claims on a node, and their NUMA nodes from its NodeResourceTopology."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from topowise.attributes import pci_devices
from topowise.claimed_devices import Location, NumaNodes
from topowise.errors import ParseError
from topowise_scheduler.options.claims.objects import AllocationResult, DeviceID, DeviceRequestAllocationResult


class ClaimedDevice(NamedTuple):
    """A device of a pod's claim. `location` is None for a device that is not on the node, such as a device of the
    network."""

    id: DeviceID
    location: Location | None


class ClaimedDevices(NamedTuple):
    """The devices of a pod's claims on a node, without devices with admin access. `is_allocated`: all claims have their
    allocation; otherwise a part is chosen here, or by kube-scheduler. `problem`: why the devices are not known, "" if
    they are. `is_short`: no devices can be allocated on the node now, which `problem` says as well. `allocations` are
    those that are chosen here, by claim."""

    devices: tuple[ClaimedDevice, ...] = ()
    is_allocated: bool = False
    problem: str = ""
    is_short: bool = False
    allocations: Mapping[str, AllocationResult] = {}


Taken = Sequence[tuple[str, AllocationResult]]
"""Allocations that are only thought of, each with its claim: a pod that shares the claim gets these devices."""


def all_results(allocations: Mapping[str, AllocationResult]) -> list[DeviceRequestAllocationResult]:
    """Returns the devices of allocations by claim."""
    return [result for allocation in allocations.values() for result in allocation.devices.results or ()]


def numa_nodes_of(node_ids: Collection[int], text: str) -> NumaNodes:
    """Returns the NUMA nodes of a node's devices; `text` is the attribute `topowise.io/pcie-roots`."""
    try:
        roots = pci_devices.read_roots(text)
    except ParseError:
        # Devices with a NUMA node in their attributes do not need the roots.
        roots = {}
    near = {root: (node,) for root, node in roots.items() if node in node_ids and node is not None}
    function = pci_devices.function_nodes(roots)
    return NumaNodes(node_ids, lambda address: node if (node := function(address)) in node_ids else None, near)


def named(nodes: Collection[int]) -> str:
    """Returns NUMA nodes in words, "NUMA nodes 0, 1"."""
    return f"NUMA node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, sorted(nodes)))}"
