"""The NUMA nodes of the devices of a node, from its NodeResourceTopology."""

from __future__ import annotations

from collections.abc import Collection

from topowise.attributes import pcie_roots
from topowise.claimed_devices import NumaNodes
from topowise.errors import ParseError


def numa_nodes_of(node_ids: Collection[int], text: str) -> NumaNodes:
    """Returns the NUMA nodes of a node's devices; `text` is the attribute `topowise.io/pcie-roots`."""
    try:
        roots = pcie_roots.read(text)
    except ParseError:
        # Devices with a NUMA node in their attributes do not need the roots.
        roots = {}
    near = {root: (node,) for root, node in roots.items() if node in node_ids and node is not None}
    function = pcie_roots.function_nodes(roots)
    return NumaNodes(node_ids, lambda address: node if (node := function(address)) in node_ids else None, near)


def named(nodes: Collection[int]) -> str:
    """Returns NUMA nodes in words, "NUMA nodes 0, 1"."""
    return f"NUMA node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, sorted(nodes)))}"
