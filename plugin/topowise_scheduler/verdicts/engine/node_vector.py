"""The engine's view of a kubelet: its settings (`Traits`) and the amounts that decide hints (`NodeVector`).

Invariant: two kubelets with equal `Traits` and equal vectors give a pod the same hints and the same refusal, where the
engine does not defer to the kubelet model. A vector has no ids of CPUs and devices: a hint depends on amounts per NUMA
node, and where ids matter the model decides (engine.py).

Sections of a vector, Z means an entry for each NUMA node:

==================  ================================================================================================
cpu                 Z free CPUs (ABSENT where a node has no CPUs), their sum, free CPUs on cores without a reserved
                    CPU, Z cores that are wholly free
groups              bits of the NUMA nodes with allocated memory, bits of those in no group, whether there are groups,
                    whether the kubelet checks groups, Z cells (the group of each NUMA node as a mask)
memory, type        Z free bytes (ABSENT in all where the node lacks the type), whether the node has the type, -1 if
                    some of its NUMA nodes lack the page size
device, resource    Z free devices (ABSENT where hints leave the NUMA node out), all free, healthy, allocated, requested
                    by pods, whether it is registered, whether it has topology, whether a device is near several NUMA
                    nodes
slack, resource     node allocatable less the pods' requests; "pods": number of further pods
cores               Z CPUs of the machine, CPUs per core, whether the machine is even (CpuTopology.is_even), whether
                    amounts decide how many CPUs come from which NUMA node (cpu_manager.py), whether NUMA nodes are
                    larger than sockets, CPUs per socket, Z positions of sockets
devices, resource   Z devices, healthy or not (ABSENT where hints leave the NUMA node out)
distances           Z times Z
nearness            Z times Z, of nodes with measured memory distances
caches              Z free CPUs of the emptiest L3 cache, of nodes whose CPU manager aligns to caches
==================  ================================================================================================

Cores, devices, distances and nearness are constant for a node's hardware, so they are stored for each kind of hardware
(node_groups.py). Only scores use nearness and caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from topowise.pods import HUGEPAGES
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.cpu_manager import CpuManager, CpuPolicy
from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology
from topowise_scheduler.kubelet.device_table import DeviceTable
from topowise_scheduler.kubelet.masks import KUBELET_BITS
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy, MemoryTables
from topowise_scheduler.verdicts.engine.mask_arrays import Distances

# A NUMA node without the resource: any sum with it stays negative, and the sum of eight does not overflow.
ABSENT: Final = -(1 << 58)
# More than any request.
ENDLESS: Final = 1 << 58
# The bits of the engine's masks; the default of max-allowable-numa-nodes is 8 too.
MAX_ZONES: Final = 8

Key = tuple[str, str]
"""The family of a section and its resource, "" for a family with a single section."""

CPU: Final[Key] = ("cpu", "")
GROUPS: Final[Key] = ("groups", "")
CORES: Final[Key] = ("cores", "")
DISTANCES: Final[Key] = ("distances", "")
NEARNESS: Final[Key] = ("nearness", "")
CACHES: Final[Key] = ("caches", "")
PODS: Final[Key] = ("slack", "pods")

_LOCAL, _REMOTE = 10, 20

NodeVector = dict[Key, Sequence[int]]
"""The entries of each section."""


class Hardware(NamedTuple):
    """The vector of the empty node and the sections that never change. Both are constant for the node's hardware.

    `cause` is why amounts can never decide for this node (verdicts.CAUSES), "" if they can.
    """

    empty: NodeVector
    fixed: NodeVector
    cause: str


class Traits(NamedTuple):
    """The settings of a kubelet that decide its arithmetic, without amounts.

    `distances` orders masks with prefer-closest-numa-nodes and is None without it. `sidecars` and `refuses_unknown` are
    checks of the predicates beside amounts. `max_numa_nodes` is for scores only.
    """

    zones: int
    policy: str
    scope: str
    cpu: bool
    memory: bool
    full_cores: bool
    by_socket: bool
    distributed: bool
    distances: Distances | None
    most_allocated: bool
    predicates: bool
    pod_level_resources: bool
    pod_level_resource_managers: bool
    behaviour: Behaviour
    sidecars: bool
    refuses_unknown: bool
    max_numa_nodes: int

    @classmethod
    def of(cls, kubelet: Kubelet) -> Traits:
        """The traits of a node."""
        settings = kubelet.settings
        topology, cpu = settings.topology, settings.cpu
        # Options that the policy ignores are left out, so that such nodes share a group.
        ranked = topology.prefer_closest and topology.policy in ("restricted", "best-effort")
        return cls(
            len(kubelet.node_ids),
            topology.policy,
            topology.scope,
            cpu is not None,
            kubelet.memory is not None,
            cpu is not None and cpu.full_pcpus_only,
            cpu is not None and cpu.align_by_socket,
            cpu is not None and cpu.distribute_across_numa,
            kubelet.topology_manager.distances if ranked else None,
            topology.prefer_most_allocated and topology.policy == "single-numa-node",
            kubelet.predicates,
            settings.pod_level_resources,
            settings.pod_level_resource_managers,
            _view_behaviour(settings.behaviour),
            settings.sidecars,
            kubelet.knows_all and not settings.behaviour.unknown_resources_of_init_containers_are_dropped,
            topology.max_numa_nodes,
        )


@lru_cache(maxsize=64)
def _view_behaviour(behaviour: Behaviour) -> Behaviour:
    """The behaviours that change a pod's view. The rest is in the vectors or left to the model, so that nodes of
    several versions share a group."""
    return Behaviour(
        sidecars_are_kept=behaviour.sidecars_are_kept,
        unknown_resources_of_init_containers_are_dropped=behaviour.unknown_resources_of_init_containers_are_dropped,
        pod_level_pods_are_not_aligned=behaviour.pod_level_pods_are_not_aligned,
        pod_level_pods_are_never_aligned=behaviour.pod_level_pods_are_never_aligned,
        pod_level_pods_need_their_gate=behaviour.pod_level_pods_need_their_gate,
    )


def absent(key: Key, zones: int) -> Sequence[int]:
    """The entries of a section for a node without it; their number is the height of the section."""
    family, name = key
    match family:
        case "cpu":
            return [0] * (2 * zones + 2)
        case "cores":
            return [0] * (2 * zones + 5)
        case "groups":
            return [0] * (zones + 4)
        case "memory":
            return [*[ABSENT] * zones, 0]
        case "device":
            return [*[ABSENT] * zones, 0, 0, 0, 0, 0, 0, 0]
        case "slack":
            # The predicates miss an unknown hugepage size, and ignore any other unknown resource.
            return [0 if name.startswith(HUGEPAGES) else ENDLESS]
        case "devices":
            return [ABSENT] * zones
        case "caches":
            return [0] * zones
    return [0] * (zones * zones)


def hardware_of(kubelet: Kubelet) -> Hardware:
    """The parts of a node's vector that pods do not change."""
    zones = len(kubelet.node_ids)
    cause = "zones" if zones > MAX_ZONES else ""
    if kubelet.topology_manager.unmeasured or kubelet.all_node_ids[-1] >= KUBELET_BITS:
        # Whether such a kubelet panics depends on the order in which it compares hints, so the model decides.
        cause = "numa-ids"
    empty: NodeVector = {}
    fixed: NodeVector = {DISTANCES: _distances(kubelet, zones)}
    if kubelet.topology_manager.nearness is not None:
        fixed[NEARNESS] = [distance for row in kubelet.topology_manager.nearness for distance in row]
    if kubelet.cpu is not None:
        _read_cpu_policy(kubelet.cpu.policy, empty, fixed)
    if kubelet.memory is not None:
        everything = (1 << zones) - 1
        checked = kubelet.memory.policy.behaviour.memory_groups_are_checked
        empty[GROUPS] = [0, everything, 0, checked, *[1 << position for position in range(zones)]]
        for name, allocatable in kubelet.memory.tables.policy.allocatable.items():
            empty["memory", name] = [*allocatable, _known(kubelet.memory.policy, name)]
            if min(allocatable) < 0:
                cause = "negative-memory"
    for resource, table in kubelet.devices.tables.items():
        healthy = table.healthy
        most = [(near & healthy).bit_count() if hinted else ABSENT for near, hinted in _hinted(table)]
        count = healthy.bit_count()
        empty["device", resource] = [*most, count, count, 0, 0, *_flags(table)]
        fixed["devices", resource] = [near.bit_count() if hinted else ABSENT for near, hinted in _hinted(table)]
    if kubelet.predicates:
        for name, amount in kubelet.capacity.items():
            empty["slack", name] = [amount]
    return Hardware(empty, fixed, cause)


