"""What a zone has, may give and still can give, as numbers that agree with each other.

Producers differ in small ways, and none of them is an error of the object: NFD's available may be negative, devices
have no capacity of their own, koordlet's three numbers are one. In doubt the smaller number counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from topowise import nrt, quantity
from topowise.errors import ParseError
from topowise.pods import MAX_AMOUNT


class Count(NamedTuple):
    """capacity >= allocatable >= available >= 0; milli-CPU for cpu, bytes or units for the rest, rounded down."""

    capacity: int
    allocatable: int
    available: int


_MOST_NAMED: Final = 4


def counts_of(zones: Iterable[nrt.Zone], problems: list[str]) -> list[dict[str, Count]]:
    """By resource, for each zone; one that cannot be read counts as none, one that is listed twice as the last."""
    closed: list[str] = []
    found = [{one.name: _count(zone, one, problems, closed) for one in zone.resources or ()} for zone in zones]
    if closed:
        # An exporter that gets this wrong does so everywhere, and nobody reads it zone by zone.
        more = f" and {len(closed) - _MOST_NAMED} more" if len(closed) > _MOST_NAMED else ""
        problems.append(
            f"zones: {', '.join(closed[:_MOST_NAMED])}{more} available of an allocatable of 0: the report contradicts "
            "itself; counted as none, so no pod gets any"
        )
    return found


def _count(zone: nrt.Zone, listed: nrt.Resource, problems: list[str], closed: list[str]) -> Count:
    try:
        capacity = _whole(listed.name, listed.capacity)
        allocatable = _whole(listed.name, listed.allocatable)
        available = _whole(listed.name, listed.available)
    except ParseError as exc:
        problems.append(f"zone {zone.name}, {listed.name}: {exc}; counted as none")
        return Count(0, 0, 0)
    if available > 0 >= allocatable:
        closed.append(f"{zone.name:.80} {listed.name:.80} {listed.available!r:.80}")
    elif available > allocatable:
        problems.append(
            f"zone {zone.name}, {listed.name}: {listed.available!r:.80} available of {listed.allocatable!r:.80} "
            "allocatable, expected no more; counted as all of it"
        )
    if allocatable > capacity:
        problems.append(
            f"zone {zone.name}, {listed.name}: {listed.allocatable!r:.80} allocatable of {listed.capacity!r:.80}, "
            "expected no more; capacity is counted as that"
        )
    allocatable = max(0, allocatable)
    return Count(max(capacity, allocatable), allocatable, max(0, min(available, allocatable)))


def _whole(resource: str, text: str | int) -> int:
    """Rounded down, to a thousandth of a CPU or to a unit; bounded, as sums have to fit into 64 bits."""
    milli = quantity.milli_value(text)
    return max(-MAX_AMOUNT, min(MAX_AMOUNT, milli if resource == "cpu" else milli // 1000))
