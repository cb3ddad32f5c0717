"""What managers of the kubelet give a pod, in parts: where a part may lie on a node, and its reservation there.

Invariant: a part is reserved on a copy of the node, from what is free there. Where a part may lie follows from the
empty node, as other pods may have ended before the pod came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Final

import msgspec

from topowise import pods
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.device_table import DeviceSet
from topowise_scheduler.kubelet.masks import Mask, lowest, members, union
from topowise_scheduler.kubelet.pod import PodView, device_requests

# Under the other policies CPUs and devices may come from anywhere, so that only their sums decide.
ZONES_DECIDE: Final = ("restricted", "single-numa-node")


class Part(msgspec.Struct, frozen=True):
    """What must lie together: a container, or with scope pod the whole pod. Whole CPUs, bytes, devices.

    `reuses`: the part has the CPUs of an earlier init container. `more_cpus` are CPUs that the part may have there
    besides, and `from_anywhere` all CPUs that a pod may have where zones do not decide.
    """

    cpus: int
    memory: Mapping[str, int]
    devices: Mapping[str, int]
    kind: pods.Kind = "app"
    reuses: bool = False
    more_cpus: int = 0
    from_anywhere: int = 0

    def __bool__(self) -> bool:
        return bool(self.from_anywhere) or self.has_place

    @property
    def has_place(self) -> bool:
        """Returns whether the part lies on a particular NUMA node."""
        return bool(self.cpus or any(self.memory.values()) or any(self.devices.values()))


Way = tuple[tuple[Mask, Part], ...]
"""NUMA nodes, and what of a pod lies there."""


def holds_anything(node: Kubelet, pod: PodView) -> bool:
    """Returns whether the place or amount of what the pod gets on this node matters to other pods."""
    return any(parts_of(node, pod))


def holds_own(node: Kubelet, pod: PodView) -> bool:
    """Returns whether any manager gives the pod anything, so that its presence matters to other pods."""
    return any(own_amounts(node, pod).values())


def is_of_any_size(node: Kubelet, pod: PodView) -> bool:
    """Returns whether the number of the pod's CPUs is not known."""
    if node.cpu is None or len(pod.containers) < 2 or pod.containers[0].kind == "app":
        return False
    return _most_cpus(node, pod) > _least_cpus(node, pod)


def has_choice_of_devices(node: Kubelet, pod: PodView) -> bool:
    """Returns whether the pod asks for a resource whose devices are near several NUMA nodes.

    The kubelet (Go's map order) or the device plugin chooses among such devices.
    """
    if node.settings.topology.policy not in ZONES_DECIDE:
        return False
    return any(not table.of_one_node and device_requests(pod, name) for name, table in node.devices.tables.items())


def has_wide_memory(node: Kubelet, uid: str) -> bool:
    """Returns whether an active pod has memory over several NUMA nodes."""
    blocks_by_container = {} if node.memory is None else node.memory.allocations.get(uid, {})
    return any(block.mask.bit_count() > 1 for blocks in blocks_by_container.values() for block in blocks)


def own_amounts(node: Kubelet, pod: PodView) -> dict[str, int]:
    """Returns what managers give the pod once it runs, in units of requests: milli-CPU, bytes, devices."""
    amounts: dict[str, int] = {"cpu": 1000 * pod.cpus} if node.cpu is not None and pod.cpus else {}
    if node.memory is not None:
        amounts |= pod.memory or {}
    return amounts | {name: count for name in node.devices.tables if (count := device_requests(pod, name))}


def position_of(node: Kubelet, placements: Mapping[str, Placement]) -> int:
    """Returns the position of the NUMA node on which an active pod lies, the last position if there are several."""
    hints = {placement.numa for placement in placements.values() if placement.numa is not None}
    zones = {zone for hint in hints for zone in hint}
    return node.node_ids.index(zones.pop()) if len(zones) == 1 else len(node.node_ids) - 1


def takes_the_fullest(node: Kubelet) -> bool:
    topology = node.settings.topology
    return topology.prefer_most_allocated and topology.policy == "single-numa-node"


