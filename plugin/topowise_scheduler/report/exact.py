"""Reads an object of our exporter exactly, and the free resources that the kubelet itself accounts from its zones.

`topowise.io/holdings` has the allocations of all pods, which become the model's placements. They do not determine the
free resources. A block over several NUMA nodes does not show the amount per node. A block of size 0 still counts as an
assignment. A release returns memory to the lowest node first. So after all allocations are booked, the kubelet's
numbers replace the model's. Pods that ended later are released from there.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from topowise import attributes, cpuset, digits, nrt, quantity
from topowise.attributes import HOLDINGS, holdings
from topowise.attributes.pci_devices import Located
from topowise.kubeletconfig import KubeletConfiguration
from topowise_scheduler.kubelet import Kubelet, Machine, MemoryBlock, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy
from topowise_scheduler.kubelet.versions import KubeletVersion
from topowise_scheduler.report import budget, hardware
from topowise_scheduler.report.hardware import text_of
from topowise_scheduler.report.nrt_report import FreeResources, PageSizes, Placements, PodName, Report, ReportError
from topowise_scheduler.report.texts import cpu_set, mask_on, nodes_of, pci_paths_of

Devices = tuple[tuple[str, tuple[str, ...]], ...]

_MAX_CACHED_BLOCKS: Final = 4
# Entries of each cache. A key contains all memory types of the machine, so machines with more types are not cached.
_CACHE_SIZE: Final = 8192
_MAX_CACHED_TYPES: Final = 8
_ACCOUNTING: Final = {attributes.MEMORY_CELLS, attributes.MEMORY_ASSIGNMENTS}
_UNKNOWN: Final = FreeResources()
# Only our exporter writes these attributes.
_OURS = (attributes.CORES, attributes.HOLDINGS, attributes.KUBELET_CONFIGURATION)


class Allocatable(NamedTuple):
    """What containers can have: the machine's CPUs, and memory of the memory manager's types on its NUMA nodes."""

    cpus: CpuSet
    nodes: tuple[int, ...]
    types: frozenset[str]


class Allocations(NamedTuple):
    """The allocations of each pod. `marks` has a hash of eight bytes per pod's text, in order; none for equal names."""

    pods: Mapping[PodName, Placements]
    marks: bytes = b""


def allocations_of(text: str, machine: Allocatable, before: Allocations | None = None) -> Allocations:
    """Returns the allocations of each pod. Raises ParseError, and ReportError for a resource that the machine lacks.

    `before` are the allocations of the same machine in the previous report. A pod with unchanged text keeps its
    placements, the very object. A mark is a keyed hash of the process, so a client cannot craft a collision.
    """
    texts = [*map(bytes, holdings.texts(text))]
    _check_few("pods", len(texts), budget.MAX_PODS)
    marks = array("q", map(hash, texts))
    known = before or Allocations({})
    # By mark: comparing eight bytes per pod costs less than parsing its text.
    unchanged = dict(zip(memoryview(known.marks).cast("q"), known.pods.items(), strict=True))
    pods = [unchanged.get(mark) or _pod(text, machine) for mark, text in zip(marks, texts, strict=True)]
    _check_few("containers", sum([len(placements) for _, placements in pods]), budget.MAX_CONTAINERS)
    by_name = dict(pods)
    if len(by_name) == len(pods):
        return Allocations(by_name, marks.tobytes())
    by_name.clear()
    # A terminating pod and its successor may share a name: then both keep their allocations.
    for name, placements in pods:
        by_name[name] = _side_by_side(by_name.get(name, {}), placements)
    return Allocations(by_name)


def _check_few(noun: str, count: int, limit: int) -> None:
    """Raises ReportError above a limit."""
    if count > limit:
        raise ReportError(f"attribute {HOLDINGS}: {count} {noun}, expected up to {limit}")


def _pod(text: bytes, machine: Allocatable) -> tuple[PodName, Placements]:
    pod = holdings.pod(text)
    _check_few("containers of a pod", len(pod.containers), budget.MAX_CONTAINERS_OF_A_POD)
    # Interned: a cluster has few namespaces.
    return (sys.intern(pod.namespace), pod.name), _placements(pod, machine)


