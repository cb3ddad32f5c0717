"""What is shown, for programs: `-o json`, `-o yaml` and `-o name`.

The objects themselves are kubectl's to print. What it cannot print is what is made of them: free sums, fragmentation,
precision. Amounts are quantities as Kubernetes writes them, and exact where tables round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from topowise import cpuset, documents, quantity
from topowise.text import Line
from topowise_scheduler.presentation.kubectl import zones
from topowise_scheduler.presentation.kubectl.objects import Reported
from topowise_scheduler.presentation.picture import Picture
from topowise_scheduler.presentation.picture.contents import Owner, Zone
from topowise_scheduler.report import Report

Json = dict[str, Any]


def one_or_all(given: Sequence[Any], form: str) -> str:
    """A document as JSON or YAML, without a list around the only thing that was asked about."""
    return documents.spell(given[0] if len(given) == 1 else given, form)


def names(kind: str, given: Iterable[str]) -> list[Line]:
    """A line each, as `-o name` of kubectl has it: what commands take."""
    return [f"{kind}/{name}" for name in given]


def node(found: Reported, report: Report) -> Json:
    """A row of `nodes`. `changed` is None where nobody tells, `fragmentation` percent."""
    mine = zones.zones_of(found.topology)
    amounts = [zone for _, zone in mine]
    return {
        **_facts(report.name, report.policy, report.empty.settings.topology.scope, report.precision),
        "changed": found.changed or None,
        "fragmentation": zones.lost(report, amounts),
        **_amounts({name: _sum(amounts, name) for name in zones.resources(amounts)}),
        "zones": [{"id": numa_id, **_amounts(zone)} for numa_id, zone in mine],
        "problems": list(report.problems),
    }


def machine(drawn: Picture, changed: str) -> Json:
    """A picture. What is free of memory is None where no manager keeps count."""
    return {
        **_facts(drawn.node, drawn.policy, drawn.scope, drawn.precision),
        "changed": changed or None,
        "zones": [_zone(zone) for zone in drawn.zones],
        "pods": [_pod(owner) for owner in drawn.owners],
        "otherPods": drawn.others,
    }


def _facts(name: str, policy: str, scope: str, precision: str) -> Json:
    return {"node": name, "policy": policy, "scope": scope, "precision": precision}


def _sum(mine: zones.Zones, resource: str) -> zones.Amount:
    there = [zone[resource] for zone in mine if resource in zone]
    known = [one.available for one in there if one.available is not None]
    return zones.Amount(sum(known) if len(known) == len(there) else None, sum(one.allocatable for one in there))


def _amounts(amounts: dict[str, zones.Amount]) -> Json:
    free = {name: None if one.available is None else _quantity(name, one.available) for name, one in amounts.items()}
    return {"free": free, "allocatable": {name: _quantity(name, one.allocatable) for name, one in amounts.items()}}


def _quantity(resource: str, amount: int) -> str:
    return quantity.from_milli(amount) if resource == "cpu" else str(amount)


def _zone(zone: Zone) -> Json:
    cpus = [thread.id for thread in zone.threads if thread.id is not None]
    free = [thread for thread in zone.threads if thread.state == "free"]
    memory = {one.type: None if one.free is None else str(one.free) for one in zone.memory if one.total}
    devices = {one.resource: str(sum(device.is_free for device in one.devices)) for one in zone.devices}
    return {
        "id": zone.id,
        "cpus": cpuset.spell(cpus),
        "freeCpus": cpuset.spell(thread.id for thread in free if thread.id is not None),
        "free": {"cpu": str(len(free)), **memory, **devices},
        "capacity": {
            "cpu": str(len(zone.threads)),
            **{one.type: str(one.total) for one in zone.memory if one.total},
            **{one.resource: str(len(one.devices)) for one in zone.devices},
        },
    }


def _pod(owner: Owner) -> Json:
    """Ids are known with precision "exact" alone."""
    return {
        "pod": owner.name,
        "cpuCount": owner.cpu_count,
        "cpus": cpuset.spell(owner.cpus),
        "memory": [{"type": one.type, "numa": list(one.zones), "bytes": one.size} for one in owner.memory],
        "deviceCounts": owner.device_counts,
        "devices": {name: list(ids) for name, ids in owner.devices.items()},
    }
