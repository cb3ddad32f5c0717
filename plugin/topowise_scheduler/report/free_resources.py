"""Reads the free resources that the kubelet itself accounts, from the zones of an exact report.

The allocations of containers do not determine them. A block over several NUMA nodes does not show the amount per node.
A block of size 0 still counts as an assignment. A release returns memory to the lowest node first. So after all
allocations are booked, the kubelet's numbers replace the model's. Pods that ended later are released from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise import attributes, cpuset, digits, nrt, quantity
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy
from topowise_scheduler.report.hardware import text_of
from topowise_scheduler.report.nrt_report import FreeResources, ReportError
from topowise_scheduler.report.texts import cpu_set, mask_on

_ACCOUNTING: Final = {attributes.MEMORY_CELLS, attributes.MEMORY_ASSIGNMENTS}
_UNKNOWN: Final = FreeResources()

Zones = Sequence[tuple[nrt.Zone, Mapping[str, str]] | None]


def free_of(empty: Kubelet, zones: Zones, before: FreeResources | None = None) -> FreeResources:
    """Returns the free resources. `zones` are the modelled NUMA nodes in order, each with its attributes.

    A zone that is None is unchanged since `before`, which must be complete (`is_whole`). Raises ParseError, and
    ReportError for a missing or impossible value.
    """
    changed = [(position, *entry) for position, entry in enumerate(zones) if entry is not None]
    previous = before or _UNKNOWN
    cpus = None
    if empty.cpu is not None:
        cpus = previous.cpus or 0
        for position, zone, named in changed:
            # Only CPUs of this zone count: a damaged zone must not free CPUs of another zone.
            node_cpus = empty.topology.numa_cpus[position]
            cpus = cpus & ~node_cpus | node_cpus & cpu_set(text_of(named, attributes.ZONE_CPUS_AVAILABLE, zone.name))
    if empty.memory is None:
        return FreeResources(cpus)
    memory = _free_memory(empty.memory.policy, [(position, zone) for position, zone, _ in changed], previous)
    if any(not named.keys() >= _ACCOUNTING for _, _, named in changed):
        # The exporter could not read the kubelet's state file, so the model's own accounting stays.
        return FreeResources(cpus, memory)
    zeros = [0] * len(zones)
    assignments, cells = list(previous.assignments or zeros), list(previous.cells or zeros)
    for position, zone, named in changed:
        cells[position] = _cells(zone, named[attributes.MEMORY_CELLS], empty)
        assignments[position] = _assignments(zone, named[attributes.MEMORY_ASSIGNMENTS])
    return FreeResources(cpus, memory, tuple(assignments), tuple(cells))


def is_whole(free: FreeResources | None, empty: Kubelet) -> bool:
    """Returns whether a report has every value that `correct` sets. Then the previous state does not matter."""
    if free is None or (empty.cpu is not None and free.cpus is None):
        return False
    if empty.memory is None:
        return True
    return (
        free.assignments is not None
        and free.cells is not None
        and all(
            value is not None or allocatable <= 0
            for name, amounts in empty.memory.policy.allocatable.items()
            for value, allocatable in zip(free.memory.get(name, ()), amounts, strict=False)
        )
    )


def correct(free: FreeResources, kubelet: Kubelet) -> None:
    """Replaces the kubelet's free resources by the reported values."""
    if kubelet.cpu is not None and free.cpus is not None:
        kubelet.cpu.correct(free.cpus)
    if kubelet.memory is not None:
        kubelet.memory.tables.correct(free.memory, free.assignments, free.cells)


def _free_memory(
    policy: MemoryPolicy, zones: Sequence[tuple[int, nrt.Zone]], previous: FreeResources
) -> dict[str, tuple[int | None, ...]]:
    """Returns free bytes by type and node position; None on a node without allocatable memory, which reports none."""
    available = [
        (position, {entry.name: entry.available for entry in zone.resources or ()}) for position, zone in zones
    ]
    free: dict[str, tuple[int | None, ...]] = {}
    for name, amounts in policy.allocatable.items():
        values = [*previous.memory.get(name, [None] * len(amounts))]
        for position, named in available:
            text, limit = named.get(name), amounts[position]
            # The limit protects the model's invariant 0 <= free <= allocatable against damaged objects.
            values[position] = None if text is None or limit <= 0 else min(limit, max(0, quantity.value(text)))
        free[name] = tuple(values)
    return free


def _cells(zone: nrt.Zone, text: str, empty: Kubelet) -> Mask:
    mask = mask_on(text, empty.all_node_ids, empty.node_ids)
    if not mask:
        raise ReportError(
            f"attribute {attributes.MEMORY_CELLS} of zone {zone.name}: {text!r:.80}, "
            f"expected some of the NUMA nodes {cpuset.to_text(empty.all_node_ids)}"
        )
    return mask


def _assignments(zone: nrt.Zone, text: str) -> int:
    number = digits.natural(text)
    if number is None:
        raise ReportError(
            f"attribute {attributes.MEMORY_ASSIGNMENTS} of zone {zone.name}: {text!r:.80}, expected a number of blocks"
        )
    return number