def parts_of(node: Kubelet, pod: PodView) -> Iterator[Part]:
    zones_decide = node.settings.topology.policy in ZONES_DECIDE
    # Devices without a NUMA node do not limit where the rest may lie.
    tables = [name for name, table in node.devices.tables.items() if table.has_topology] if zones_decide else []
    has_cpus, has_memory = zones_decide and node.cpu is not None, node.memory is not None
    most = _most_cpus(node, pod) if is_of_any_size(node, pod) else 0
    if node.settings.topology.scope == "pod":
        yield Part(
            pod.cpus if has_cpus else 0,
            (pod.memory or {}) if has_memory else {},
            {name: count for name in tables if (count := device_requests(pod, name))},
            more_cpus=max(0, most - pod.cpus) if has_cpus else 0,
            from_anywhere=0 if has_cpus else most,
        )
        return
    for container, reuses in zip(pod.containers, _reusing(pod), strict=True):
        yield Part(
            container.cpus if has_cpus else 0,
            (container.memory or {}) if has_memory else {},
            {name: count for name, count in container.limits.items() if name in tables and count},
            container.kind,
            reuses,
        )
    if most and not has_cpus:
        yield Part(0, {}, {}, from_anywhere=most)


def ways_of_parts(parts: Sequence[Part], node: Kubelet, highest: int, at_most: int) -> list[Way]:
    """Returns the ways in which the parts of a pod may lie, each on a NUMA node up to a position; none if they are too
    many or a part needs several NUMA nodes."""
    # Where zones do not decide, a part may also lie on more NUMA nodes than necessary.
    if node.settings.topology.policy not in ZONES_DECIDE or any(is_wide(part, node) for part in parts):
        return []
    # The CPUs of a part that reuses CPUs lie with the init container.
    placed = [part for part in parts if any(part.memory.values()) or any(part.devices.values()) or _has_own_cpus(part)]
    positions = [[at for at in range(highest + 1) if is_possible(part, node, at)] for part in placed]
    if prod(map(len, positions)) > at_most:
        return []
    anywhere = tuple([(1, part) for part in parts if not part.has_place])
    ways = []
    for way in product(*positions):
        parts_at = {at: [part for part, position in zip(placed, way, strict=True) if position == at] for at in way}
        ways.append((*[(1 << at, together(those, node, at)) for at, those in parts_at.items()], *anywhere))
    return ways


def lie_each_for_itself(parts: Sequence[Part]) -> bool:
    """Returns whether the NUMA nodes of the parts do not depend on each other. Later containers get what an init
    container holds, as far as their hints allow."""
    return len(parts) == 1 or all(part.kind != "init" and not part.reuses for part in parts)


def is_wide(part: Part, node: Kubelet) -> bool:
    """Returns whether the part only fits on several NUMA nodes together."""
    if node.settings.topology.policy == "single-numa-node":
        return False
    everywhere = range(len(node.node_ids))
    return is_possible(part, node, *everywhere) and not any(is_possible(part, node, at) for at in everywhere)


def is_possible(part: Part, node: Kubelet, *positions: int) -> bool:
    """Returns whether the part fits on these NUMA nodes of the empty node."""
    if part.cpus and node.cpu is not None:
        # reservedSystemCPUs are never allocated exclusively.
        usable = union([node.topology.numa_cpus[at] for at in positions]) & ~node.cpu.policy.reserved
        if usable.bit_count() < part.cpus:
            return False
    allocatable = {} if node.memory is None else node.memory.policy.allocatable
    known = [(allocatable[name], size) for name, size in part.memory.items() if name in allocatable]
    if any(size > sum([amounts[at] for at in positions]) for amounts, size in known):
        return False
    # Devices that are unhealthy now may have been healthy when the pod came.
    tables = [(node.devices.tables[name], count) for name, count in part.devices.items()]
    return all(union([table.near[at] for at in positions]).bit_count() >= count for table, count in tables)


def together(parts: Iterable[Part], node: Kubelet, position: int) -> Part:
    """Returns the most of a pod that can lie on a NUMA node: all parts that fit there, init containers in turn."""
    fitting = [part for part in parts if is_possible(part, node, position) or is_wide(part, node)]
    cpus = sum(part.cpus + part.more_cpus for part in fitting if not part.reuses)
    memory = _at_peak([(part.kind, part.memory) for part in fitting])
    return Part(cpus, memory, _at_peak([(part.kind, part.devices) for part in fitting]))


def with_way(before: Kubelet, node: Kubelet, way: Way) -> Kubelet:
    """Returns a copy with what lies there, the same node if nothing does."""
    if not way:
        return before
    copy = before.fork()
    for mask, part in way:
        reserve_on_mask(copy, node, mask, part)
    return copy