def _placements(pod: holdings.Pod, machine: Allocatable) -> Placements:
    # With pod-level resources the kubelet books the pod's total, and the containers' blocks are shares of it
    # (KEP-5526). So only the total can be released.
    shares = bool(pod.own_memory)
    by_container = [
        _of_container(part.name, part.cpus, () if shares else part.memory, tuple(part.devices.items()), machine)
        for part in pod.containers
    ]
    if len(by_container) == 1 and not pod.own_cpus and not shares:
        return by_container[0]
    placements = {name: placement for container in by_container for name, placement in container.items()}
    if pod.own_cpus or shares:
        placements[""] = _placement(pod.own_cpus, pod.own_memory, {}, machine)
    return placements


def _of_container(
    name: str, cpus: str, blocks: tuple[holdings.Block, ...], devices: Devices, machine: Allocatable
) -> dict[str, Placement]:
    """Returns the allocation of a container, by its name. Equal allocations and names share an object."""
    length = len(name) + len(cpus) + sum([len(resource) + sum(map(len, ids)) for resource, ids in devices])
    if length > budget.MEMORABLE_HOLDING or len(blocks) > _MAX_CACHED_BLOCKS or len(machine.types) > _MAX_CACHED_TYPES:
        return _cached_placement.__wrapped__(name, cpus, blocks, devices, machine)
    return _cached_placement(name, cpus, blocks, devices, machine)


@lru_cache(maxsize=_CACHE_SIZE)
def _cached_placement(
    name: str, cpus: str, blocks: tuple[holdings.Block, ...], devices: Devices, machine: Allocatable
) -> dict[str, Placement]:
    return {name: _placement(cpus, blocks, dict(devices), machine)}


def _placement(
    cpus: str, blocks: tuple[holdings.Block, ...], devices: Mapping[str, tuple[str, ...]], machine: Allocatable
) -> Placement:
    return Placement(
        # The podresources API shows neither the kind of a container nor its hint.
        kind="app",
        numa=None,
        preferred=False,
        # CPUs that the machine lacks, such as offline CPUs, are ignored.
        cpus=cpu_set(cpus) & machine.cpus if cpus else None,
        memory=tuple([_block_of(block, machine) for block in blocks]) if blocks else (),
        devices=devices,
    )


def _block_of(block: holdings.Block, machine: Allocatable) -> MemoryBlock:
    length = len(block.type) + len(block.nodes)
    is_memorable = length <= budget.MEMORABLE_HOLDING and len(machine.types) <= _MAX_CACHED_TYPES
    return (_cached_block if is_memorable else _cached_block.__wrapped__)(block.type, block.nodes, block.size, machine)


# Pods of a workload have equal blocks.
@lru_cache(maxsize=_CACHE_SIZE)
def _cached_block(kind: str, text: str, size: int, machine: Allocatable) -> MemoryBlock:
    nodes = nodes_of(text, machine.nodes)
    if size < 0 or not nodes or kind not in machine.types:
        raise ReportError(
            f"attribute {HOLDINGS}: {size} bytes of {kind!r:.80} on NUMA nodes {text!r:.80}, "
            f"expected {', '.join(sorted(machine.types)) or 'no type'} on some of {cpuset.to_text(machine.nodes)}"
        )
    return MemoryBlock(kind, nodes, size)


def _side_by_side(first: Placements, second: Placements) -> Placements:
    """Returns the allocations of two pods with the same name: a terminating pod and its successor."""
    if not first:
        return second
    both = dict(first)
    for name, placement in second.items():
        both[name if name not in both else f"{name} ({len(both)})"] = placement
    return both


Zones = Sequence[tuple[nrt.Zone, Mapping[str, str]] | None]


