"""An object without ids, read as the simplest machine with its counts (simplest.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from topowise import nrt
from topowise.pods import HUGEPAGES
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.masks import MAX_NODES
from topowise_scheduler.report import simplest
from topowise_scheduler.report.costs import distances
from topowise_scheduler.report.counts import Count, counts_of
from topowise_scheduler.report.hugepages import page_kib
from topowise_scheduler.report.model import Occupant
from topowise_scheduler.report.occupants import occupants_of
from topowise_scheduler.report.policies import Policies, policies_of


class Counted(NamedTuple):
    empty: Kubelet
    occupants: tuple[Occupant, ...]


def read(
    topology: nrt.NodeResourceTopology,
    named: Mapping[str, str],
    zones: Sequence[tuple[int, nrt.Zone]],
    problems: list[str],
) -> Counted:
    """The node. `named` are the attributes on top, `zones` those of type Node by id; problems are added."""
    if not zones:
        problems.append("zones: none of type Node named node-<id>, expected one per NUMA node; nothing is checked")
        return Counted(simplest.unknown(), ())
    counts = [_usable(zone, counts_of(zone, problems), problems) for _, zone in zones]
    listed = {resource for mine in counts for resource in mine}
    policies = _modelled(policies_of(named, topology.topologyPolicies, listed, problems), zones, problems)
    facts = tuple(
        [
            simplest.Zone(
                numa_id,
                zone.costs or (),
                tuple(sorted((name, count.capacity, count.allocatable) for name, count in mine.items())),
            )
            for (numa_id, zone), mine in zip(zones, counts, strict=True)
        ]
    )
    kubelet = simplest.kubelet(facts, policies)
    return Counted(kubelet, tuple(occupants_of(kubelet, zones, counts)))


def _usable(zone: nrt.Zone, counts: Mapping[str, Count], problems: list[str]) -> dict[str, Count]:
    """The counts of which a machine can be made."""
    usable = {}
    for name, count in counts.items():
        if name.startswith(HUGEPAGES) and page_kib(name) is None:
            problems.append(f"zone {zone.name}: {name!r:.80}, expected a size such as hugepages-2Mi; not checked")
            continue
        most = simplest.MAX_CPUS * 1000 if name == "cpu" else None if simplest.is_memory(name) else simplest.MAX_DEVICES
        if most is not None and count.capacity > most:
            expected = f"zone {zone.name}, {name}: {count.capacity}, expected up to {most}"
            if name == "cpu":
                problems.append(f"{expected} thousandths; counted as that")
                count = Count(*(min(amount, most) for amount in count))
            else:
                problems.append(f"{expected} devices; only its sum is checked")
        usable[name] = count
    return usable


def _modelled(policies: Policies, zones: Sequence[tuple[int, nrt.Zone]], problems: list[str]) -> Policies:
    """The policies as far as they can be modelled on this machine."""
    topology = policies.topology
    if len(zones) > MAX_NODES and (topology.policy != "none" or policies.memory):
        problems.append(f"zones: {len(zones)}, expected up to {MAX_NODES} with a policy; only sums are checked")
        return Policies(TopologySettings("none", topology.scope), cpu=False, memory=False)
    if topology.prefer_closest:
        ids = [numa_id for numa_id, _ in zones]
        if any(distances(zone.costs or (), ids) is None for _, zone in zones):
            problems.append(
                "costs: some are missing, expected one from each zone to each; the closest are not preferred"
            )
            topology = msgspec.structs.replace(topology, prefer_closest=False)
    return policies._replace(topology=topology)
