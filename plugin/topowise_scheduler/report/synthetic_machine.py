"""The simplest machine with given counts: the one way in which an object without ids is read.

- Every zone is a NUMA node, and a socket, with as many single-thread cores as its capacity of CPUs, rounded down. What
  is not allocatable of them is reserved. The CPU manager's options are not known, so there are none.
- Memory and hugepages are what is allocatable, whole pages only. What a zone does not list, it has none of.
- Devices are near their zone alone, under made-up ids; those that are not allocatable are unhealthy.
- What is not available is held by one made-up pod per zone that never ends and requests as much. Its memory lies on
  that zone alone: whether the memory manager uses nodes together counts do not show.
- A manager is on as the attributes say, else if some zone lists its resource.
- The predicates compare with the sums over the zones; a resource that no zone lists is not checked. Of hugepages a
  node has none if its memory manager is on and no zone lists them. A pod that asks for 0 of them is another matter: the
  kubelet takes it if it knows the size, which its Node lists then, and else it panics.

What the model admits then fits what is available: per zone with policy single-numa-node, in sum over zones otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from topowise import feature_gates, nrt
from topowise.pods import HUGEPAGES, Amounts
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, NumaNode
from topowise_scheduler.kubelet.configuration import CpuSettings, Settings, TopologySettings
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.machine import hugepages_resource
from topowise_scheduler.kubelet.masks import mask_of
from topowise_scheduler.kubelet.versions import KubeletVersion
from topowise_scheduler.report.budget import MAX_ALL_DEVICES, MAX_DEVICES
from topowise_scheduler.report.costs import distances
from topowise_scheduler.report.hugepages import page_kib
from topowise_scheduler.report.policies import Policies

# No object says how many pods a node takes, and not every one how much memory.
_ANY_NUMBER_OF_PODS: Final = 1 << 31
_ANY_MEMORY: Final = 1 << 60
# Of every architecture that runs kubelets (Documentation/admin-guide/mm/hugetlbpage.rst).
_PAGE_SIZES_KIB: Final = (64, 2048, 16 << 10, 32 << 10, 512 << 10, 1 << 20, 16 << 20)


class Zone(NamedTuple):
    """What never changes of a zone; `amounts` are (resource, capacity, allocatable), canonical integers."""

    id: int
    costs: tuple[nrt.Cost, ...]
    amounts: tuple[tuple[str, int, int], ...]


# Nodes of one kind share theirs, which lives as long as one of their reports.
_kept: WeakValueDictionary[tuple[object, ...], Kubelet] = WeakValueDictionary()


def kubelet(
    zones: tuple[Zone, ...], policies: Policies, version: KubeletVersion, unlisted_sizes_kib: tuple[int, ...] = ()
) -> Kubelet:
    """The node. Of pages of `unlisted_sizes_kib` it has none, but its kubelet knows them."""
    key = zones, policies, version, unlisted_sizes_kib
    made = _kept.get(key)
    if made is None:
        made = _kept[key] = _made(zones, policies, version, unlisted_sizes_kib)
    return made


def _made(
    zones: tuple[Zone, ...], policies: Policies, version: KubeletVersion, unlisted_sizes_kib: tuple[int, ...]
) -> Kubelet:
    amounts = [{name: (capacity, allocatable) for name, capacity, allocatable in zone.amounts} for zone in zones]
    sums: Amounts = {}
    for name, _, allocatable in (amount for zone in zones for amount in zone.amounts):
        sums[name] = sums.get(name, 0) + allocatable
    plugins = tuple(
        [
            DevicePlugin(name, tuple(_devices(zones, [mine.get(name, (0, 0)) for mine in amounts])))
            for name in sorted(modelled_devices(amounts))
        ]
    )
    cores, reserved = _cores([mine.get("cpu", (0, 0)) for mine in amounts]) if policies.cpu else ([()] * len(zones), 0)
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
        del sums[plugin.resource]
    if not policies.memory:
        # Only a memory manager makes the kubelet list them.
        for kib in _PAGE_SIZES_KIB:
            sums.setdefault(hugepages_resource(kib), _ANY_MEMORY)
    machine = Machine(
        numa=tuple(_nodes(zones, amounts, cores, unlisted_sizes_kib, knows_memory="memory" in sums)), devices=plugins
    )
    return Kubelet(machine, settings, allocatable=sums)


# A node of which nothing is known admits everything.
NOTHING: Final = (Zone(0, (), ()),), Policies(TopologySettings("none", "container"), cpu=False, memory=False)


def _cores(counts: Iterable[tuple[int, int]]) -> tuple[list[tuple[Core, ...]], CpuSet]:
    """The cores of each zone, which is a socket too, and the reserved CPUs: the first of each, as many as it has."""
    cores: list[tuple[Core, ...]] = []
    reserved = first = 0
    for socket, (capacity, allocatable) in enumerate(counts):
        count = capacity // 1000
        cores.append(tuple([Core(socket, (cpu,)) for cpu in range(first, first + count)]))
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
    for zone, mine, of_zone in zip(zones, amounts, cores, strict=True):
        pages = {kib: mine.get(hugepages_resource(kib), (0, 0))[1] // (kib * 1024) for kib in sizes}
        memory = mine.get("memory", (0, 0))[1] if knows_memory else _ANY_MEMORY
        # The memory manager takes all hugepages off a node's memory again.
        memory += sum(kib * 1024 * count for kib, count in pages.items())
        yield NumaNode(zone.id, memory, of_zone, pages, distances(zone.costs, ids))


def known_sizes(zones: Iterable[Zone], resources: Iterable[str]) -> tuple[int, ...]:
    """The page sizes in KiB of these resources that no zone lists."""
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
    """The resources whose devices are made one by one; of all others only the sum is checked.

    `amounts` has a mapping for each zone, from resources to their capacity and more.
    """
    found = set()
    left = MAX_ALL_DEVICES
    for name in sorted({name for mine in amounts for name in mine if is_device(name)}):
        counts = [mine[name][0] for mine in amounts if name in mine]
        if max(counts) <= MAX_DEVICES and sum(counts) <= left:
            left -= sum(counts)
            found.add(name)
    return found


def is_memory(resource: str) -> bool:
    return resource == "memory" or resource.startswith(HUGEPAGES)


def is_device(resource: str) -> bool:
    return resource != "cpu" and not is_memory(resource)