def free_of(empty: Kubelet, zones: Zones, before: FreeResources | None = None) -> FreeResources:
    """Returns the free resources. `zones` are the modelled NUMA nodes in order, each with its attributes.

    A zone that is None is unchanged since `before`, which must be complete (`is_whole`). Raises ParseError, and
    ReportError for a missing or impossible value.
    """
    changed = [(position, *entry) for position, entry in enumerate(zones) if entry is not None]
    previous = before or _UNKNOWN
    cpus = None
    if empty.cpu is not None:
        cpus = previous.cpus or 0
        for position, zone, named in changed:
            # Only CPUs of this zone count: a damaged zone must not free CPUs of another zone.
            node_cpus = empty.topology.numa_cpus[position]
            cpus = cpus & ~node_cpus | node_cpus & cpu_set(text_of(named, attributes.ZONE_CPUS_AVAILABLE, zone.name))
    if empty.memory is None:
        return FreeResources(cpus)
    memory = _free_memory(empty.memory.policy, [(position, zone) for position, zone, _ in changed], previous)
    if any(not named.keys() >= _ACCOUNTING for _, _, named in changed):
        # The exporter could not read the kubelet's state file, so the model's own accounting stays.
        return FreeResources(cpus, memory)
    zeros = [0] * len(zones)
    assignments, cells = list(previous.assignments or zeros), list(previous.cells or zeros)
    for position, zone, named in changed:
        cells[position] = _cells(zone, named[attributes.MEMORY_CELLS], empty)
        assignments[position] = _assignments(zone, named[attributes.MEMORY_ASSIGNMENTS])
    return FreeResources(cpus, memory, tuple(assignments), tuple(cells))


def is_whole(free: FreeResources | None, empty: Kubelet) -> bool:
    """Returns whether a report has every value that `correct` sets. Then the previous state does not matter."""
    if free is None or (empty.cpu is not None and free.cpus is None):
        return False
    if empty.memory is None:
        return True
    return (
        free.assignments is not None
        and free.cells is not None
        and all(
            value is not None or allocatable <= 0
            for name, amounts in empty.memory.policy.allocatable.items()
            for value, allocatable in zip(free.memory.get(name, ()), amounts, strict=False)
        )
    )


def correct(free: FreeResources, kubelet: Kubelet) -> None:
    """Replaces the kubelet's free resources by the reported values."""
    if kubelet.cpu is not None and free.cpus is not None:
        kubelet.cpu.correct(free.cpus)
    if kubelet.memory is not None:
        kubelet.memory.tables.correct(free.memory, free.assignments, free.cells)


def _free_memory(
    policy: MemoryPolicy, zones: Sequence[tuple[int, nrt.Zone]], previous: FreeResources
) -> dict[str, tuple[int | None, ...]]:
    """Returns free bytes by type and node position; None on a node without allocatable memory, which reports none."""
    available = [
        (position, {entry.name: entry.available for entry in zone.resources or ()}) for position, zone in zones
    ]
    free: dict[str, tuple[int | None, ...]] = {}
    for name, amounts in policy.allocatable.items():
        values = [*previous.memory.get(name, [None] * len(amounts))]
        for position, named in available:
            text, limit = named.get(name), amounts[position]
            # The limit protects the model's invariant 0 <= free <= allocatable against damaged objects.
            values[position] = None if text is None or limit <= 0 else min(limit, max(0, quantity.value(text)))
        free[name] = tuple(values)
    return free


def _cells(zone: nrt.Zone, text: str, empty: Kubelet) -> Mask:
    mask = mask_on(text, empty.all_node_ids, empty.node_ids)
    if not mask:
        raise ReportError(
            f"attribute {attributes.MEMORY_CELLS} of zone {zone.name}: {text!r:.80}, "
            f"expected some of the NUMA nodes {cpuset.to_text(empty.all_node_ids)}"
        )
    return mask


def _assignments(zone: nrt.Zone, text: str) -> int:
    number = digits.natural(text)
    if number is None:
        raise ReportError(
            f"attribute {attributes.MEMORY_ASSIGNMENTS} of zone {zone.name}: {text!r:.80}, expected a number of blocks"
        )
    return number


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
    reported_free = free_of(empty, modelled, None if unchanged is None else unchanged.free)
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
