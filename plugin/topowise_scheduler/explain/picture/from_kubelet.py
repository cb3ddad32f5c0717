"""The picture of a `Kubelet`: its topology with the state of its managers.

A kubelet of precision "counts" is derived from amounts. The ids of its CPUs and devices have no meaning and are left
out; an allocation of a pod without a name has no known owner.

The memory manager knows the allocated bytes of a zone, and every pod's blocks on *sets* of zones. A block on a single
zone is that pod's share there. The rest belongs to the pods with blocks on several zones: a share of the pod, or a
common share of several pods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from topowise import digits
from topowise_scheduler.explain.picture.contents import (
    Block,
    Cache,
    Core,
    CpuState,
    Device,
    Devices,
    Memory,
    Owner,
    Picture,
    Precision,
    Share,
    Socket,
    Thread,
    Zone,
)
from topowise_scheduler.kubelet import Kubelet, Machine, NumaNode, memory_manager
from topowise_scheduler.kubelet.cpu_topology import CpuSet, Domain
from topowise_scheduler.kubelet.machine import hugepages_resource
from topowise_scheduler.kubelet.masks import members

# On machines with more NUMA nodes those without resources are left out: GPUs keep eight ids each.
_MOST_BARE: Final = 8
_COUNTED_ORDER: tuple[CpuState, ...] = ("reserved", "exclusive", "free", "shared", "offline")


class Pod(NamedTuple):
    """The allocations of a pod; blocks of one type and mask are summed."""

    name: str
    cpus: CpuSet
    memory: tuple[memory_manager.Block, ...]
    devices: Mapping[str, tuple[str, ...]]


class Holdings(NamedTuple):
    """The pods by name, and the index of the pod that has a CPU or device, None for a pod without a name.

    `memory` has the blocks of all pods with these indexes; `uids` are all pods with an allocation.
    """

    pods: tuple[Pod, ...]
    uids: frozenset[str]
    cpus: Mapping[int, int | None]
    memory: tuple[tuple[int | None, memory_manager.Block], ...]
    devices: Mapping[str, Mapping[str, int | None]]


def of(kubelet: Kubelet, names: Mapping[str, str], *, is_exact: bool) -> Holdings:
    """All allocations. A pod without a name is shown by its uid if `is_exact`, and is unknown otherwise."""
    holders: dict[str, Pod] = {}
    for uid in {*_holders(kubelet)}:
        pod = Pod(names.get(uid, uid), _cpus(kubelet, uid), _memory(kubelet, uid), _device_holders(kubelet, uid))
        if pod.cpus or pod.memory or pod.devices:
            holders[uid] = pod
    ordered = sorted(holders, key=lambda uid: (_natural(holders[uid].name), uid))
    known = [uid for uid in ordered if is_exact or uid in names]
    index = {uid: number for number, uid in enumerate(known)}
    cpus: dict[int, int | None] = {}
    devices: dict[str, dict[str, int | None]] = {}
    blocks: list[tuple[int | None, memory_manager.Block]] = []
    for uid in ordered:
        pod, owner = holders[uid], index.get(uid)
        cpus |= dict.fromkeys(members(pod.cpus), owner)
        blocks += [(owner, block) for block in pod.memory]
        for resource, ids in pod.devices.items():
            devices.setdefault(resource, {}).update(dict.fromkeys(ids, owner))
    return Holdings(tuple([holders[uid] for uid in known]), frozenset(holders), cpus, tuple(blocks), devices)


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts "worker-2" before "worker-10"."""
    return [(digits.natural(part, len(part)) or 0, part) for part in re.split("([0-9]{1,18})", name)]


def _holders(kubelet: Kubelet) -> list[str]:
    holders = [*kubelet.devices.allocations]
    for manager in (kubelet.cpu, kubelet.memory):
        if manager is not None:
            holders += [*manager.allocations, *manager.bubbles]
    return holders


def _cpus(kubelet: Kubelet, uid: str) -> CpuSet:
    if kubelet.cpu is None:
        return 0
    cpus = kubelet.cpu.bubbles.get(uid, 0)
    for part in kubelet.cpu.allocations.get(uid, {}).values():
        cpus |= part
    return cpus


def _memory(kubelet: Kubelet, uid: str) -> tuple[memory_manager.Block, ...]:
    """The pod's own blocks if it has them (pod-level resources), else the blocks of its containers."""
    if kubelet.memory is None:
        return ()
    containers = kubelet.memory.allocations.get(uid, {}).values()
    blocks = kubelet.memory.bubbles.get(uid) or [block for blocks in containers for block in blocks]
    sums: dict[tuple[str, int], int] = {}
    for name, mask, size in blocks:
        sums[name, mask] = sums.get((name, mask), 0) + size
    return tuple([memory_manager.Block(name, mask, size) for (name, mask), size in sums.items() if size])


