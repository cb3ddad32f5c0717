"""What a placement is scored by: the zones of the nodes on which a pod fits, and where on them it would go.

Invariant: all nodes of one `Candidates` have equally many NUMA nodes and the same traits, and every array has the nodes
as its last axis, so that a strategy is a few numpy expressions over all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Amounts, Kind, Needs
from topowise_scheduler.engine.node_groups import NodeGroup
from topowise_scheduler.engine.node_vector import CACHES, CPU, DISTANCES, NEARNESS, Key
from topowise_scheduler.shape import Shape


@dataclass(frozen=True, slots=True)
class AlignedContainer:
    """One container, and what its hint is about.

    `requests` are named as in Kubernetes: "cpu" in whole exclusive CPUs, "memory" and "hugepages-*" in bytes, devices
    counted. What the managers of these nodes do not align is left out, and so is what the container does not ask for.
    A plain init container (`kind` "init") has ended before those after it run, and leaves them what it had.
    """

    name: str
    kind: Kind
    requests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Nodes on which a pod fits, before it is there.

    `rows` (nodes,) are rows of the engine. `distances` (zones, zones, nodes) is the SLIT, 10 and 20 where a node does
    not tell. `allocatable` and `available` map a resource to (zones, nodes) int64 by position: what a zone can give to
    pods, and what of it nobody holds; 0 where a node or a zone has none of it. `containers` are in the order of
    admission. `placed` and `aligned` (containers, nodes) say where each will lie: the zones of its CPUs, memory and
    devices, bit z for position z, and whether the kubelet prefers that. What could be aligned but is not pinned at all
    lies on all zones; 0 is for what asks for nothing of a zone. With `by_pod` zones are chosen
    for the pod as a whole. `max_numa_nodes` is the nodes' own topologyManagerMaxNUMANodes, 0 if they do not tell.
    `nearness` is like distances, by measured speed where a node tells any, None if none does. `caches` (zones, nodes)
    are the CPUs free in one L3 cache where the CPU manager aligns to them, else 0; None if none does.
    """

    rows: NDArray[np.int32]
    zones: int
    distances: NDArray[np.int32]
    allocatable: Mapping[str, NDArray[np.int64]]
    available: Mapping[str, NDArray[np.int64]]
    containers: tuple[AlignedContainer, ...]
    placed: NDArray[np.int64]
    aligned: NDArray[np.bool_]
    by_pod: bool = False
    max_numa_nodes: int = 0
    nearness: NDArray[np.int32] | None = None
    caches: NDArray[np.int64] | None = None


def candidates_of(
    group: NodeGroup,
    shape: Shape,
    needs: Needs,
    columns: NDArray[np.int32],
    rows: NDArray[np.int32],
    placed: NDArray[np.int64],
    aligned: NDArray[np.bool_],
) -> Candidates:
    """Some columns of a group as candidates."""
    zones, hardware = group.traits.zones, group.hardware[columns]
    devices = group.counts.names("device")
    allocatable: dict[str, NDArray[np.int64]] = {}
    available: dict[str, NDArray[np.int64]] = {}
    for name, key in _sections(group, devices):
        allocatable[name] = _taken(group.kinds.empty.section(key)[:zones], hardware)
        available[name] = _taken(group.counts.section(key)[:zones], columns)
    if not aligned.all():
        placed = np.where((placed == 0) & ~aligned, (1 << min(zones, 63)) - 1, placed)
    fixed = group.kinds.fixed
    distances = fixed.section(DISTANCES).take(hardware, axis=1).astype(np.int32)
    nearness = None
    if NEARNESS in fixed:
        measured = fixed.section(NEARNESS).take(hardware, axis=1).astype(np.int32)
        # No distance is 0, so that is a node on which nothing was measured.
        nearness = np.where(measured[0] > 0, measured, distances).reshape(zones, zones, len(hardware))
    return Candidates(
        rows=rows,
        zones=zones,
        distances=distances.reshape(zones, zones, len(hardware)),
        allocatable=allocatable,
        available=available,
        containers=_containers(group, shape, needs, devices),
        placed=placed,
        aligned=aligned,
        by_pod=group.traits.policy != "none" and group.traits.scope == "pod",
        max_numa_nodes=group.traits.max_numa_nodes,
        nearness=nearness,
        caches=group.counts.section(CACHES).take(columns, axis=1) if CACHES in group.counts else None,
    )


def _taken(section: NDArray[np.int64], columns: NDArray[np.int32]) -> NDArray[np.int64]:
    """Some columns of a section; what a node does not have counts as nothing."""
    taken = section.take(columns, axis=1)
    return np.maximum(taken, 0, out=taken)


def _sections(group: NodeGroup, devices: list[str]) -> list[tuple[str, Key]]:
    found: list[tuple[str, Key]] = [("cpu", CPU)] if group.traits.cpu else []
    found += [(name, ("memory", name)) for name in group.counts.names("memory")]
    return found + [(name, ("device", name)) for name in devices]


def _containers(group: NodeGroup, shape: Shape, needs: Needs, devices: list[str]) -> tuple[AlignedContainer, ...]:
    """The containers, with what the managers of these nodes align."""
    found = []
    for container, request in zip(needs.containers, shape.containers, strict=True):
        amounts: Amounts = {}
        if group.traits.cpu and request.cpus:
            amounts["cpu"] = request.cpus
        if group.traits.memory and shape.pinned:
            amounts |= {name: size for name, size in request.memory or () if size}
        amounts |= {name: count for name, count in request.devices if count and name in devices}
        found.append(AlignedContainer(container.name, container.kind, amounts))
    return tuple(found)