def vector_of(kubelet: Kubelet) -> NodeVector:
    """The current vector of a node."""
    vector: NodeVector = {}
    if kubelet.cpu is not None:
        _read_cpu(kubelet.cpu, vector)
    if kubelet.memory is not None:
        _read_memory(kubelet.memory.tables, vector)
    manager, requested = kubelet.devices, kubelet.requested
    for resource, table in manager.tables.items():
        healthy, allocated = table.healthy, manager.allocated[resource]
        available = healthy & ~allocated
        free = [(near & available).bit_count() if hinted else ABSENT for near, hinted in _hinted(table)]
        vector["device", resource] = [
            *free,
            available.bit_count(),
            healthy.bit_count(),
            allocated.bit_count(),
            requested.get(resource, 0),
            *_flags(table),
        ]
    if kubelet.predicates:
        _read_slack(kubelet, requested, vector)
    return vector


def _read_cpu_policy(policy: CpuPolicy, empty: NodeVector, fixed: NodeVector) -> None:
    topology, options = policy.topology, policy.options
    allocatable = topology.cpus & ~policy.reserved
    shared = allocatable if options.strict_reservation else topology.cpus
    cores = topology.whole_cores(allocatable)
    empty[CPU] = [
        *[(cpus & allocatable).bit_count() if cpus else ABSENT for cpus in topology.numa_cpus],
        allocatable.bit_count(),
        (shared & ~policy.reserved_physical).bit_count(),
        *[(cpus & cores).bit_count() for cpus in topology.numa_cpus],
    ]
    positions = topology.socket_positions
    packed = not (options.distribute_across_numa or options.distribute_across_cores or options.align_by_uncore)
    fixed[CORES] = [
        *[cpus.bit_count() for cpus in topology.numa_cpus],
        topology.cpus_per_core,
        topology.is_even,
        packed and topology.is_even and positions is not None,
        topology.sockets_total >= len(topology.numas),
        topology.cpus_per_socket,
        *(positions or [0] * len(topology.numa_cpus)),
    ]


