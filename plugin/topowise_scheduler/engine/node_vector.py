"""What the engine reads off a kubelet: the settings that decide how it counts, and the numbers that decide hints.

Invariant: two kubelets with equal `Traits` and equal counts give a pod the same hints and the same refusal, wherever
the engine does not ask the model. Ids of CPUs and devices are not among the counts: a hint looks at numbers per NUMA
node only, and where ids do matter the model itself is asked (engine.py).

Sections of counts, with Z for "one per NUMA node":

==================  ================================================================================================
cpu                 Z CPUs that can still be taken (ABSENT where a node has no CPUs), their sum, those on cores without
                    a reserved CPU, Z cores that are wholly free
groups              bits of the nodes that hold memory, bits of those in no group, whether there are groups, whether
                    the kubelet sees to it that they are kept, Z cells
memory, type        Z free bytes (ABSENT in all where the node lacks the type), whether the node has the type, -1 if a
                    part of its NUMA nodes lacks the page size
device, resource    Z free devices (ABSENT where no hint looks), free in all, healthy, held, requested by pods, whether
                    it is registered, whether it has topology, whether a device is near several NUMA nodes
slack, resource     node allocatable less what pods request; "pods": how many more
cores               Z CPUs of the machine, CPUs per core, whether the machine is even (CpuTopology.is_even), whether
                    numbers tell how many CPUs come from which NUMA node (cpu_manager.py), whether NUMA nodes are larger
                    than sockets, CPUs per socket, Z positions of sockets
devices, resource   Z devices, healthy or not (ABSENT where no hint looks)
distances           Z times Z
nearness            Z times Z, of nodes whose memory was measured
caches              Z CPUs that can still be taken together in one L3 cache, of nodes whose CPU manager aligns to caches
==================  ================================================================================================

Cores, devices, distances and nearness never change while a node keeps its hardware, so they are kept once for all of
its kind (node_groups.py). Nearness and caches only count for scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from topowise.pods import HUGEPAGES
from topowise_scheduler.engine.mask_arrays import Distances
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.cpu_manager import CpuManager, CpuPolicy
from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology
from topowise_scheduler.kubelet.device_table import DeviceTable
from topowise_scheduler.kubelet.masks import KUBELET_BITS
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy, MemoryTables

# A NUMA node without the resource: no sum makes up for it, and eight of them do not overflow.
ABSENT: Final = -(1 << 58)
# More than any request.
ENDLESS: Final = 1 << 58
# What the masks of the engine have bits for.
MAX_ZONES: Final = 8

Key = tuple[str, str]
"""A family of sections, and the resource, "" where there is only one."""

CPU: Final[Key] = ("cpu", "")
GROUPS: Final[Key] = ("groups", "")
CORES: Final[Key] = ("cores", "")
DISTANCES: Final[Key] = ("distances", "")
NEARNESS: Final[Key] = ("nearness", "")
CACHES: Final[Key] = ("caches", "")
PODS: Final[Key] = ("slack", "pods")

_LOCAL, _REMOTE = 10, 20

NodeVector = dict[Key, Sequence[int]]


class Hardware(NamedTuple):
    """What a node has with nothing held, and what never changes: both stay while the node keeps its hardware.

    `cause` says why the node cannot be judged by counts at all, "" if it can (verdicts.CAUSES).
    """

    empty: NodeVector
    fixed: NodeVector
    cause: str


class Traits(NamedTuple):
    """The settings of a kubelet that decide how it counts; how much it has is no part of them.

    `distances` ranks masks with prefer-closest-numa-nodes and is None without it. `exact_shares` is the arithmetic of
    KEP-6007 that does not round. `sidecars` and `refuses_unknown` are what predicates ask for beside amounts.
    `max_numa_nodes` only counts for a score.
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
    exact_shares: bool
    predicates: bool
    pod_level_resources: bool
    pod_level_resource_managers: bool
    behaviour: Behaviour
    sidecars: bool
    refuses_unknown: bool
    max_numa_nodes: int

    @classmethod
    def of(cls, kubelet: Kubelet) -> Traits:
        """Those of a node."""
        settings = kubelet.settings
        topology, cpu = settings.topology, settings.cpu
        ranked = topology.prefer_closest and topology.policy in ("restricted", "best-effort")
        voted = topology.prefer_most_allocated and topology.policy == "single-numa-node"
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
            voted,
            voted and not kubelet.integer_scores,
            kubelet.predicates,
            settings.pod_level_resources,
            settings.pod_level_resource_managers,
            _seen(settings.behaviour),
            settings.sidecars,
            kubelet.knows_all and not settings.behaviour.unknown_resources_of_init_containers_are_dropped,
            topology.max_numa_nodes,
        )


