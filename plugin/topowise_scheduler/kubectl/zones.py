"""What the zones of a node have free: amounts as small bars and numbers, and their fragmentation.

Fragmentation depends on the report and the waiting pods. The configuration of the service is not read here, so shapes
that it declares do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from topowise import nrt, quantity
from topowise.errors import ParseError
from topowise.pods import HUGEPAGES
from topowise_scheduler.explain.text import with_unit
from topowise_scheduler.kubectl.console import BAD, WARN
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.report import Report, kubelet_of
from topowise_scheduler.verdicts.fragmentation import HIGH_LOSS, MEDIUM_LOSS, Fragmentation, most_frequent, of_node
from topowise_scheduler.verdicts.kube_scheduler import Pod

_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = "_.:-=+*#"
_NUMBERS_OF: Final = 4
"""The most zones with a number each."""


class Amount(NamedTuple):
    """Milli-CPU for cpu, else bytes or a number; None for an invalid amount in the report."""

    available: int | None
    allocatable: int


Zones = Sequence[dict[str, Amount]]
"""By zone, then by resource."""


def zones_of(topology: nrt.NodeResourceTopology) -> list[tuple[int, dict[str, Amount]]]:
    """The NUMA zones by id with their amounts; a resource without any allocatable amount is left out."""
    zones = []
    for numa_id, zone in nrt.numa_zones(topology):
        amounts = {resource.name: _amount(resource) for resource in zone.resources or ()}
        zones.append(
            (
                numa_id,
                {name: amount for name, amount in amounts.items() if amount.allocatable or amount.available is None},
            )
        )
    return zones


def resources(zones: Zones) -> list[str]:
    """All resources of the zones: cpu, memory, hugepages, devices."""
    names = {name for zone in zones for name in zone}
    return sorted(names, key=lambda name: (name != "cpu", name != "memory", not name.startswith(HUGEPAGES), name))


def short(resource: str) -> str:
    """A device without its vendor."""
    return resource.rpartition("/")[2]


def bars(zones: Zones, resource: str, *, is_ascii: bool) -> str:
    """A character for each zone: its free share, "-" for a zone without the resource."""
    levels = _ASCII_BARS if is_ascii else _BARS
    return "".join(_bar(zone.get(resource), levels) for zone in zones)


def numbers(zones: Zones, resource: str, *, is_short: bool = False) -> str:
    """Free amounts by zone, of the total; with many zones their sum, and the largest amount of a zone.

    `is_short` gives only the sum.
    """
    amounts = [zone.get(resource) for zone in zones]
    free = [None if amount is None else amount.available for amount in amounts]
    total = sum(amount.allocatable for amount in amounts if amount is not None)
    if len(zones) <= _NUMBERS_OF and not is_short:
        text = "+".join("-" if amount is None else _in_unit_of(resource, total, amount.available) for amount in amounts)
        return f"{text} of {to_text(resource, total)}"
    known = [amount for amount in free if amount is not None]
    text, best = (_in_unit_of(resource, total, number) for number in (sum(known), max(known, default=0)))
    if is_short:
        return f"{text} of {to_text(resource, total)}"
    return f"{text} (one zone {best}) of {to_text(resource, total)}"


def to_text(resource: str, amount: int) -> str:
    """An amount with its unit."""
    return quantity.from_milli(amount) if resource == "cpu" else with_unit(resource, amount)


def _amount(resource: nrt.Resource) -> Amount:
    """The amounts of a resource; available is at most allocatable, as the scheduler reads it."""
    try:
        may = max(0, quantity.for_resource(resource.name, resource.allocatable))
        return Amount(min(may, max(0, quantity.for_resource(resource.name, resource.available))), may)
    except ParseError:
        return Amount(None, 0)


def _bar(amount: Amount | None, levels: str) -> str:
    if amount is None or not amount.allocatable:
        return "-"
    if amount.available is None:
        return "?"
    # The lowest and the highest level are exact.
    share = min(amount.available, amount.allocatable) * (len(levels) - 1) / amount.allocatable
    return levels[min(len(levels) - 1 - (amount.available < amount.allocatable), -int(-share // 1))]


def _in_unit_of(resource: str, total: int, amount: int | None) -> str:
    """The number in the unit of the total, rounded down so that it never promises too much."""
    if amount is None:
        return "?"
    text = to_text(resource, total)
    unit = text.lstrip("0123456789.")
    if amount == total:
        return text.removesuffix(unit)
    size = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}.get(unit)
    if resource == "cpu" or size is None:
        return to_text(resource, amount)
    tenths = 10 * amount // size
    return f"{tenths // 10}.{tenths % 10}" if tenths < 100 and tenths % 10 else str(tenths // 10)


class Losses:
    """The fragmentation of nodes for these pods, computed at the first use."""

    def __init__(self, pods: Iterable[Pod] | None = None) -> None:
        records = map(Records().record, pods or ())
        self._waiting = most_frequent(
            (f"{record.namespace}/{record.name}", record.requests)
            for record in records
            if record.status.waits and record.requests is not None
        )
        self._by_node: dict[str, Fragmentation] = {}

    def of(self, report: Report) -> Fragmentation:
        """Returns the fragmentation of a node."""
        if report.name not in self._by_node:
            self._by_node[report.name] = of_node(kubelet_of(report, lambda _: None), self._waiting)
        return self._by_node[report.name]

    def cell(self, report: Report) -> str:
        """Returns the loss of a node as text."""
        loss = self.of(report).loss
        return "-" if loss is None else f"{loss}%"


def colour_of(cell: str) -> str:
    """Returns the colour of a cell."""
    loss = 0 if cell == "-" else int(cell.removesuffix("%"))
    return BAD if loss >= HIGH_LOSS else WARN if loss >= MEDIUM_LOSS else ""


def fragmentation_fields(fragmentation: Fragmentation) -> dict[str, Any]:
    """Returns the fields of a node's JSON: `fragmentation` in percent, amounts as quantities."""
    return {
        "fragmentation": fragmentation.loss,
        "largestAligned": {
            resource: {field: str(amount) for field, amount in figure._asdict().items()}
            for resource, figure in fragmentation.resources.items()
        },
        "copies": {name: figure._asdict() for name, figure in fragmentation.pods.items()},
    }
