"""The numbers of a node that decide hints, read off its kubelet.

Ids of CPUs and devices are not among them: a hint looks at numbers per NUMA node only. Where ids do matter, the model
itself is asked (see trial.py).

Sections of a grid, with Z for "one per NUMA node":

==================  ================================================================================================
cpu                 Z CPUs that can still be taken (OUT where a node has no CPUs), their sum, those on cores without a
                    reserved CPU, Z cores that are wholly free
groups              bits of the nodes that hold memory, bits of those in no group, whether there are groups, Z cells
memory, type        Z free bytes (OUT in all where the node lacks the type), whether the node has the type
device, resource    Z free devices (OUT where no device is), free in all, healthy, held, requested by pods, whether it
                    is registered, whether it has topology, whether a device is near several NUMA nodes
slack, resource     node allocatable less what pods request; "pods": how many more
cores               Z CPUs of the machine, CPUs per core, whether the machine is even (CpuTopology.is_even), whether
                    numbers tell how many CPUs come from which NUMA node (packing.py), whether NUMA nodes are larger
                    than sockets, CPUs per socket, Z places of sockets
devices, resource   Z devices, healthy or not
distances           Z times Z
==================  ================================================================================================

The last three never change while a node keeps its hardware, so they are kept once per kind of node (kinds.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from topowise.pods import HUGEPAGES
from topowise_scheduler.engine.grid import Key
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.memory_tables import MemoryTables

# A place that no sum makes up for; eight of them do not overflow.
OUT: Final = -(1 << 58)
# More than any request.
ENDLESS: Final = 1 << 58
# What the masks of the engine have bits for.
MAX_ZONES: Final = 8

CPU: Final[Key] = ("cpu", "")
GROUPS: Final[Key] = ("groups", "")
CORES: Final[Key] = ("cores", "")
DISTANCES: Final[Key] = ("distances", "")
PODS: Final[Key] = ("slack", "pods")

_LOCAL, _REMOTE = 10, 20

Column = dict[Key, Sequence[int]]


class Counts(NamedTuple):
    """What a node has now, what it has with nothing held, and what never changes.

    `odd` says why the node cannot be judged by counts at all, "" if it can.
    """

    now: Column
    empty: Column
    fixed: Column
    odd: str


def absent(key: Key, zones: int) -> Sequence[int]:
    """The numbers of a node that has nothing of a section; their number is the height of the section."""
    family, name = key
    match family:
        case "cpu":
            return [0] * (2 * zones + 2)
        case "cores":
            return [0] * (2 * zones + 5)
        case "groups":
            return [0] * (zones + 3)
        case "memory":
            return [*[OUT] * zones, 0]
        case "device":
            return [*[OUT] * zones, 0, 0, 0, 0, 0, 0, 0]
        case "slack":
            # A hugepage size the node lacks is short, any other unknown resource is not checked.
            return [0 if name.startswith(HUGEPAGES) else ENDLESS]
        case "devices":
            return [0] * zones
    return [0] * (zones * zones)


def read(kubelet: Kubelet) -> Counts:
    """All counts of a node."""
    zones = len(kubelet.node_ids)
    odd = "zones" if zones > MAX_ZONES else ""
    now: Column = {}
    empty: Column = {}
    fixed: Column = {DISTANCES: _distances(kubelet, zones)}
    if kubelet.cpu is not None:
        _read_cpu(kubelet.cpu, now, empty, fixed)
    if kubelet.memory is not None:
        odd = _read_memory(kubelet.memory.tables, now, empty) or odd
    _read_devices(kubelet, zones, now, empty, fixed)
    if kubelet.predicates:
        _read_slack(kubelet, now, empty)
    return Counts(now, empty, fixed, odd)


def _read_cpu(manager: CpuManager, now: Column, empty: Column, fixed: Column) -> None:
    policy, topology = manager.policy, manager.policy.topology
    available, allocatable = manager.available, topology.cpus & ~policy.reserved
    shared = topology.cpus & ~policy.reserved if policy.options.strict_reservation else topology.cpus
    whole = ~policy.reserved_physical
    physical = 0
    if policy.options.full_pcpus_only:
        physical = (manager.default & whole).bit_count()
    free_cores, all_cores = topology.whole_cores(available), topology.whole_cores(allocatable)
    free, most, capacity, cores, most_cores = [], [], [], [], []
    for cpus in topology.numa_cpus:
        free.append((cpus & available).bit_count() if cpus else OUT)
        most.append((cpus & allocatable).bit_count() if cpus else OUT)
        capacity.append(cpus.bit_count())
        cores.append((cpus & free_cores).bit_count())
        most_cores.append((cpus & all_cores).bit_count())
    now[CPU] = [*free, available.bit_count(), physical, *cores]
    empty[CPU] = [*most, allocatable.bit_count(), (shared & whole).bit_count(), *most_cores]
    options, places = policy.options, topology.socket_places
    packed = not (options.distribute_across_numa or options.distribute_across_cores or options.align_by_uncore)
    fixed[CORES] = [
        *capacity,
        topology.cpus_per_core,
        topology.is_even,
        packed and topology.is_even and places is not None,
        topology.sockets_total >= len(topology.numas),
        topology.cpus_per_socket,
        *(places or [0] * len(capacity)),
    ]


def _read_memory(tables: MemoryTables, now: Column, empty: Column) -> str:
    zones = tables.policy.count
    used = alone = 0
    for position in range(zones):
        if tables.assignments[position]:
            used |= 1 << position
        if tables.cells[position] == 1 << position:
            alone |= 1 << position
    everything = (1 << zones) - 1
    now[GROUPS] = [used, alone, alone != everything, *tables.cells]
    empty[GROUPS] = [0, everything, 0, *[1 << position for position in range(zones)]]
    odd = ""
    for name, allocatable in tables.policy.allocatable.items():
        now["memory", name] = [*tables.free[name], 1]
        empty["memory", name] = [*allocatable, 1]
        if min(allocatable) < 0:
            odd = "negative-memory"
    return odd


def _read_devices(kubelet: Kubelet, zones: int, now: Column, empty: Column, fixed: Column) -> None:
    manager, used = kubelet.devices, kubelet._used
    for resource, table in manager.tables.items():
        healthy, allocated = table.healthy, manager.allocated[resource]
        available = healthy & ~allocated
        free, most, capacity = [], [], []
        for near in table.near:
            free.append((near & available).bit_count() if near else OUT)
            most.append((near & healthy).bit_count() if near else OUT)
            capacity.append(near.bit_count())
        count = healthy.bit_count()
        flags = (1, table.has_topology, not table.of_one_node)
        now["device", resource] = [
            *free, available.bit_count(), count, allocated.bit_count(), used.get(resource, 0), *flags
        ]  # fmt: skip
        empty["device", resource] = [*most, count, count, 0, 0, *flags]
        fixed["devices", resource] = capacity


def _read_slack(kubelet: Kubelet, now: Column, empty: Column) -> None:
    used, capacity = kubelet._used, kubelet._fixed
    for name, amount in capacity.items():
        empty["slack", name] = [amount]
        now["slack", name] = [amount - used.get(name, 0)]
    now[PODS] = [capacity["pods"] - len(kubelet.active)]
    for name, amount in used.items():
        if amount and name not in capacity and name.startswith(HUGEPAGES):
            now["slack", name] = [-amount]
            empty["slack", name] = [0]


def _distances(kubelet: Kubelet, zones: int) -> list[int]:
    distances = kubelet.topology_manager.distances
    if distances is None:
        return [_LOCAL if one == other else _REMOTE for one in range(zones) for other in range(zones)]
    return [distance for row in distances for distance in row]
