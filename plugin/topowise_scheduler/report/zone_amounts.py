"""Reads the capacity, allocatable and available amounts of each zone, and makes them consistent.

Exporters differ in small ways that are no errors: NFD's available may be negative, devices have no separate capacity,
and koordlet writes three equal numbers. In doubt the smaller number counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from topowise import nrt, quantity
from topowise.errors import ParseError
from topowise.pods import MAX_AMOUNT


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
