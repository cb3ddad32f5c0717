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
from topowise_scheduler.report.hardware import text_of
from topowise_scheduler.report.model import FreeResources, Report, ReportError
from topowise_scheduler.report.sets import cpu_set, mask_on

_ACCOUNTING: Final = {attributes.MEMORY_CELLS, attributes.MEMORY_ASSIGNMENTS}
_UNKNOWN: Final = FreeResources()

Zones = Sequence[tuple[nrt.Zone, Mapping[str, str]] | None]


def free_of(empty: Kubelet, zones: Zones, before: FreeResources | None = None) -> FreeResources:
    """What is free. `zones` are those of the NUMA nodes in order, with their attributes; None is one of which all is as
    in `before`, which must be `is_known`.

    Raises ParseError, and ReportError for what is missing or cannot be.
    """
    known = before or _UNKNOWN
    cpus = None
    if empty.cpu is not None:
        cpus = known.cpus or 0
        for mine, given in zip(empty.topology.numa_cpus, zones, strict=True):
            if given is not None:
                zone, named = given
                cpus = cpus & ~mine | mine & cpu_set(text_of(named, attributes.ZONE_CPUS_AVAILABLE, zone.name))
    if empty.memory is None:
        return FreeResources(cpus)
    memory = _free_memory(empty.memory.policy, zones, known)
    if any(given and not given[1].keys() >= _ACCOUNTING for given in zones):
        return FreeResources(cpus, memory)
    return FreeResources(
        cpus,
        memory,
        tuple(
            [
                (known.assignments or ())[position] if given is None else _assignments(*given)
                for position, given in enumerate(zones)
            ]
        ),
        tuple(
            [
                (known.cells or ())[position] if given is None else _cells(*given, empty)
                for position, given in enumerate(zones)
            ]
        ),
    )


def is_known(free: FreeResources, empty: Kubelet) -> bool:
    """Whether it has what each single zone has told."""
    return empty.memory is None or free.assignments is not None


def is_whole(report: Report) -> bool:
    """Whether the report tells all that `keep` corrects, so that it does not matter what was there before."""
    free, empty = report.free, report.empty
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


def _free_memory(policy: MemoryPolicy, zones: Zones, known: FreeResources) -> dict[str, tuple[int | None, ...]]:
    """Free bytes by type and position; None where the kubelet may give nothing anyway, which it does not tell."""
    available = [given and {one.name: one.available for one in given[0].resources or ()} for given in zones]
    return {
        name: tuple(
            [
                known.memory[name][position] if named is None else _free_bytes(named.get(name), may)
                for position, (named, may) in enumerate(zip(available, most, strict=True))
            ]
        )
        for name, most in policy.allocatable.items()
    }


def _free_bytes(text: str | int | None, may: int) -> int | None:
    return None if text is None or may <= 0 else min(may, max(0, quantity.value(text)))


def _cells(zone: nrt.Zone, named: Mapping[str, str], empty: Kubelet) -> Mask:
    text = named[attributes.MEMORY_CELLS]
    mask = mask_on(text, empty.all_node_ids, empty.node_ids)
    if not mask:
        raise ReportError(
            f"attribute {attributes.MEMORY_CELLS} of zone {zone.name}: {text!r:.80}, "
            f"expected some of the NUMA nodes {cpuset.spell(empty.all_node_ids)}"
        )
    return mask


def _assignments(zone: nrt.Zone, named: Mapping[str, str]) -> int:
    text = named[attributes.MEMORY_ASSIGNMENTS]
    number = digits.natural(text)
    if number is None:
        raise ReportError(
            f"attribute {attributes.MEMORY_ASSIGNMENTS} of zone {zone.name}: {text!r:.80}, expected a number of blocks"
        )
    return number