def _read_cpu(manager: CpuManager, vector: NodeVector) -> None:
    policy, topology, available = manager.policy, manager.policy.topology, manager.available
    # Other CPU managers do not place containers by L3 cache.
    if policy.options.align_by_uncore and topology.tells_caches:
        vector[CACHES] = _most_in_a_cache(topology, available)
    # Only full-pcpus-only needs this sum.
    physical = (manager.default & ~policy.reserved_physical).bit_count() if policy.options.full_pcpus_only else 0
    cores = topology.whole_cores(available)
    vector[CPU] = [
        *[(cpus & available).bit_count() if cpus else ABSENT for cpus in topology.numa_cpus],
        available.bit_count(),
        physical,
        *[(cpus & cores).bit_count() for cpus in topology.numa_cpus],
    ]


def _most_in_a_cache(topology: CpuTopology, available: CpuSet) -> list[int]:
    most = [0] * len(topology.numa_cpus)
    for numa, caches in topology.uncores_of.items():
        free = numa.cpus & available
        most[numa.id] = max([(cache.cpus & free).bit_count() for cache in caches])
    return most


def _read_memory(tables: MemoryTables, vector: NodeVector) -> None:
    zones = tables.policy.count
    used = alone = 0
    for position in range(zones):
        if tables.assignments[position]:
            used |= 1 << position
        if tables.cells[position] == 1 << position:
            alone |= 1 << position
    checked = tables.policy.behaviour.memory_groups_are_checked
    vector[GROUPS] = [used, alone, alone != (1 << zones) - 1, checked, *tables.cells]
    for name, free in tables.free.items():
        vector["memory", name] = [*free, _known(tables.policy, name)]


def _known(policy: MemoryPolicy, name: str) -> int:
    """Whether the kubelet knows the type on its NUMA nodes, -1 if only on some of them."""
    return -1 if name in policy.lacking else 1


def _hinted(table: DeviceTable) -> Iterator[tuple[int, bool]]:
    """The devices of each NUMA node, and whether hints include the node (DeviceTable.nodes)."""
    for position, near in enumerate(table.near):
        yield near, bool(table.nodes >> position & 1)


def _flags(table: DeviceTable) -> tuple[int, int, int]:
    return 1, table.has_topology, not table.of_one_node


def _read_slack(kubelet: Kubelet, requested: Mapping[str, int], vector: NodeVector) -> None:
    capacity = kubelet.capacity
    for name, amount in capacity.items():
        vector["slack", name] = [amount - requested.get(name, 0)]
    vector[PODS] = [capacity["pods"] - len(kubelet.active)]


def _distances(kubelet: Kubelet, zones: int) -> list[int]:
    distances = kubelet.topology_manager.distances
    if distances is None:
        # Without a SLIT all remote NUMA nodes are equally distant.
        return [_LOCAL if row == column else _REMOTE for row in range(zones) for column in range(zones)]
    return [distance for row in distances for distance in row]
