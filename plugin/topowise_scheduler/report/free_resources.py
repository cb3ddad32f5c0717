"""What is free by the kubelet's own accounting, from the zones of an exact report.

Holders do not tell all: a block over several nodes does not say how much lies on which, blocks of size 0 still count
as assignments, and a release gives back to the lowest node first whoever took it where. So once every container holds
what it is said to hold, the kubelet's numbers are put in place of ours. Pods that have ended since are released from
there, as the kubelet will.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise import attributes, cpuset, digits, nrt, quantity
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy
from topowise_scheduler.report.cpulists import cpu_set, mask_on
from topowise_scheduler.report.hardware import text_of
from topowise_scheduler.report.nrt_report import FreeResources, ReportError

_ACCOUNTING: Final = {attributes.MEMORY_CELLS, attributes.MEMORY_ASSIGNMENTS}
_UNKNOWN: Final = FreeResources()

Zones = Sequence[tuple[nrt.Zone, Mapping[str, str]] | None]


def free_of(empty: Kubelet, zones: Zones, before: FreeResources | None = None) -> FreeResources:
    """What is free. `zones` are those of the NUMA nodes in order, with their attributes; None is one of which all is as
    in `before`, which must be whole (`is_whole`).

    Raises ParseError, and ReportError for what is missing or cannot be.
    """
    told = [(position, *given) for position, given in enumerate(zones) if given is not None]
    known = before or _UNKNOWN
    cpus = None
    if empty.cpu is not None:
        cpus = known.cpus or 0
        for position, zone, named in told:
            mine = empty.topology.numa_cpus[position]
            cpus = cpus & ~mine | mine & cpu_set(text_of(named, attributes.ZONE_CPUS_AVAILABLE, zone.name))
    if empty.memory is None:
        return FreeResources(cpus)
    memory = _free_memory(empty.memory.policy, [(position, zone) for position, zone, _ in told], known)
    if any(not named.keys() >= _ACCOUNTING for _, _, named in told):
        return FreeResources(cpus, memory)
    none = [0] * len(zones)
    assignments, cells = list(known.assignments or none), list(known.cells or none)
    for position, zone, named in told:
        cells[position] = _cells(zone, named[attributes.MEMORY_CELLS], empty)
        assignments[position] = _assignments(zone, named[attributes.MEMORY_ASSIGNMENTS])
    return FreeResources(cpus, memory, tuple(assignments), tuple(cells))


def is_whole(free: FreeResources | None, empty: Kubelet) -> bool:
    """Whether a report tells all that `keep` corrects, so that it does not matter what was there before."""
    if free is None or (empty.cpu is not None and free.cpus is None):
        return False
    if empty.memory is None:
        return True
    return (
        free.assignments is not None
        and free.cells is not None
        and all(
            value is not None or may <= 0
            for name, most in empty.memory.policy.allocatable.items()
            for value, may in zip(free.memory.get(name, ()), most, strict=False)
        )
    )


def keep(free: FreeResources, kubelet: Kubelet) -> None:
    """The kubelet has this free from now on."""
    if kubelet.cpu is not None and free.cpus is not None:
        kubelet.cpu.correct(free.cpus)
    if kubelet.memory is not None:
        kubelet.memory.tables.correct(free.memory, free.assignments, free.cells)


def _free_memory(
    policy: MemoryPolicy, zones: Sequence[tuple[int, nrt.Zone]], known: FreeResources
) -> dict[str, tuple[int | None, ...]]:
    """Free bytes by type and position; None where the kubelet may give nothing anyway, which it does not tell."""
    available = [(position, {one.name: one.available for one in zone.resources or ()}) for position, zone in zones]
    free: dict[str, tuple[int | None, ...]] = {}
    for name, most in policy.allocatable.items():
        values = [*known.memory.get(name, [None] * len(most))]
        for position, named in available:
            text, may = named.get(name), most[position]
            values[position] = None if text is None or may <= 0 else min(may, max(0, quantity.value(text)))
        free[name] = tuple(values)
    return free


def _cells(zone: nrt.Zone, text: str, empty: Kubelet) -> Mask:
    mask = mask_on(text, empty.all_node_ids, empty.node_ids)
    if not mask:
        raise ReportError(
            f"attribute {attributes.MEMORY_CELLS} of zone {zone.name}: {text!r:.80}, "
            f"expected some of the NUMA nodes {cpuset.spell(empty.all_node_ids)}"
        )
    return mask


def _assignments(zone: nrt.Zone, text: str) -> int:
    number = digits.natural(text)
    if number is None:
        raise ReportError(
            f"attribute {attributes.MEMORY_ASSIGNMENTS} of zone {zone.name}: {text!r:.80}, expected a number of blocks"
        )
    return number
