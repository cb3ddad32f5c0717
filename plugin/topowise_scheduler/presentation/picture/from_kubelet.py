"""The picture of a `Kubelet`: its topology with the state of its managers.

A kubelet of precision "counts" was made up from numbers, so the ids of its CPUs and devices mean nothing and are left
out; what is held there by a pod without a name is held by somebody unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise_scheduler.kubelet import Kubelet, Machine, NumaNode
from topowise_scheduler.kubelet.cpu_topology import CpuSet, Domain
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.presentation.picture import allocations, memory
from topowise_scheduler.presentation.picture.contents import (
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

# On larger machines those that have nothing are left out.
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
    """The picture of `kubelet` as it is now; `names` maps the uid of a pod to "namespace/name".

    `machine`, the one the kubelet was made of, adds what a kubelet does not keep: distances, and how much memory there
    is where the memory manager is off. `age` is the age of the state in words.
    """
    held = allocations.of(kubelet, names, is_exact=precision == "exact")
    settings = kubelet.settings.topology
    near, elsewhere = _devices(kubelet, held, precision)
    nodes = _nodes(kubelet, machine)
    tables = memory.by_zone(kubelet, nodes, held)
    zones = [
        Zone(
            id=zone_id,
            sockets=_sockets(kubelet, position, held.cpus, precision),
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
        owners=tuple([_owner(kubelet, one, precision) for one in held.pods]),
        elsewhere=elsewhere,
        distances=_distances(kubelet, places) if nodes else None,
        others=len(kubelet.active.keys() - held.uids),
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
            key=lambda one: (_COUNTED_ORDER.index(one.state), one.owner is None, one.owner or 0),
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
    """The state of a CPU nobody holds."""
    if kubelet.cpu is None:
        return "shared"
    policy = kubelet.cpu.policy
    if policy.reserved >> cpu & 1:
        return "reserved"
    if not kubelet.cpu.available >> cpu & 1:
        return "exclusive"
    # With full-pcpus-only nobody can have the sibling of a reserved CPU.
    return "shared" if policy.options.full_pcpus_only and policy.reserved_physical >> cpu & 1 else "free"


def _devices(
    kubelet: Kubelet, held: allocations.Holdings, precision: Precision
) -> tuple[tuple[tuple[Devices, ...], ...], tuple[Devices, ...]]:
    """By zone position those near one zone, and those near none or several."""
    near: list[list[Devices]] = [[] for _ in kubelet.node_ids]
    elsewhere: list[Devices] = []
    for resource, table in sorted(kubelet.devices.tables.items()):
        touching = [table.touching(1 << position) for position in range(len(near))]
        owner_of = held.devices.get(resource, {})
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
    """How many L3 caches these CPUs are on; 0 where no NUMA node has several, so that it goes without saying."""
    topology = kubelet.topology
    if not topology.tells_caches or all(len(caches) < 2 for caches in topology.uncores_of.values()):
        return 0
    return sum(1 for cache in topology.uncores if cache.cpus & cpus)


def _nodes(kubelet: Kubelet, machine: Machine | None) -> tuple[NumaNode, ...]:
    """The nodes of the machine that the kubelet's masks have."""
    if machine is None:
        return ()
    return tuple([node for node in machine.nodes() if node.id in kubelet.node_ids])


def _distances(kubelet: Kubelet, places: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Between the nodes at these places."""
    rows = kubelet.topology_manager.distances
    return None if rows is None else tuple([tuple([rows[at][other] for other in places]) for at in places])
