"""The picture of a `Kubelet`: its topology with the state of its managers.

A kubelet of precision "counts" is derived from amounts. The ids of its CPUs and devices have no meaning and are left
out; an allocation of a pod without a name has no known owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise_scheduler.explain.picture import allocations, memory
from topowise_scheduler.explain.picture.contents import (
    Cache,
    Core,
    CpuState,
    Device,
    Devices,
    Owner,
    Picture,
    Precision,
    Socket,
    Thread,
    Zone,
)
from topowise_scheduler.kubelet import Kubelet, Machine, NumaNode
from topowise_scheduler.kubelet.cpu_topology import CpuSet, Domain
from topowise_scheduler.kubelet.masks import members

# On machines with more NUMA nodes those without resources are left out: GPUs keep eight ids each.
_MOST_BARE: Final = 8
_COUNTED_ORDER: tuple[CpuState, ...] = ("reserved", "exclusive", "free", "shared", "offline")


def read(
    kubelet: Kubelet,
    names: Mapping[str, str],
    *,
    node: str,
    machine: Machine | None = None,
    precision: Precision = "exact",
    age: str = "",
) -> Picture:
    """The picture of the present state; `names` maps the uid of a pod to "namespace/name".

    `machine` is the machine of the kubelet. It adds distances, and the memory where the memory manager is off. `age` is
    the age of the state in words.
    """
    allocated = allocations.of(kubelet, names, is_exact=precision == "exact")
    settings = kubelet.settings.topology
    near, elsewhere = _devices(kubelet, allocated, precision)
    nodes = _nodes(kubelet, machine)
    tables = memory.by_zone(kubelet, nodes, allocated)
    zones = [
        Zone(
            id=zone_id,
            sockets=_sockets(kubelet, position, allocated.cpus, precision),
            memory=tables[position],
            devices=near[position],
            group=memory.group(kubelet, position),
        )
        for position, zone_id in enumerate(kubelet.node_ids)
    ]
    drawn = [zone for zone in zones if len(kubelet.all_node_ids) <= _MOST_BARE or not zone.is_bare]
    places = [kubelet.node_ids.index(zone.id) for zone in drawn]
    return Picture(
        node=node,
        policy=settings.policy,
        scope=settings.scope,
        precision=precision,
        zones=tuple(drawn),
        bare=tuple(sorted({*kubelet.all_node_ids}.difference([zone.id for zone in drawn]))),
        owners=tuple([_owner(kubelet, pod, precision) for pod in allocated.pods]),
        elsewhere=elsewhere,
        distances=_distances(kubelet, places) if nodes else None,
        other_pods=len(kubelet.active.keys() - allocated.uids),
        age=age,
    )


def _sockets(
    kubelet: Kubelet, position: int, owner_of: Mapping[int, int | None], precision: Precision
) -> tuple[Socket, ...]:
    topology = kubelet.topology
    zone = topology.numa_cpus[position]
    if precision == "counts":
        threads = sorted(
            (_thread(kubelet, cpu, owner_of, None) for cpu in members(zone)),
            key=lambda thread: (_COUNTED_ORDER.index(thread.state), thread.owner is None, thread.owner or 0),
        )
        return (Socket(None, (Cache(None, tuple([Core((thread,)) for thread in threads])),)),) if threads else ()
    sockets = []
    for socket in topology.sockets:
        here = socket.cpus & zone
        if here:
            caches = [cache for cache in topology.uncores if cache.cpus & here]
            sockets.append(
                Socket(socket.id, tuple([_cache(kubelet, cache, here, len(caches), owner_of) for cache in caches]))
            )
    return tuple(sockets)


def _cache(kubelet: Kubelet, cache: Domain, within: CpuSet, count: int, owner_of: Mapping[int, int | None]) -> Cache:
    cores = [core.cpus for core in kubelet.topology.cores if core.cpus & cache.cpus & within]
    return Cache(
        cache.id if count > 1 else None,
        tuple([Core(tuple([_thread(kubelet, cpu, owner_of, cpu) for cpu in members(cpus)])) for cpus in cores]),
    )


def _thread(kubelet: Kubelet, cpu: int, owner_of: Mapping[int, int | None], shown: int | None) -> Thread:
    return Thread(shown, "exclusive" if cpu in owner_of else _state(kubelet, cpu), owner_of.get(cpu))


def _state(kubelet: Kubelet, cpu: int) -> CpuState:
    """The state of a CPU without an owner."""
    if kubelet.cpu is None:
        return "shared"
    policy = kubelet.cpu.policy
    if policy.reserved >> cpu & 1:
        return "reserved"
    if not kubelet.cpu.available >> cpu & 1:
        return "exclusive"
    # With full-pcpus-only the sibling of a reserved CPU is never exclusive.
    return "shared" if policy.options.full_pcpus_only and policy.reserved_physical >> cpu & 1 else "free"


def _devices(
    kubelet: Kubelet, allocated: allocations.Holdings, precision: Precision
) -> tuple[tuple[tuple[Devices, ...], ...], tuple[Devices, ...]]:
    """Devices near a single zone, by zone position, and devices near several zones or none."""
    near: list[list[Devices]] = [[] for _ in kubelet.node_ids]
    elsewhere: list[Devices] = []
    for resource, table in sorted(kubelet.devices.tables.items()):
        touching = [table.touching(1 << position) for position in range(len(near))]
        owner_of = allocated.devices.get(resource, {})
        placed: dict[int | None, list[Device]] = {}
        for number, device_id in enumerate(table.ids):
            positions = [position for position, devices in enumerate(touching) if devices >> number & 1]
            device = Device(
                id=device_id if precision == "exact" else None,
                is_held=device_id in owner_of,
                owner=owner_of.get(device_id),
                is_healthy=bool(table.healthy >> number & 1),
                zones=tuple([kubelet.node_ids[position] for position in positions]),
            )
            placed.setdefault(positions[0] if len(positions) == 1 else None, []).append(device)
        for where, devices in placed.items():
            (elsewhere if where is None else near[where]).append(Devices(resource, tuple(devices)))
    return tuple(map(tuple, near)), tuple(elsewhere)


def _owner(kubelet: Kubelet, pod: allocations.Pod, precision: Precision) -> Owner:
    return Owner(
        name=pod.name,
        cpu_count=pod.cpus.bit_count(),
        cpus=frozenset(members(pod.cpus)) if precision == "exact" else frozenset(),
        memory=tuple([memory.block_of(kubelet, block) for block in pod.memory]),
        device_counts={resource: len(ids) for resource, ids in pod.devices.items()},
        devices=dict(pod.devices) if precision == "exact" else {},
        caches=_caches(kubelet, pod.cpus) if precision == "exact" else 0,
    )


def _caches(kubelet: Kubelet, cpus: CpuSet) -> int:
    """The number of L3 caches of these CPUs; 0 if no NUMA node has several."""
    topology = kubelet.topology
    if not topology.tells_caches or all(len(caches) < 2 for caches in topology.uncores_of.values()):
        return 0
    return sum(1 for cache in topology.uncores if cache.cpus & cpus)


def _nodes(kubelet: Kubelet, machine: Machine | None) -> tuple[NumaNode, ...]:
    """The NUMA nodes of the machine that are in the kubelet's masks."""
    if machine is None:
        return ()
    return tuple([node for node in machine.nodes() if node.id in kubelet.node_ids])


def _distances(kubelet: Kubelet, places: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Distances between the NUMA nodes at these positions."""
    rows = kubelet.topology_manager.distances
    return None if rows is None else tuple([tuple([rows[row][column] for column in places]) for row in places])
