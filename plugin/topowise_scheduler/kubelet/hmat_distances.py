"""Computes distances of NUMA nodes from the ACPI HMAT, in the unit of the SLIT, whose local distance is 10.

The SLIT contains what a firmware author wrote, and often has equal entries for a second socket and a CXL expander. HMAT
has each node's memory latency and bandwidth from its best CPUs, the initiators. By the definition of the SLIT, a
distance is 10 times the latency from there over the latency of the initiator's own memory. Without latencies, the ratio
of bandwidths replaces it. All other pairs keep their SLIT distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topowise_scheduler.kubelet.machine import NumaNode

Rows = tuple[tuple[int, ...], ...]

_LOCAL: Final = 10
_MAX_DISTANCE: Final = 255
_DEFAULT_REMOTE: Final = 20


def hmat_distances(nodes: Sequence[NumaNode], distances: Rows | None) -> Rows | None:
    """Returns the distances by position, or None without measurements that differ from the SLIT."""
    if not any(node.initiators for node in nodes):
        return None
    positions = {node.id: position for position, node in enumerate(nodes)}
    rows = [
        list(distances[row])
        if distances
        else [_LOCAL if row == column else _DEFAULT_REMOTE for column in range(len(nodes))]
        for row in range(len(nodes))
    ]
    for at, node in enumerate(nodes):
        for initiator in node.initiators:
            source = positions.get(initiator)
            if source is None or source == at:
                continue
            measured = _relative(nodes[source], node)
            if measured:
                rows[source][at] = rows[at][source] = measured
    measured_rows = tuple(map(tuple, rows))
    return None if measured_rows == distances else measured_rows


def _relative(source: NumaNode, target: NumaNode) -> int:
    """Returns the distance from the initiator's latencies or bandwidths, rounded half up; 0 if unmeasured."""
    if source.id not in source.initiators:
        return 0
    if source.read_latency and target.read_latency:
        far, near = target.read_latency, source.read_latency
    else:
        far, near = source.read_bandwidth, target.read_bandwidth
    if not far or not near:
        return 0
    return max(_LOCAL, min(_MAX_DISTANCE, (2 * _LOCAL * far + near) // (2 * near)))
