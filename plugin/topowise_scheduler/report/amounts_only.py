"""An object without ids, read as the simplest machine with its counts (synthetic_machine.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from topowise import attributes, nrt, quantity
from topowise.errors import ConfigError, ParseError
from topowise.pods import HUGEPAGES
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.masks import KUBELET_BITS, MAX_NODES
from topowise_scheduler.kubelet.versions import KubeletVersion
from topowise_scheduler.report import budget, synthetic_machine
from topowise_scheduler.report.costs import distances
from topowise_scheduler.report.hugepages import page_kib
from topowise_scheduler.report.nrt_report import Occupant, PageSizes
from topowise_scheduler.report.occupants import occupants_of
from topowise_scheduler.report.policies import Policies, policies_of
from topowise_scheduler.report.zone_amounts import Count, counts_of

_MOST_NAMED: Final = 4


class Source(NamedTuple):
    """The simplest machine with the counts."""

    zones: tuple[synthetic_machine.Zone, ...]
    policies: Policies

    def empty(self, version: KubeletVersion, page_sizes: PageSizes = ()) -> Kubelet:
        """The node with a kubelet of this version."""
        # Nodes that differ in nothing that counts share the kubelet.
        known = synthetic_machine.known_sizes(self.zones, page_sizes) if self.policies.memory else ()
        return synthetic_machine.kubelet(self.zones, self.policies, version, known)


class Counted(NamedTuple):
    empty: Kubelet
    source: Source
    occupants: tuple[Occupant, ...]


def read(
    topology: nrt.NodeResourceTopology,
    named: Mapping[str, str],
    zones: Sequence[tuple[int, nrt.Zone]],
    version: KubeletVersion,
    page_sizes: PageSizes,
    problems: list[str],
) -> Counted:
    """The node. `named` are the attributes on top, `zones` those of type Node by id; problems are added. Raises
    OverBudgetError."""
    if not zones:
        problems.append("zones: none of type Node named node-<id>, expected one per NUMA node; nothing is checked")
        source = Source(*synthetic_machine.NOTHING)
        return Counted(source.empty(version, page_sizes), source, ())
    budget.check_amounts(zone for _, zone in zones)
    all_counts = counts_of([zone for _, zone in zones], problems)
    counts = [_usable(zone, mine, problems) for (_, zone), mine in zip(zones, all_counts, strict=True)]
    if _gives_no_cpus(zone for _, zone in zones):
        counts = [{name: count for name, count in mine.items() if name != "cpu"} for mine in counts]
    listed = {resource for mine in counts for resource in mine}
    policies = policies_of(named, topology.topologyPolicies, listed, problems)
    if zones[-1][0] >= KUBELET_BITS and (policies.topology.policy != "none" or policies.memory):
        zones, counts = _within_masks(zones, counts, problems)
    policies = _ranked(policies, zones, problems)
    policies = policies._replace(cpu=policies.cpu and _are_as_many_as_machines_have(counts, problems))
    _tell_too_many_devices(counts, problems)
    facts = tuple(
        [
            synthetic_machine.Zone(
                numa_id,
                zone.costs or (),
                tuple(sorted((name, count.capacity, count.allocatable) for name, count in mine.items())),
            )
            for (numa_id, zone), mine in zip(zones, counts, strict=True)
        ]
    )
    source = Source(facts, policies)
    try:
        kubelet = source.empty(version, page_sizes)
    except ConfigError:
        problems.append(f"zones: {len(zones)}, expected up to {MAX_NODES} with a policy; only sums are checked")
        source = Source(facts, Policies(TopologySettings("none", policies.topology.scope), cpu=False, memory=False))
        kubelet = source.empty(version, page_sizes)
    return Counted(kubelet, source, tuple(occupants_of(kubelet, zones, counts)))


def _within_masks(
    zones: Sequence[tuple[int, nrt.Zone]], counts: list[dict[str, Count]], problems: list[str]
) -> tuple[Sequence[tuple[int, nrt.Zone]], list[dict[str, Count]]]:
    """The zones that a kubelet could align to."""
    count = sum(numa_id < KUBELET_BITS for numa_id, _ in zones)
    beyond = ", ".join([zone.name for _, zone in zones[count : count + _MOST_NAMED]])
    more = f" and {len(zones) - count - _MOST_NAMED} more" if len(zones) - count > _MOST_NAMED else ""
    problems.append(
        f"zones: {beyond:.200}{more}, expected ids below {KUBELET_BITS}, as many bits as the kubelet's masks have: it "
        "panics when it aligns a pod on such a machine; left out"
    )
    # A machine has one at least.
    return (zones[:count], counts[:count]) if count else (zones[:1], [dict.fromkeys(counts[0], Count(0, 0, 0))])


def _gives_no_cpus(zones: Iterable[nrt.Zone]) -> bool:
    """Whether all CPUs of all zones are said to be the system's.

    So RTE and NFD write NUMA nodes of which the kubelet says nothing. With CPU manager static some would be left, so it
    is off, and CPUs are not listed. Where some are available all the same, nobody knows what is meant.
    """
    cpu_amounts = [one for zone in zones for one in zone.resources or () if one.name == "cpu"]
    try:
        return any(quantity.milli_value(one.capacity) > 0 for one in cpu_amounts) and all(
            quantity.milli_value(one.allocatable) == 0 >= quantity.milli_value(one.available) for one in cpu_amounts
        )
    except ParseError:
        return False


def _usable(zone: nrt.Zone, counts: Mapping[str, Count], problems: list[str]) -> dict[str, Count]:
    """The counts of which a machine can be made."""
    usable = {}
    for name, count in counts.items():
        # The kubelet aligns nothing to devices of resource claims, and no pod asks for them by this name.
        if name.startswith(attributes.CLAIMED_DEVICES):
            continue
        if name.startswith(HUGEPAGES) and page_kib(name) is None:
            problems.append(f"zone {zone.name}: {name!r:.80}, expected a size such as hugepages-2Mi; not checked")
            continue
        most = (
            budget.MAX_CPUS * 1000
            if name == "cpu"
            else None
            if synthetic_machine.is_memory(name)
            else budget.MAX_DEVICES
        )
        if most is not None and count.capacity > most:
            expected = f"zone {zone.name}, {name}: {count.capacity}, expected up to {most}"
            if name == "cpu":
                problems.append(f"{expected} thousandths; counted as that")
                count = Count(*(min(amount, most) for amount in count))
            else:
                problems.append(f"{expected} devices; only its sum is checked")
        usable[name] = count
    return usable


def _are_as_many_as_machines_have(counts: Sequence[Mapping[str, Count]], problems: list[str]) -> bool:
    total, most = sum(mine["cpu"].capacity for mine in counts if "cpu" in mine), 1000 * budget.MAX_ALL_CPUS
    if total > most:
        problems.append(f"zones: {total} thousandths of CPUs, expected up to {most} in all; only their sum is checked")
    return total <= most


def _tell_too_many_devices(counts: Sequence[Mapping[str, Count]], problems: list[str]) -> None:
    left_out = {name for mine in counts for name, count in mine.items() if 0 < count.capacity <= budget.MAX_DEVICES}
    left_out = {name for name in left_out if synthetic_machine.is_device(name)} - synthetic_machine.modelled_devices(
        counts
    )
    if left_out:
        problems.append(
            f"zones: more than {budget.MAX_ALL_DEVICES} devices in all, or {budget.MAX_DEVICES} of a resource in a "
            f"zone; of {len(left_out)} resources only the sum is checked"
        )


def _ranked(policies: Policies, zones: Sequence[tuple[int, nrt.Zone]], problems: list[str]) -> Policies:
    """The policies, without preferring what is closest where that is not known."""
    topology = policies.topology
    if topology.prefer_closest:
        ids = [numa_id for numa_id, _ in zones]
        if any(distances(zone.costs or (), ids) is None for _, zone in zones):
            problems.append(
                "costs: some are missing, expected one from each zone to each; the closest are not preferred"
            )
            topology = msgspec.structs.replace(topology, prefer_closest=False)
    return policies._replace(topology=topology)
