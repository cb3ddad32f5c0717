"""How far NUMA nodes are apart by what was measured (ACPI HMAT), in the unit of the SLIT, of which 10 is local.

The SLIT is what a firmware's author wrote down, and often the same for a second socket and for a CXL expander. HMAT
tells of each node how fast its memory is read from the CPUs that are best for it, the initiators. That is by definition
what a SLIT entry says: 10 times the latency from there over the latency of the initiator's own memory. Where only
bandwidths are told their ratio stands in for it. All other pairs stay as the SLIT has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topowise_scheduler.kubelet.machine import NumaNode

Rows = tuple[tuple[int, ...], ...]

_LOCAL: Final = 10
_MOST: Final = 255
_REMOTE: Final = 20


def nearness(nodes: Sequence[NumaNode], distances: Rows | None) -> Rows | None:
    """Between positions; None where nothing was measured, and the distances are all there is."""
    if not any(node.initiators for node in nodes):
        return None
    positions = {node.id: position for position, node in enumerate(nodes)}
    rows = [
        list(distances[one]) if distances else [_LOCAL if one == other else _REMOTE for other in range(len(nodes))]
        for one in range(len(nodes))
    ]
    for at, node in enumerate(nodes):
        for initiator in node.initiators:
            source = positions.get(initiator)
            if source is None or source == at:
                continue
            measured = _relative(nodes[source], node)
            if measured:
                rows[source][at] = rows[at][source] = measured
    found = tuple(map(tuple, rows))
    return None if found == distances else found


def _relative(source: NumaNode, target: NumaNode) -> int:
    """The target's memory as its initiator sees it beside its own, half up; 0 where that is not known."""
    if source.id not in source.initiators:
        return 0
    if source.read_latency and target.read_latency:
        far, near = target.read_latency, source.read_latency
    else:
        far, near = source.read_bandwidth, target.read_bandwidth
    if not far or not near:
        return 0
    return max(_LOCAL, min(_MOST, (2 * _LOCAL * far + near) // (2 * near)))
