"""The devices of a pod's claims on a node, and their NUMA nodes from its NodeResourceTopology."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from topowise.attributes import pci_devices
from topowise.claimed_devices import Location, NumaNodes
from topowise.errors import ParseError
from topowise_scheduler.options.claims.objects import DeviceID, DeviceRequestAllocationResult


class ClaimedDevice(NamedTuple):
    """A device of a pod's claim. `location` is None for a device that is not on the node, such as a device of the
    network."""

    id: DeviceID
    location: Location | None


class ClaimedDevices(NamedTuple):
    """The devices of a pod's claims on a node, without devices with admin access. `is_allocated`: all claims have their
    allocation; otherwise a part is predicted. `problem`: why the devices are not known, "" if they are. `is_short`:
    the node is known to lack devices for the claims, which `problem` says as well. `results` are the predicted devices
    by claim."""

    devices: tuple[ClaimedDevice, ...] = ()
    is_allocated: bool = False
    problem: str = ""
    is_short: bool = False
    results: Mapping[str, tuple[DeviceRequestAllocationResult, ...]] = {}


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