def free_of(copy: Kubelet) -> object:
    """Returns what distinguishes copies of the same base: CPUs, devices and memory, and the groups of NUMA nodes."""
    tables = None if copy.memory is None else copy.memory.tables
    return (
        None if copy.cpu is None else copy.cpu.default,
        tuple(copy.devices.allocated.values()),
        tables and (*tables.cells, *tables.assignments, *map(tuple, tables.free.values())),
    )


_NONE = (0,) * 64


def reserve_on_mask(copy: Kubelet, node: Kubelet, mask: Mask, part: Part) -> None:
    """Reserves what is free of the part. A wide part may have any share of it on each of its NUMA nodes."""
    if mask.bit_count() == 1:
        reserve(copy, node, mask.bit_length() - 1, part, ())
        return
    for position in members(mask):
        reserve(copy, node, position, msgspec.structs.replace(part, memory={}), ())
    if copy.memory is not None:
        # The group of these NUMA nodes keeps other memory away.
        tables = copy.memory.tables
        for name in part.memory.keys() & tables.free.keys():
            tables.take(name, mask, sum([tables.free[name][position] for position in members(mask)]))


def reserve(copy: Kubelet, node: Kubelet, position: int, part: Part, predicted: Sequence[Placement]) -> None:
    """Reserves what is free of the part, beyond what the pod is predicted to have there."""
    zone = node.node_ids[position]
    if copy.memory is not None and not predicted and any(part.memory.values()):
        # Memory of a single NUMA node in a group: all pods of the group have ended.
        copy.memory.tables.dissolve(position)
    cpus: CpuSet = 0
    most = part.cpus + part.more_cpus + part.from_anywhere
    if most and copy.cpu is not None:
        zone_cpus = node.topology.cpus if part.from_anywhere else node.topology.numa_cpus[position]
        already = union([placement.cpus or 0 for placement in predicted]) & zone_cpus
        # Which CPUs of the NUMA node does not matter to other pods, so the lowest stand for all.
        cpus = lowest(copy.cpu.available & zone_cpus, max(0, most - already.bit_count()))
    memory: dict[str, int] = {}
    # Memory of a NUMA node in a group is decided by the group, not by this NUMA node.
    if copy.memory is not None and copy.memory.tables.cells[position] == 1 << position:
        for name, size in part.memory.items():
            blocks = [block for placement in predicted for block in placement.memory]
            already = sum([block.size for block in blocks if block.type == name and block.numa == (zone,)])
            size = min(size - already, copy.memory.tables.free.get(name, _NONE)[position])
            if size > 0:
                memory[name] = size
    devices: dict[str, DeviceSet] = {}
    for name, count in part.devices.items():
        table = copy.devices.tables[name]
        held = [table.select(placement.devices.get(name, ())) for placement in predicted]
        already = sum([(devices_of & table.near[position]).bit_count() for devices_of in held])
        devices[name] = lowest(copy.devices.free(name) & table.near[position], count - already)
    copy.reserve(position, cpus, memory, devices)


def _has_own_cpus(part: Part) -> bool:
    return bool(part.cpus) and not part.reuses


def _reusing(pod: PodView) -> Iterator[bool]:
    """Yields for each container whether it has exactly the CPUs of an earlier init container.

    It has if it asks for the same and no container in between keeps any CPUs.
    """
    before: list[object] = []
    for container in pod.containers:
        amounts = (container.cpus, container.memory, container.limits)
        yield amounts in before
        # updateCPUsToReuse: CPUs of an init container are reused until a container keeps some.
        if container.cpus:
            before = [*before, amounts] if container.kind == "init" else []


def _most_cpus(node: Kubelet, pod: PodView) -> int:
    """Returns the CPUs of the pod if app containers reuse as few CPUs of init containers as possible."""
    if node.allocates_whole(pod):
        return pod.cpus
    return sum(container.cpus for container, reuses in zip(pod.containers, _reusing(pod), strict=True) if not reuses)


def _least_cpus(node: Kubelet, pod: PodView) -> int:
    """Returns the CPUs of the pod if app containers reuse as many CPUs as possible."""
    if node.allocates_whole(pod):
        return pod.cpus
    return pods.peak((container.kind, container.cpus) for container in pod.containers)


def _at_peak(parts: Sequence[tuple[pods.Kind, Mapping[str, int]]]) -> dict[str, int]:
    names = dict.fromkeys(name for _, amounts in parts for name in amounts)
    return {name: pods.peak((kind, amounts.get(name, 0)) for kind, amounts in parts) for name in names}
