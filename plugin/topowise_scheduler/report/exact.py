"""An object of our exporter, read exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from topowise import attributes, nrt
from topowise.attributes.places import Located
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.versions import KubeletVersion
from topowise_scheduler.report import free_resources, hardware
from topowise_scheduler.report.container_allocations import Held, Known, held_by
from topowise_scheduler.report.nrt_report import FreeResources, PageSizes, Report, ReportError
from topowise_scheduler.report.pci_paths import places_of

# Any other exporter writes none of them.
_OURS = (attributes.CORES, attributes.HOLDINGS, attributes.KUBELET_CONFIGURATION)


class Source(NamedTuple):
    """The texts of the node, and of its devices."""

    facts: hardware.Facts
    devices: str

    def empty(self, version: KubeletVersion, page_sizes: PageSizes = ()) -> Kubelet | None:
        """The node with a kubelet of this version, None if that would not start. Our exporter lists all page sizes."""
        return hardware.empty(self.facts, self.devices, version).kubelet


class Exact(NamedTuple):
    empty: Kubelet
    source: Source
    held: Held
    free: FreeResources
    places: Mapping[str, Located]
    problems: tuple[str, ...]


def is_ours(named: Mapping[str, str]) -> bool:
    """Whether the object is meant to be read exactly."""
    return any(attribute in named for attribute in _OURS)


def read(
    named: Mapping[str, str],
    zones: Sequence[tuple[int, nrt.Zone | None]],
    version: KubeletVersion,
    before: Report | None = None,
) -> Exact | None:
    """The node. `named` are the attributes on top, `zones` those of type Node by id; `before` is its last report, and
    None a zone that is as there. None if it must not be None: the node is another one.

    Raises TopowiseError or ValueError for the first thing that keeps it from being exact.
    """
    of_zones = {numa_id: (zone, nrt.attributes_of(zone.attributes)) for numa_id, zone in zones if zone is not None}
    last = None if before is None or not isinstance(before.source, Source) else before.source.facts
    facts = hardware.facts_of(named, [(numa_id, of_zones.get(numa_id)) for numa_id, _ in zones], last)
    holdings = hardware.text_of(named, attributes.HOLDINGS)
    source = Source(facts, named.get(attributes.DEVICES, ""))
    empty, problems = hardware.empty(*source, version)
    if empty is None:
        raise ReportError("; ".join(problems))
    same = before if before is not None and before.empty is empty else None
    if same is None and len(of_zones) < len(zones):
        return None
    derived = attributes.read_names(named, attributes.DERIVED)
    for resource in derived and derived & _managed(empty):
        raise ReportError(
            f"attribute {attributes.DERIVED}: {resource}, expected none whose manager is on by "
            f"{attributes.KUBELET_CONFIGURATION}"
        )
    modelled = [of_zones.get(numa_id) for numa_id, _ in zones if numa_id in empty.node_ids]
    reported_free = free_resources.free_of(empty, modelled, None if same is None else same.free)
    types = frozenset(() if empty.memory is None else empty.memory.tables.free)
    known = Known(empty.topology.cpus, empty.all_node_ids, types)
    places, odd = places_of(named.get(attributes.PCI, ""))
    held = Held(same.held, same.marks) if same is not None and same.marks else None
    return Exact(empty, source, held_by(holdings, known, held), reported_free, places, (*problems, *odd))


def _managed(empty: Kubelet) -> set[str]:
    """Resources whose manager has something to give, and so would tell."""
    managed = set()
    if empty.cpu is not None and empty.cpu.available:
        managed.add("cpu")
    if empty.memory is not None and any(max(most) > 0 for most in empty.memory.policy.allocatable.values()):
        managed.add("memory")
    return managed
