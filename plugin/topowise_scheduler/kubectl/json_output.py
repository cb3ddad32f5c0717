"""Output for programs: `-o json`, `yaml` and `name`.

kubectl prints the objects themselves. These documents have the derived values: free sums, fragmentation, precision.
Amounts are exact Kubernetes quantities, where tables round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from topowise import cpuset, documents, quantity
from topowise.runtime.output import Body
from topowise_scheduler.explain.picture import Picture
from topowise_scheduler.explain.picture.contents import Owner, Zone
from topowise_scheduler.kubectl import zones
from topowise_scheduler.kubectl.objects import Reported
from topowise_scheduler.report import Report

Json = dict[str, Any]


def printed(output: str, document: Any, *, names: Iterable[str] = ()) -> Body | None:
    """The answer in the format of `-o`, None for the formats of people; `names` are the nodes of `-o name`."""
    if output in ("json", "yaml"):
        return documents.to_text(document, output)
    if output == "name":
        return [f"node/{name}" for name in dict.fromkeys(names)]
    return None


def node(reported: Reported, report: Report, fragmentation: Json) -> Json:
    """A row of `nodes`. `changed` is None if the time is not known."""
    numa_zones = zones.zones_of(reported.topology)
    amounts = [zone for _, zone in numa_zones]
    return {
        **_facts(report.name, report.policy, report.empty.settings.topology.scope, report.precision),
        "changed": reported.changed or None,
        **fragmentation,
        **_amounts({name: _sum(amounts, name) for name in zones.resources(amounts)}),
        "zones": [{"id": numa_id, **_amounts(zone)} for numa_id, zone in numa_zones],
        "problems": list(report.problems),
    }


def machine(drawn: Picture, changed: str) -> Json:
    """A picture. Free memory is None if no memory manager accounts for it."""
    return {
        **_facts(drawn.node, drawn.policy, drawn.scope, drawn.precision),
        "changed": changed or None,
        "zones": [_zone(zone) for zone in drawn.zones],
        "pods": [_pod(owner) for owner in drawn.owners],
        "otherPods": drawn.other_pods,
    }


def _facts(name: str, policy: str, scope: str, precision: str) -> Json:
    return {"node": name, "policy": policy, "scope": scope, "precision": precision}


def _sum(node_zones: zones.Zones, resource: str) -> zones.Amount:
    there = [zone[resource] for zone in node_zones if resource in zone]
    known = [amount.available for amount in there if amount.available is not None]
    return zones.Amount(sum(known) if len(known) == len(there) else None, sum(amount.allocatable for amount in there))


def _amounts(amounts: dict[str, zones.Amount]) -> Json:
    free = {
        name: None if amount.available is None else _quantity(name, amount.available)
        for name, amount in amounts.items()
    }
    return {
        "free": free,
        "allocatable": {name: _quantity(name, amount.allocatable) for name, amount in amounts.items()},
    }


def _quantity(resource: str, amount: int) -> str:
    return quantity.from_milli(amount) if resource == "cpu" else str(amount)


def _zone(zone: Zone) -> Json:
    cpus = [thread.id for thread in zone.threads if thread.id is not None]
    free = [thread for thread in zone.threads if thread.state == "free"]
    memory = {part.type: None if part.free is None else str(part.free) for part in zone.memory if part.total}
    devices = {part.resource: str(sum(device.is_free for device in part.devices)) for part in zone.devices}
    return {
        "id": zone.id,
        "cpus": cpuset.to_text(cpus),
        "freeCpus": cpuset.to_text(thread.id for thread in free if thread.id is not None),
        "free": {"cpu": str(len(free)), **memory, **devices},
        "capacity": {
            "cpu": str(len(zone.threads)),
            **{part.type: str(part.total) for part in zone.memory if part.total},
            **{part.resource: str(len(part.devices)) for part in zone.devices},
        },
    }


def _pod(owner: Owner) -> Json:
    """Ids are known with precision "exact" alone."""
    return {
        "pod": owner.name,
        "cpuCount": owner.cpu_count,
        "cpus": cpuset.to_text(owner.cpus),
        "memory": [{"type": block.type, "numa": list(block.zones), "bytes": block.size} for block in owner.memory],
        "deviceCounts": owner.device_counts,
        "devices": {name: list(ids) for name, ids in owner.devices.items()},
    }