def _device_holders(kubelet: Kubelet, uid: str) -> dict[str, tuple[str, ...]]:
    sets: dict[str, int] = {}
    for holding in kubelet.devices.allocations.get(uid, {}).values():
        for resource, devices in holding.items():
            sets[resource] = sets.get(resource, 0) | devices
    tables = kubelet.devices.tables
    return {resource: tables[resource].names(devices) for resource, devices in sorted(sets.items()) if devices}


def by_zone(kubelet: Kubelet, nodes: Sequence[NumaNode], allocated: Holdings) -> tuple[tuple[Memory, ...], ...]:
    """The memory of each zone by position, all types in all zones.

    Empty if neither the manager nor `nodes`, which are in the same order, have amounts.
    """
    if kubelet.memory is not None:
        types = kubelet.memory.policy.total
        return tuple(
            tuple([_managed(kubelet.memory, allocated, name, position) for name in types])
            for position in range(len(kubelet.node_ids))
        )
    sizes = tuple(dict.fromkeys(size for node in nodes for size in node.hugepages))
    return tuple(_unmanaged(node, sizes) for node in nodes) or tuple(() for _ in kubelet.node_ids)


def group(kubelet: Kubelet, position: int) -> tuple[int, ...]:
    """Ids of the zones in its memory group, itself included; empty without a group."""
    if kubelet.memory is None:
        return ()
    cells = kubelet.memory.tables.cells[position]
    return kubelet.ids(cells) if cells.bit_count() > 1 else ()


def block_of(kubelet: Kubelet, block: memory_manager.Block) -> Block:
    """The block with zone ids."""
    return Block(block.type, kubelet.ids(block.mask), block.size)


def _managed(manager: memory_manager.MemoryManager, allocated: Holdings, name: str, position: int) -> Memory:
    policy, tables = manager.policy, manager.tables
    total, free = policy.total[name][position], tables.free[name][position]
    reserved = min(total, policy.system_reserved[position].get(name, 0))
    hugepages = max(0, total - reserved - policy.allocatable[name][position])
    taken = _taken(allocated, name, position, max(0, total - reserved - hugepages - free))
    shares = [Share("reserved", reserved), Share("hugepages", hugepages), *taken, Share("free", max(0, free))]
    return Memory(name, total, tuple([share for share in shares if share.size]))


def _taken(allocated: Holdings, name: str, position: int, left: int) -> list[Share]:
    shares = []
    joined: dict[int | None, None] = {}
    for owner, block in allocated.memory:
        if block.type != name or not block.mask >> position & 1:
            continue
        if block.mask.bit_count() > 1:
            joined[owner] = None
            continue
        size = min(left, block.size)
        left -= size
        shares.append(Share("held", size, _known(owner)))
    if left:
        shares.append(
            Share("held", left, () if None in joined else tuple(owner for owner in joined if owner is not None))
        )
    return shares


def _known(owner: int | None) -> tuple[int, ...]:
    return () if owner is None else (owner,)


def _unmanaged(node: NumaNode, sizes: tuple[int, ...]) -> tuple[Memory, ...]:
    hugepages = {size: node.hugepages.get(size, 0) * size * 1024 for size in sizes}
    reserved = min(node.memory, sum(hugepages.values()))
    shares = [share for share in (Share("hugepages", reserved), Share("shared", node.memory - reserved)) if share.size]
    return (
        Memory("memory", node.memory, tuple(shares)),
        *(
            Memory(hugepages_resource(size), total, (Share("shared", total),) if total else ())
            for size, total in hugepages.items()
        ),
    )


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
    allocated = of(kubelet, names, is_exact=precision == "exact")
    settings = kubelet.settings.topology
    near, elsewhere = _devices(kubelet, allocated, precision)
    nodes = _nodes(kubelet, machine)
    tables = by_zone(kubelet, nodes, allocated)
    zones = [
        Zone(
            id=zone_id,
            sockets=_sockets(kubelet, position, allocated.cpus, precision),
            memory=tables[position],
            devices=near[position],
            group=group(kubelet, position),
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
    kubelet: Kubelet, allocated: Holdings, precision: Precision
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


def _owner(kubelet: Kubelet, pod: Pod, precision: Precision) -> Owner:
    return Owner(
        name=pod.name,
        cpu_count=pod.cpus.bit_count(),
        cpus=frozenset(members(pod.cpus)) if precision == "exact" else frozenset(),
        memory=tuple([block_of(kubelet, block) for block in pod.memory]),
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
