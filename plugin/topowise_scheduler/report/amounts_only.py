"""Reads an object without ids as the simplest machine with its amounts (synthetic_machine.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from topowise import attributes, nrt, quantity
from topowise.errors import ConfigError, ParseError
from topowise.pods import HUGEPAGES
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.machine import is_memory
from topowise_scheduler.kubelet.masks import KUBELET_BITS, MAX_NODES
from topowise_scheduler.kubelet.versions import KubeletVersion
from topowise_scheduler.report import budget, synthetic_machine
from topowise_scheduler.report.nrt_report import PageSizes, PlaceholderPod
from topowise_scheduler.report.policies import Policies, policies_of
from topowise_scheduler.report.synthetic_machine import ZoneAmount, amounts_of_zones, occupants_of
from topowise_scheduler.report.texts import distances, page_kib

_MAX_NAMED_ZONES: Final = 4


class AmountsSource(NamedTuple):
    """The amounts and policies from which the machine is built."""

    zones: tuple[synthetic_machine.Zone, ...]
    policies: Policies

    def empty(self, version: KubeletVersion, page_sizes: PageSizes = ()) -> Kubelet:
        """Returns the node without pods, with a kubelet of this version."""
        # Nodes with equal zones and policies share the kubelet, so page sizes count only where the memory manager reads
        # them.
        unlisted_sizes = synthetic_machine.known_sizes(self.zones, page_sizes) if self.policies.memory else ()
        return synthetic_machine.kubelet(self.zones, self.policies, version, unlisted_sizes)

    def parts(self, version: KubeletVersion, page_sizes: PageSizes = ()) -> synthetic_machine.Parts:
        """Returns the machine and the settings that stand for the amounts."""
        unlisted_sizes = synthetic_machine.known_sizes(self.zones, page_sizes) if self.policies.memory else ()
        return synthetic_machine.parts(self.zones, self.policies, version, unlisted_sizes)


class AmountsOnly(NamedTuple):
    empty: Kubelet
    source: AmountsSource
    placeholders: tuple[PlaceholderPod, ...]


def read(
    topology: nrt.NodeResourceTopology,
    named: Mapping[str, str],
    zones: Sequence[tuple[int, nrt.Zone]],
    version: KubeletVersion,
    page_sizes: PageSizes,
    problems: list[str],
) -> AmountsOnly:
    """Returns the node, and appends problems. `named` are the object's attributes, `zones` the zones of type Node by
    id. Raises OverBudgetError."""
    if not zones:
        problems.append("zones: none of type Node named node-<id>, expected one per NUMA node; nothing is checked")
        source = AmountsSource(*synthetic_machine.NOTHING)
        return AmountsOnly(source.empty(version, page_sizes), source, ())
    budget.check_amounts(zone for _, zone in zones)
    all_counts = amounts_of_zones([zone for _, zone in zones], problems)
    counts = [_usable(zone, amounts, problems) for (_, zone), amounts in zip(zones, all_counts, strict=True)]
    if _gives_no_cpus(zone for _, zone in zones):
        # A listed CPU would switch the CPU manager on, see `policies_of`.
        counts = [{name: count for name, count in amounts.items() if name != "cpu"} for amounts in counts]
    listed = {resource for amounts in counts for resource in amounts}
    policies = policies_of(named, topology.topologyPolicies, listed, problems)
    if zones[-1][0] >= KUBELET_BITS and (policies.topology.policy != "none" or policies.memory):
        zones, counts = _within_masks(zones, counts, problems)
    policies = _with_known_distances(policies, zones, problems)
    # Without a plausible number no cores are built: a damaged number must not cost memory.
    policies = policies._replace(cpu=policies.cpu and _is_plausible_cpu_count(counts, problems))
    _report_too_many_devices(counts, problems)
    facts = tuple(
        [
            synthetic_machine.Zone(
                numa_id,
                zone.costs or (),
                tuple(sorted((name, count.capacity, count.allocatable) for name, count in amounts.items())),
            )
            for (numa_id, zone), amounts in zip(zones, counts, strict=True)
        ]
    )
    source = AmountsSource(facts, policies)
    try:
        kubelet = source.empty(version, page_sizes)
    except ConfigError:
        # Without policies the model needs no masks.
        problems.append(f"zones: {len(zones)}, expected up to {MAX_NODES} with a policy; only sums are checked")
        source = AmountsSource(
            facts, Policies(TopologySettings("none", policies.topology.scope), cpu=False, memory=False)
        )
        kubelet = source.empty(version, page_sizes)
    return AmountsOnly(kubelet, source, tuple(occupants_of(kubelet, zones, counts)))


def _within_masks(
    zones: Sequence[tuple[int, nrt.Zone]], counts: list[dict[str, ZoneAmount]], problems: list[str]
) -> tuple[Sequence[tuple[int, nrt.Zone]], list[dict[str, ZoneAmount]]]:
    """Returns the zones whose NUMA id fits into the kubelet's masks, at least one zone."""
    kept = sum(numa_id < KUBELET_BITS for numa_id, _ in zones)
    left_out = ", ".join([zone.name for _, zone in zones[kept : kept + _MAX_NAMED_ZONES]])
    more = f" and {len(zones) - kept - _MAX_NAMED_ZONES} more" if len(zones) - kept > _MAX_NAMED_ZONES else ""
    problems.append(
        f"zones: {left_out:.200}{more}, expected ids below {KUBELET_BITS}, as many bits as the kubelet's masks have: "
        "it panics when it aligns a pod on such a machine; left out"
    )
    # A machine has at least one NUMA node, so the first zone stays, without amounts.
    return (zones[:kept], counts[:kept]) if kept else (zones[:1], [dict.fromkeys(counts[0], ZoneAmount(0, 0, 0))])


