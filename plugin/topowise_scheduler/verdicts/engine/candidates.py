"""The input of scoring: the zones of the nodes on which a pod fits, and the pod's placement there.

Invariant: all nodes of a `Candidates` have the same number of NUMA nodes and the same traits, and the nodes are the
last axis of every array. So a strategy is a few numpy expressions over all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Amounts, Kind, Needs
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.hints import Refused
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.report.shape import Shape
from topowise_scheduler.verdicts.engine.node_groups import NodeGroup
from topowise_scheduler.verdicts.engine.node_vector import CACHES, CPU, DISTANCES, NEARNESS, Key

# Values of Ratings.in_cache. BY_COUNTS: a cache has enough free CPUs, and the model has not been asked.
UNREPORTED, SPLIT, BY_COUNTS, SHARED = -1, 0, 1, 2


@dataclass(frozen=True, slots=True)
class AlignedContainer:
    """A container and the requests that its hint covers.

    `requests` have Kubernetes' resource names: "cpu" in whole exclusive CPUs, "memory" and "hugepages-*" in bytes,
    devices by number. They are positive, and lack resources that the managers of these nodes do not align. A plain init
    container (`kind` "init") ends before the next container starts, which can reuse its resources.
    """

    name: str
    kind: Kind
    requests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Nodes on which a pod fits, without the pod.

    `rows` (nodes,) are rows of the engine. `distances` (zones, zones, nodes) is the SLIT, 10 and 20 for an unknown
    SLIT. `allocatable` and `available` map a resource to (zones, nodes) int64 by position: the amount that a zone can
    give to pods, and its free part; 0 where a node or a zone has none. `containers` are in the order of admission.
    `placed` (containers, nodes) are the zones of the container's CPUs, memory and devices, bit z for position z. A
    container that could be aligned but is not pinned has all zones, and 0 means that no request belongs to a zone.
    `aligned` (containers, nodes) is whether the kubelet prefers that placement. With `by_pod` zones are chosen for the
    whole pod. `max_numa_nodes` is the nodes' topologyManagerMaxNUMANodes, 0 if unknown. `nearness` has measured
    distances where a node reports them and the SLIT elsewhere, None without any measurement. `caches` (zones, nodes)
    are the free CPUs of the emptiest L3 cache where the CPU manager aligns to caches, else 0; None if no manager does.
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
    """The candidates of some columns of a group."""
    zones, hardware = group.traits.zones, group.hardware[columns]
    devices = group.arrays.names("device")
    allocatable: dict[str, NDArray[np.int64]] = {}
    available: dict[str, NDArray[np.int64]] = {}
    for name, key in _sections(group, devices):
        allocatable[name] = _taken(group.kinds.empty.section(key)[:zones], hardware)
        available[name] = _taken(group.arrays.section(key)[:zones], columns)
    if not aligned.all():
        # A container without any pinned resource can run on all zones. An int64 has 63 bits for zones.
        placed = np.where((placed == 0) & ~aligned, (1 << min(zones, 63)) - 1, placed)
    fixed = group.kinds.fixed
    distances = fixed.section(DISTANCES).take(hardware, axis=1).astype(np.int32)
    nearness = None
    # Only nodes whose exporter measures memory have this section.
    if NEARNESS in fixed:
        measured = fixed.section(NEARNESS).take(hardware, axis=1).astype(np.int32)
        # No distance is 0, so 0 marks a node without measurements.
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
        caches=group.arrays.section(CACHES).take(columns, axis=1) if CACHES in group.arrays else None,
    )


def _taken(section: NDArray[np.int64], columns: NDArray[np.int32]) -> NDArray[np.int64]:
    """Some columns of a section, with 0 for ABSENT."""
    taken = section.take(columns, axis=1)
    return np.maximum(taken, 0, out=taken)


def _sections(group: NodeGroup, devices: list[str]) -> list[tuple[str, Key]]:
    """The resources of a group with the keys of their sections."""
    sections: list[tuple[str, Key]] = [("cpu", CPU)] if group.traits.cpu else []
    sections += [(name, ("memory", name)) for name in group.arrays.names("memory")]
    return sections + [(name, ("device", name)) for name in devices]


def _containers(group: NodeGroup, shape: Shape, needs: Needs, devices: list[str]) -> tuple[AlignedContainer, ...]:
    """The containers, with the requests that the managers of these nodes align."""
    containers = []
    for container, request in zip(needs.containers, shape.containers, strict=True):
        amounts: Amounts = {}
        if group.traits.cpu and request.cpus:
            amounts["cpu"] = request.cpus
        if group.traits.memory and shape.pinned:
            amounts |= {name: size for name, size in request.memory or () if size}
        amounts |= {name: count for name, count in request.devices if count and name in devices}
        containers.append(AlignedContainer(container.name, container.kind, amounts))
    return tuple(containers)


def in_one_cache(kubelet: Kubelet, containers: Iterable[tuple[int, int]]) -> bool:
    """Returns whether the CPU manager takes the CPUs of each container from a single L3 cache. `containers` have a mask
    of zones and a number of CPUs, in the order of admission, without plain init containers.

    Free CPUs of a cache are necessary and not sufficient: before Kubernetes 1.34 an odd number of CPUs comes from
    several caches (kubernetes#131850), and half-taken cores count against a cache.
    """
    assert kubelet.cpu is not None
    topology, available = kubelet.topology, kubelet.cpu.available
    for zones, count in containers:
        near = 0
        for zone in members(zones):
            near |= topology.numa_cpus[zone]
        try:
            cpus = kubelet.cpu.policy.take(available & near, count, zones.bit_count())
        except Refused:
            return False
        if not any(cpus & cache.cpus == cpus for cache in topology.uncores):
            return False
        available &= ~cpus
    return True
