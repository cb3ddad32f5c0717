"""Reads an object of our exporter exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from topowise import attributes, nrt
from topowise.attributes.pci_devices import Located
from topowise.kubeletconfig import KubeletConfiguration
from topowise_scheduler.kubelet import Kubelet, Machine
from topowise_scheduler.kubelet.versions import KubeletVersion
from topowise_scheduler.report import free_resources, hardware
from topowise_scheduler.report.container_allocations import Allocatable, Allocations, allocations_of
from topowise_scheduler.report.nrt_report import FreeResources, PageSizes, Report, ReportError
from topowise_scheduler.report.texts import pci_paths_of

# Only our exporter writes these attributes.
_OURS = (attributes.CORES, attributes.HOLDINGS, attributes.KUBELET_CONFIGURATION)


class ExactSource(NamedTuple):
    """The texts of the machine, and of its devices."""

    facts: hardware.Facts
    devices: str

    def empty(self, version: KubeletVersion, page_sizes: PageSizes = ()) -> Kubelet | None:
        """Returns the node without pods, or None if a kubelet of this version does not start there.

        Our exporter lists all page sizes, so `page_sizes` has no effect.
        """
        return hardware.empty(self.facts, self.devices, version).kubelet

    def parts(self) -> tuple[Machine, KubeletConfiguration]:
        """Returns the machine and the configuration of the kubelet. Raises TopowiseError or ValueError."""
        return hardware.machine_and_configuration(self.facts, self.devices)

    def changed(self, version: KubeletVersion, fields: Mapping[str, Any]) -> Kubelet:
        """Returns the node without pods, with another version and other fields of its configuration.

        Raises KubeletStartError if such a kubelet does not start.
        """
        return hardware.changed(self.facts, self.devices, version, fields)


class Exact(NamedTuple):
    empty: Kubelet
    source: ExactSource
    allocations: Allocations
    free: FreeResources
    places: Mapping[str, Located]
    problems: tuple[str, ...]


def is_ours(named: Mapping[str, str]) -> bool:
    """Returns whether the object has an attribute of our exporter."""
    return any(attribute in named for attribute in _OURS)


def read(
    named: Mapping[str, str],
    zones: Sequence[tuple[int, nrt.Zone | None]],
    version: KubeletVersion,
    before: Report | None = None,
) -> Exact | None:
    """Returns the node. `named` are the object's attributes, `zones` the zones of type Node by id.

    `before` is the node's previous report. A zone that is None equals the zone there. Returns None if such a zone is
    needed and the node has changed. Raises TopowiseError or ValueError for the first fault that prevents exactness.
    """
    parsed = {numa_id: (zone, nrt.attributes_of(zone.attributes)) for numa_id, zone in zones if zone is not None}
    previous_facts = None if before is None or not isinstance(before.source, ExactSource) else before.source.facts
    facts = hardware.facts_of(named, [(numa_id, parsed.get(numa_id)) for numa_id, _ in zones], previous_facts)
    holdings = hardware.text_of(named, attributes.HOLDINGS)
    source = ExactSource(facts, named.get(attributes.DEVICES, ""))
    empty, problems = hardware.empty(*source, version)
    if empty is None:
        raise ReportError("; ".join(problems))
    # `hardware.empty` returns the same object for the same texts, so identity means that the node has not changed.
    unchanged = before if before is not None and before.empty is empty else None
    if unchanged is None and len(parsed) < len(zones):
        return None
    derived_resources = attributes.read_names(named, attributes.DERIVED)
    # Amounts from /sys mean that the manager is off, which contradicts a configuration with the manager on.
    for resource in derived_resources and derived_resources & _managed(empty):
        raise ReportError(
            f"attribute {attributes.DERIVED}: {resource}, expected no resource whose manager is on by "
            f"{attributes.KUBELET_CONFIGURATION}"
        )
    # Only modelled NUMA nodes have a position in the kubelet's masks.
    modelled = [parsed.get(numa_id) for numa_id, _ in zones if numa_id in empty.node_ids]
    reported_free = free_resources.free_of(empty, modelled, None if unchanged is None else unchanged.free)
    # The memory manager knows the types of its machine; a block of any other type is damage.
    types = frozenset(() if empty.memory is None else empty.memory.tables.free)
    allocatable = Allocatable(empty.topology.cpus, empty.all_node_ids, types)
    places, pci_problems = pci_paths_of(named.get(attributes.PCI, ""))
    previous = Allocations(unchanged.held, unchanged.marks) if unchanged is not None and unchanged.marks else None
    allocations = allocations_of(holdings, allocatable, previous)
    return Exact(empty, source, allocations, reported_free, places, (*problems, *pci_problems))


def _managed(empty: Kubelet) -> set[str]:
    """Returns the resources whose manager has something to allocate."""
    managed = set()
    if empty.cpu is not None and empty.cpu.available:
        managed.add("cpu")
    if empty.memory is not None and any(max(amounts) > 0 for amounts in empty.memory.policy.allocatable.values()):
        managed.add("memory")
    return managed