@lru_cache(maxsize=64)
def _seen(behaviour: Behaviour) -> Behaviour:
    """What decides how a pod is seen. All else that versions change is in the counts, or is left to the model, so that
    nodes of several versions are judged together."""
    return Behaviour(
        sidecars_are_kept=behaviour.sidecars_are_kept,
        unknown_resources_of_init_containers_are_dropped=behaviour.unknown_resources_of_init_containers_are_dropped,
        pod_level_pods_are_not_aligned=behaviour.pod_level_pods_are_not_aligned,
    )


def absent(key: Key, zones: int) -> Sequence[int]:
    """The numbers of a node that has nothing of a section; their number is the height of the section."""
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
            # A hugepage size the node lacks is short, any other unknown resource is not checked.
            return [0 if name.startswith(HUGEPAGES) else ENDLESS]
        case "devices":
            return [ABSENT] * zones
        case "caches":
            return [0] * zones
    return [0] * (zones * zones)


def hardware_of(kubelet: Kubelet) -> Hardware:
    """What stays while pods come and go."""
    zones = len(kubelet.node_ids)
    cause = "zones" if zones > MAX_ZONES else ""
    if kubelet.topology_manager.unmeasured or kubelet.all_node_ids[-1] >= KUBELET_BITS:
        # Whether a kubelet panics depends on the order in which it looks at hints.
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
    """What a node has now."""
    now: NodeVector = {}
    if kubelet.cpu is not None:
        _read_cpu(kubelet.cpu, now)
    if kubelet.memory is not None:
        _read_memory(kubelet.memory.tables, now)
    manager, requested = kubelet.devices, kubelet.requested
    for resource, table in manager.tables.items():
        healthy, allocated = table.healthy, manager.allocated[resource]
        available = healthy & ~allocated
        free = [(near & available).bit_count() if hinted else ABSENT for near, hinted in _hinted(table)]
        now["device", resource] = [
            *free,
            available.bit_count(),
            healthy.bit_count(),
            allocated.bit_count(),
            requested.get(resource, 0),
            *_flags(table),
        ]
    if kubelet.predicates:
        _read_slack(kubelet, requested, now)
    return now


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


def _read_cpu(manager: CpuManager, now: NodeVector) -> None:
    policy, topology, available = manager.policy, manager.policy.topology, manager.available
    if policy.options.align_by_uncore and topology.tells_caches:
        now[CACHES] = _most_in_a_cache(topology, available)
    physical = (manager.default & ~policy.reserved_physical).bit_count() if policy.options.full_pcpus_only else 0
    cores = topology.whole_cores(available)
    now[CPU] = [
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


def _read_memory(tables: MemoryTables, now: NodeVector) -> None:
    zones = tables.policy.count
    used = alone = 0
    for position in range(zones):
        if tables.assignments[position]:
            used |= 1 << position
        if tables.cells[position] == 1 << position:
            alone |= 1 << position
    checked = tables.policy.behaviour.memory_groups_are_checked
    now[GROUPS] = [used, alone, alone != (1 << zones) - 1, checked, *tables.cells]
    for name, free in tables.free.items():
        now["memory", name] = [*free, _known(tables.policy, name)]


def _known(policy: MemoryPolicy, name: str) -> int:
    """Whether a kubelet finds the type on its NUMA nodes, -1 if only on some."""
    return -1 if name in policy.lacking else 1


def _hinted(table: DeviceTable) -> Iterator[tuple[int, bool]]:
    """The devices of each NUMA node, and whether hints are made of it (DeviceTable.nodes)."""
    for position, near in enumerate(table.near):
        yield near, bool(table.nodes >> position & 1)


def _flags(table: DeviceTable) -> tuple[int, int, int]:
    return 1, table.has_topology, not table.of_one_node


def _read_slack(kubelet: Kubelet, requested: Mapping[str, int], now: NodeVector) -> None:
    capacity = kubelet.capacity
    for name, amount in capacity.items():
        now["slack", name] = [amount - requested.get(name, 0)]
    now[PODS] = [capacity["pods"] - len(kubelet.active)]


def _distances(kubelet: Kubelet, zones: int) -> list[int]:
    distances = kubelet.topology_manager.distances
    if distances is None:
        return [_LOCAL if one == other else _REMOTE for one in range(zones) for other in range(zones)]
    return [distance for row in distances for distance in row]
