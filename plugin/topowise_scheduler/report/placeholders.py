"""Books the unavailable amounts of a synthetic machine: a placeholder pod per zone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from topowise import nrt
from topowise_scheduler.kubelet import Kubelet, MemoryBlock, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import mask_of, members
from topowise_scheduler.report.hugepages import page_kib
from topowise_scheduler.report.nrt_report import PlaceholderPod
from topowise_scheduler.report.synthetic_machine import device_id
from topowise_scheduler.report.zone_amounts import ZoneAmount


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