def _gives_no_cpus(zones: Iterable[nrt.Zone]) -> bool:
    """Returns whether all CPUs of all zones are reserved for the system.

    RTE and NFD write NUMA nodes in this form if the kubelet reports nothing about them. A static CPU manager leaves
    some CPUs allocatable, so the manager is off, and CPUs are not listed. If some CPUs are available all the same, the
    object contradicts itself, and the answer is False.
    """
    cpus = [resource for zone in zones for resource in zone.resources or () if resource.name == "cpu"]
    try:
        return any(quantity.milli_value(entry.capacity) > 0 for entry in cpus) and all(
            quantity.milli_value(entry.allocatable) == 0 >= quantity.milli_value(entry.available) for entry in cpus
        )
    except ParseError:
        # An unreadable amount has its own problem already.
        return False


def _usable(zone: nrt.Zone, counts: Mapping[str, ZoneAmount], problems: list[str]) -> dict[str, ZoneAmount]:
    """Returns the amounts that the synthetic machine can represent."""
    usable = {}
    for name, count in counts.items():
        # The kubelet aligns nothing to devices of resource claims, and no container requests them by this name. Markers
        # of steering have the NUMA node of the moment at which another project's exporter read them.
        if name.startswith(attributes.CLAIMED_DEVICES) or name == MARKER:
            continue
        if name.startswith(HUGEPAGES) and page_kib(name) is None:
            problems.append(f"zone {zone.name}: {name!r:.80}, expected a size such as hugepages-2Mi; not checked")
            continue
        limit = budget.MAX_CPUS * 1000 if name == "cpu" else None if is_memory(name) else budget.MAX_DEVICES
        if limit is not None and count.capacity > limit:
            expected = f"zone {zone.name}, {name}: {count.capacity}, expected up to {limit}"
            if name == "cpu":
                problems.append(f"{expected} thousandths; counted as the limit")
                # CPUs become objects of the machine, so their number is limited.
                count = ZoneAmount(*(min(amount, limit) for amount in count))
            else:
                problems.append(f"{expected} devices; only its sum is checked")
        usable[name] = count
    return usable


def _is_plausible_cpu_count(counts: Sequence[Mapping[str, ZoneAmount]], problems: list[str]) -> bool:
    total, limit = sum(amounts["cpu"].capacity for amounts in counts if "cpu" in amounts), 1000 * budget.MAX_ALL_CPUS
    if total > limit:
        problems.append(f"zones: {total} thousandths of CPUs, expected up to {limit} in all; only their sum is checked")
    return total <= limit


def _report_too_many_devices(counts: Sequence[Mapping[str, ZoneAmount]], problems: list[str]) -> None:
    left_out = {name for zone in counts for name, count in zone.items() if 0 < count.capacity <= budget.MAX_DEVICES}
    # The machine leaves out the same resources, by the same function.
    left_out = {name for name in left_out if synthetic_machine.is_device(name)} - synthetic_machine.modelled_devices(
        counts
    )
    if left_out:
        problems.append(
            f"zones: more than {budget.MAX_ALL_DEVICES} devices in all, or {budget.MAX_DEVICES} of a resource in a "
            f"zone; of {len(left_out)} resources only the sum is checked"
        )


def _with_known_distances(policies: Policies, zones: Sequence[tuple[int, nrt.Zone]], problems: list[str]) -> Policies:
    """Returns the policies, without prefer-closest-numa-nodes if a distance is missing."""
    topology = policies.topology
    # The kubelet does not start with this option and without distances (NewManager); only the object lacks them.
    if topology.prefer_closest:
        ids = [numa_id for numa_id, _ in zones]
        if any(distances(zone.costs or (), ids) is None for _, zone in zones):
            problems.append(
                "costs: some are missing, expected one from each zone to each; prefer-closest-numa-nodes is ignored"
            )
            topology = msgspec.structs.replace(topology, prefer_closest=False)
    return policies._replace(topology=topology)
