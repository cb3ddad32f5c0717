"""Builds the simplest machine with given amounts, for every object without ids.

- Every zone is a NUMA node and a socket. It has as many single-thread cores as its CPU capacity, rounded down. CPUs
  that are not allocatable are reserved. The CPU manager has no options, because they are unknown.
- Memory and hugepages are the allocatable amounts, in whole pages. A zone has none of a resource that it does not list.
- Devices have synthetic ids and are near their zone alone. Devices that are not allocatable are unhealthy.
- A placeholder pod per zone requests and has the unavailable amounts, and never ends. Its memory is on that zone
  alone: amounts do not show whether the memory manager uses NUMA nodes together.
- A manager is on as the attributes say, else if a zone lists its resource.
- The predicates compare with the sums over the zones. A resource that no zone lists is not checked. With an active
  memory manager, a node has no hugepages of a size that no zone lists. A pod that requests 0 of such a size is admitted
  if the kubelet knows the size, which the Node then lists; otherwise the kubelet panics.

So an admitted pod fits into the available amounts: per zone with policy single-numa-node, otherwise in sum.

The amounts of a zone are made consistent first. Exporters differ in small ways that are no errors: NFD's available may
be negative, devices have no separate capacity, and koordlet writes three equal numbers. In doubt the smaller number
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from topowise import feature_gates, nrt, quantity
from topowise.errors import ParseError
from topowise.pods import MAX_AMOUNT, Amounts
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, MemoryBlock, NumaNode, Placement
from topowise_scheduler.kubelet.configuration import CpuSettings, Settings, TopologySettings
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.machine import hugepages_resource, is_memory
from topowise_scheduler.kubelet.masks import mask_of, members
from topowise_scheduler.kubelet.versions import KubeletVersion
from topowise_scheduler.report.budget import MAX_ALL_DEVICES, MAX_DEVICES
from topowise_scheduler.report.nrt_report import PlaceholderPod
from topowise_scheduler.report.policies import Policies
from topowise_scheduler.report.texts import distances, page_kib


class ZoneAmount(NamedTuple):
    """capacity >= allocatable >= available >= 0; milli-CPU for cpu, else bytes or units, rounded down."""

    capacity: int
    allocatable: int
    available: int


_MAX_NAMED_ZONES: Final = 4


def amounts_of_zones(zones: Iterable[nrt.Zone], problems: list[str]) -> list[dict[str, ZoneAmount]]:
    """Returns the amounts of each zone by resource: 0 for unreadable amounts, the last of duplicate resources."""
    contradictions: list[str] = []
    counts = [
        {resource.name: _count(zone, resource, problems, contradictions) for resource in zone.resources or ()}
        for zone in zones
    ]
    if contradictions:
        # A single line for all zones: an exporter with this fault writes it in every zone.
        more = f" and {len(contradictions) - _MAX_NAMED_ZONES} more" if len(contradictions) > _MAX_NAMED_ZONES else ""
        problems.append(
            f"zones: {', '.join(contradictions[:_MAX_NAMED_ZONES])}{more} available of an allocatable of 0: the report "
            "contradicts itself; counted as none, so no pod gets any"
        )
    return counts


def _count(zone: nrt.Zone, resource: nrt.Resource, problems: list[str], contradictions: list[str]) -> ZoneAmount:
    try:
        capacity = _bounded_value(resource.name, resource.capacity)
        allocatable = _bounded_value(resource.name, resource.allocatable)
        available = _bounded_value(resource.name, resource.available)
    except ParseError as exc:
        problems.append(f"zone {zone.name}, {resource.name}: {exc}; counted as none")
        return ZoneAmount(0, 0, 0)
    # Collected over all zones, see `amounts_of_zones`.
    if available > 0 >= allocatable:
        contradictions.append(f"{zone.name:.80} {resource.name:.80} {resource.available!r:.80}")
    elif available > allocatable:
        problems.append(
            f"zone {zone.name}, {resource.name}: {resource.available!r:.80} available of {resource.allocatable!r:.80} "
            "allocatable, expected no more; counted as all of allocatable"
        )
    if allocatable > capacity:
        problems.append(
            f"zone {zone.name}, {resource.name}: {resource.allocatable!r:.80} allocatable of {resource.capacity!r:.80}"
            ", expected no more; allocatable is used as the capacity"
        )
    # NFD subtracts reservations, and may publish a negative result.
    allocatable = max(0, allocatable)
    return ZoneAmount(max(capacity, allocatable), allocatable, max(0, min(available, allocatable)))


def _bounded_value(resource: str, text: str | int) -> int:
    """Returns milli-CPUs or units, rounded down, and bounded so that sums fit into 64 bits."""
    # A thousandth of a CPU, or a unit.
    milli = quantity.milli_value(text)
    return max(-MAX_AMOUNT, min(MAX_AMOUNT, milli if resource == "cpu" else milli // 1000))


# Unlimited: no object has the pod limit of a node, and some objects have no memory.
_ANY_NUMBER_OF_PODS: Final = 1 << 31
_ANY_MEMORY: Final = 1 << 60
# Page sizes of all architectures that run kubelets (Documentation/admin-guide/mm/hugetlbpage.rst).
_PAGE_SIZES_KIB: Final = (64, 2048, 16 << 10, 32 << 10, 512 << 10, 1 << 20, 16 << 20)


class Zone(NamedTuple):
    """The constant part of a zone; `amounts` are (resource, capacity, allocatable), canonical integers."""

    id: int
    costs: tuple[nrt.Cost, ...]
    amounts: tuple[tuple[str, int, int], ...]


# Nodes with equal amounts share a kubelet, which lives as long as any of their reports.
_cache: WeakValueDictionary[tuple[object, ...], Kubelet] = WeakValueDictionary()


def kubelet(
    zones: tuple[Zone, ...], policies: Policies, version: KubeletVersion, unlisted_sizes_kib: tuple[int, ...] = ()
) -> Kubelet:
    """Returns the node without pods. It has no pages of `unlisted_sizes_kib`, but its kubelet knows these sizes."""
    key = zones, policies, version, unlisted_sizes_kib
    cached = _cache.get(key)
    if cached is None:
        cached = _cache[key] = _build(zones, policies, version, unlisted_sizes_kib)
    return cached


class Parts(NamedTuple):
    """What a kubelet is built from; `allocatable` is the node allocatable."""

    machine: Machine
    settings: Settings
    allocatable: Amounts


def _build(
    zones: tuple[Zone, ...], policies: Policies, version: KubeletVersion, unlisted_sizes_kib: tuple[int, ...]
) -> Kubelet:
    machine, settings, allocatable = parts(zones, policies, version, unlisted_sizes_kib)
    return Kubelet(machine, settings, allocatable=allocatable)


def parts(
    zones: tuple[Zone, ...], policies: Policies, version: KubeletVersion, unlisted_sizes_kib: tuple[int, ...] = ()
) -> Parts:
    """Returns the machine with these amounts, and the settings of its kubelet."""
    amounts = [{name: (capacity, allocatable) for name, capacity, allocatable in zone.amounts} for zone in zones]
    sums: Amounts = {}
    for name, _, allocatable in (amount for zone in zones for amount in zone.amounts):
        # The predicates compare with node allocatable, the sum over the zones.
        sums[name] = sums.get(name, 0) + allocatable
    plugins = tuple(
        [
            DevicePlugin(name, tuple(_devices(zones, [zone_amounts.get(name, (0, 0)) for zone_amounts in amounts])))
            for name in sorted(modelled_devices(amounts))
        ]
    )
    cores, reserved = (
        _cores([zone_amounts.get("cpu", (0, 0)) for zone_amounts in amounts])
        if policies.cpu
        else ([()] * len(zones), 0)
    )
    settings = Settings(
        topology=policies.topology,
        cpu=CpuSettings(reserved, 1000 * reserved.bit_count()) if policies.cpu else None,
        reserved_memory=({},) * len(zones) if policies.memory else None,
        reserved={},
        max_pods=_ANY_NUMBER_OF_PODS,
        pod_level_resources=feature_gates.is_on("PodLevelResources", dict(version.gates), {}),
        pod_level_resource_managers=False,
        sidecars=feature_gates.is_on("SidecarContainers", dict(version.gates), {}),
        behaviour=version.behaviour,
    )
    for plugin in plugins:
        # Modelled devices count by their health, not by the sum.
        del sums[plugin.resource]
    if not policies.memory:
        # Without a memory manager the amounts list no hugepages, so the predicates must not refuse them.
        for kib in _PAGE_SIZES_KIB:
            sums.setdefault(hugepages_resource(kib), _ANY_MEMORY)
    machine = Machine(
        numa=tuple(_nodes(zones, amounts, cores, unlisted_sizes_kib, knows_memory="memory" in sums)), devices=plugins
    )
    return Parts(machine, settings, sums)


# A node without any known resource: it admits every pod.
NOTHING: Final = (Zone(0, (), ()),), Policies(TopologySettings("none", "container"), cpu=False, memory=False)


def _cores(counts: Iterable[tuple[int, int]]) -> tuple[list[tuple[Core, ...]], CpuSet]:
    """Returns the cores of each zone, and the reserved CPUs: the first CPUs of each zone."""
    cores: list[tuple[Core, ...]] = []
    reserved = first = 0
    for socket, (capacity, allocatable) in enumerate(counts):
        count = capacity // 1000
        cores.append(tuple([Core(socket, (cpu,)) for cpu in range(first, first + count)]))
        # Which CPUs does not matter: amounts show only their number per zone.
        reserved |= mask_of(range(first, first + count - allocatable // 1000))
        first += count
    return cores, reserved


def _nodes(
    zones: Sequence[Zone],
    amounts: Sequence[Mapping[str, tuple[int, int]]],
    cores: Sequence[tuple[Core, ...]],
    unlisted_sizes_kib: Iterable[int],
    *,
    knows_memory: bool,
) -> Iterator[NumaNode]:
    ids = [zone.id for zone in zones]
    sizes = sorted({*_sizes(zones), *unlisted_sizes_kib})
    for zone, zone_amounts, zone_cores in zip(zones, amounts, cores, strict=True):
        pages = {kib: zone_amounts.get(hugepages_resource(kib), (0, 0))[1] // (kib * 1024) for kib in sizes}
        memory = zone_amounts.get("memory", (0, 0))[1] if knows_memory else _ANY_MEMORY
        # The memory manager subtracts all hugepages from a node's memory again (getDefaultMachineState).
        memory += sum(kib * 1024 * count for kib, count in pages.items())
        yield NumaNode(zone.id, memory, zone_cores, pages, distances(zone.costs, ids))


def known_sizes(zones: Iterable[Zone], resources: Iterable[str]) -> tuple[int, ...]:
    """Returns the page sizes in KiB of these resources that no zone lists."""
    sizes = {kib for name in resources if (kib := page_kib(name)) is not None}
    return tuple(sorted(sizes.difference(_sizes(zones)))) if sizes else ()


def _sizes(zones: Iterable[Zone]) -> set[int]:
    return {kib for zone in zones for name, _, _ in zone.amounts if (kib := page_kib(name)) is not None}


def _devices(zones: Sequence[Zone], counts: Sequence[tuple[int, int]]) -> Iterator[Device]:
    for zone, (capacity, allocatable) in zip(zones, counts, strict=True):
        for number in range(capacity):
            yield Device(device_id(zone.id, number), (zone.id,), healthy=number < allocatable)


def device_id(zone: int, number: int) -> str:
    return f"{nrt.zone_name(zone)}/{number:04}"


def modelled_devices(amounts: Sequence[Mapping[str, tuple[int, ...]]]) -> set[str]:
    """Returns the resources with individually modelled devices; all other devices are only checked as a sum.

    `amounts` has a mapping per zone, from resources to their capacity and further amounts.
    """
    modelled = set()
    remaining = MAX_ALL_DEVICES
    for name in sorted({name for zone_amounts in amounts for name in zone_amounts if is_device(name)}):
        counts = [zone_amounts[name][0] for zone_amounts in amounts if name in zone_amounts]
        # A resource with too many devices would cost memory for each device.
        if max(counts) <= MAX_DEVICES and sum(counts) <= remaining:
            remaining -= sum(counts)
            modelled.add(name)
    return modelled


def is_device(resource: str) -> bool:
    return resource != "cpu" and not is_memory(resource)


def occupants_of(
    kubelet: Kubelet, zones: Sequence[tuple[int, nrt.Zone]], counts: Sequence[Mapping[str, ZoneAmount]]
) -> Iterator[PlaceholderPod]:
    """Yields a placeholder pod for each zone with unavailable amounts."""
    for (numa_id, zone), amounts in zip(zones, counts, strict=True):
        # None for a zone that is not modelled: it has no resources of the managers (Machine.modelled).
        position = kubelet.devices.positions.get(numa_id)
        used = {name: count for name, count in amounts.items() if count.available < count.allocatable}
        if used:
            placement = Placement(
                kind="app",
                numa=(numa_id,),
                preferred=False,
                cpus=_cpus(kubelet, position, used["cpu"]) if "cpu" in used else None,
                memory=tuple(_blocks(kubelet, position, used)),
                devices={
                    name: tuple([device_id(numa_id, number) for number in range(count.allocatable - count.available)])
                    for name, count in used.items()
                    if name in kubelet.devices.tables
                },
            )
            requests = {name: count.allocatable - count.available for name, count in used.items()}
            yield PlaceholderPod(f"unavailable/{zone.name}", requests, {"": placement})


def _cpus(kubelet: Kubelet, position: int | None, count: ZoneAmount) -> CpuSet | None:
    """Returns the first CPUs that are not reserved, rounded up to whole CPUs."""
    if kubelet.cpu is None or position is None:
        return None
    usable = kubelet.topology.numa_cpus[position] & ~kubelet.cpu.policy.reserved
    # A CPU that is available in part counts as taken.
    taken = count.allocatable // 1000 - count.available // 1000
    return mask_of(islice(members(usable), taken))


def _blocks(kubelet: Kubelet, position: int | None, used: Mapping[str, ZoneAmount]) -> Iterator[MemoryBlock]:
    """Yields the memory in use, rounded up to whole pages."""
    if kubelet.memory is None or position is None:
        return
    for name, count in used.items():
        if name in kubelet.memory.policy.allocatable:
            # Bytes per page, 1 for memory.
            page = 1024 * (page_kib(name) or 0) or 1
            size = kubelet.memory.policy.allocatable[name][position] - count.available // page * page
            if size > 0:
                yield MemoryBlock(name, (kubelet.node_ids[position],), size)
