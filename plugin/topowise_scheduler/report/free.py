"""What is free by the kubelet's own accounting, from the zones of an exact report.

Holders do not tell all: a block over several nodes does not say how much lies on which, blocks of size 0 still count
as assignments, and a release gives back to the lowest node first whoever took it where. So once every container holds
what it is said to hold, the kubelet's numbers are put in place of ours. Pods that have ended since are released from
there, as the kubelet will.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topowise import attributes, cpuset, digits, nrt, quantity
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy
from topowise_scheduler.report.hardware import text_of
from topowise_scheduler.report.model import FreeResources, Report, ReportError
from topowise_scheduler.report.sets import cpu_set, mask_on

Zones = Sequence[tuple[nrt.Zone, Mapping[str, str]]]


def free_of(empty: Kubelet, zones: Zones) -> FreeResources:
    """What is free. `zones` are those of the NUMA nodes in order, with their attributes.

    Raises ParseError, and ReportError for what is missing or cannot be.
    """
    cpus = None
    if empty.cpu is not None:
        cpus = 0
        for zone, named in zones:
            cpus |= cpu_set(text_of(named, attributes.ZONE_CPUS_AVAILABLE, zone.name))
    if empty.memory is None:
        return FreeResources(cpus)
    assignments, cells = [], []
    for zone, named in zones:
        if attributes.MEMORY_CELLS in named and attributes.MEMORY_ASSIGNMENTS in named:
            cells.append(_cells(zone, named[attributes.MEMORY_CELLS], empty))
            assignments.append(_assignments(zone, named[attributes.MEMORY_ASSIGNMENTS]))
    known = len(cells) == len(zones)
    return FreeResources(
        cpus,
        _free_memory(empty.memory.policy, [zone for zone, _ in zones]),
        tuple(assignments) if known else None,
        tuple(cells) if known else None,
    )


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


def _free_memory(policy: MemoryPolicy, zones: Sequence[nrt.Zone]) -> dict[str, tuple[int | None, ...]]:
    """Free bytes by type and position; None where the kubelet may give nothing anyway, which it does not tell."""
    available = [{one.name: one.available for one in zone.resources or ()} for zone in zones]
    free: dict[str, tuple[int | None, ...]] = {}
    for name, most in policy.allocatable.items():
        values: list[int | None] = []
        for named, may in zip(available, most, strict=True):
            available_text = named.get(name)
            values.append(
                None if available_text is None or may <= 0 else min(may, max(0, quantity.value(available_text)))
            )
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
