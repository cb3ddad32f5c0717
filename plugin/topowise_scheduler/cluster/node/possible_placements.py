"""The states in which a node may be while the placement of its newest pods is not known.

Between the decision of this service and the admission by the kubelet a pod may end, and the kubelet knows of the end
before the API server does. Then a pod may lie on another NUMA node than predicted, and the kubelet may refuse the next
pod. A new pod therefore only fits if it fits in every *possible placement*: each way in which uncertain pods may lie on
the NUMA nodes that could take them. The number of CPUs of such a pod may be unknown too: an app container takes CPUs of
init containers and other free CPUs alike (allocateCPUs).

Invariant: if the kubelet would refuse a pod in any way in which the uncertain pods may lie, it would refuse the pod in
a copy. If the copies are too many, a single copy is worse than all: each uncertain pod holds what it could hold on
every NUMA node at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, product
from math import prod
from typing import Final, NamedTuple

import msgspec

from topowise import pods
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.device_table import DeviceSet
from topowise_scheduler.kubelet.masks import Mask, lowest, mask_of, members, union
from topowise_scheduler.kubelet.pod import PodView, device_requests

# Under the other policies CPUs and devices may come from anywhere, so that only their sums decide.
_ZONES_DECIDE: Final = ("restricted", "single-numa-node")
MAX_POSSIBLE: Final = 16
_ANYWHERE: Final[Mapping[str, int]] = {}


class Possible(NamedTuple):
    """The states in which a node may be: `node` is predicted, and `alternatives` are states by other orders of events.

    `uncertain` pods may lie on any NUMA node in each of these, and `highest` says how high. `moved` are pods that lie
    elsewhere in an alternative.
    """

    node: Kubelet
    uncertain: Sequence[PodView] = ()
    highest: Mapping[str, int] = _ANYWHERE
    alternatives: Sequence[Kubelet] = ()
    moved: Sequence[PodView] = ()

    @property
    def is_sure(self) -> bool:
        """Returns whether the node is as predicted."""
        return not (self.uncertain or self.alternatives)

    @property
    def doubted(self) -> tuple[frozenset[str], int]:
        """Returns the UIDs of the pods that may lie anywhere, and the number of other states."""
        return frozenset([pod.uid for pod in self.uncertain]), len(self.alternatives)

    def states(self) -> list[Kubelet]:
        """Returns copies of the node in every state but the predicted state."""
        if not self.alternatives:
            return possible_placements(self.node, self.uncertain, self.highest)
        if not self.uncertain:
            return [state.fork() for state in self.alternatives]
        states = (self.node, *self.alternatives)
        ways = [possible_placements(state, self.uncertain, self.highest) for state in states]
        if sum(map(len, ways)) > MAX_POSSIBLE:
            ways = [possible_placements(state, self.uncertain, self.highest, 1) for state in states]
        return list(chain.from_iterable(ways))


class _Part(msgspec.Struct, frozen=True):
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


def holds_anything(node: Kubelet, pod: PodView) -> bool:
    """Returns whether the place or amount of what the pod gets on this node matters to other pods."""
    return any(_parts(node, pod))


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
    if node.settings.topology.policy not in _ZONES_DECIDE:
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


def possible_placements(
    node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int] = _ANYWHERE, at_most: int = MAX_POSSIBLE
) -> list[Kubelet]:
    """Returns copies of the node for the ways in which the uncertain pods may lie. Requests are equal in all copies.

    `highest` is the highest position by UID if only ends can have come in between. Alike pods then lie there or lower:
    the kubelet takes the lowest NUMA node that suits (of equally narrow hints the hint with the lower bits:
    topologymanager/policy.go, compareHints), and after an end more NUMA nodes suit, never fewer. One copy replaces more
    than `at_most` copies.
    """
    if not uncertain:
        return []
    is_grouped = _may_lie_in_groups(node, uncertain, highest)
    # By best-effort a group decides whether the kubelet refuses a hint that is not preferred.
    is_unknown = is_grouped and node.settings.topology.policy == "best-effort"
    choices = None if is_unknown else _choices(node, uncertain, highest)
    if choices is None or prod(map(len, choices)) > at_most:
        worst = _at_worst(node, uncertain)
        return [_without_memory(worst) if is_grouped else worst]
    copies = []
    base = node.without([pod.uid for pod in uncertain])
    for combination in product(*choices):
        copy = base.fork()
        for placed in combination:
            if placed is not None:
                _reserve_on_mask(copy, node, *placed)
        copies.append(copy)
    return copies


def _choices(
    node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int]
) -> list[list[tuple[Mask, _Part] | None]] | None:
    """Returns for each part of the pods where it may lie, None if the parts depend on each other or are too wide."""
    parts_of = [[part for part in _parts(node, pod) if part] for pod in uncertain]
    only_ends = (
        all(pod.uid in highest for pod in uncertain)
        and all(_had_its_wish(node, pod) for pod in uncertain)
        and all(parts == parts_of[0] for parts in parts_of[1:])
    )
    # Ends may also leave a NUMA node the fullest on which other pods have something.
    fuller = _in_use(node.without([pod.uid for pod in uncertain])) if only_ends and _takes_the_fullest(node) else 0
    choices: list[list[tuple[Mask, _Part] | None]] = []
    for pod, parts in zip(uncertain, parts_of, strict=True):
        if not _lie_each_for_itself(parts) or has_choice_of_devices(node, pod):
            return None
        # After ends alone the pod lies on the predicted NUMA node or on a lower NUMA node.
        count = highest[pod.uid] + 1 if only_ends else len(node.node_ids)
        for part in parts:
            masks = [
                1 << position
                for position in range(len(node.node_ids))
                if (position < count or fuller >> position & 1) and _is_possible(part, node, position)
            ]
            if _is_wide(part, node):
                masks = _wide_masks(part, node, pod if only_ends and len(parts) == 1 else None)
                if not masks:
                    return None
            if not part.has_place:
                del masks[1:]
            # None for a part that fits nowhere on the empty node: its pod was refused.
            choices.append([(mask, part) for mask in masks] or [None])
    return choices


def _takes_the_fullest(node: Kubelet) -> bool:
    topology = node.settings.topology
    return topology.prefer_most_allocated and topology.policy == "single-numa-node"


def _in_use(node: Kubelet) -> Mask:
    """Returns the NUMA nodes on which pods have CPUs or memory of their own."""
    positions = range(len(node.node_ids))
    mask = mask_of([at for at in positions if node.cpu is not None and node.cpu.exclusive_cpus(at)[0]])
    tables = None if node.memory is None else node.memory.tables
    return mask | mask_of([at for at in positions if tables is not None and tables.assignments[at]])


def _wide_masks(part: _Part, node: Kubelet, predicted: PodView | None) -> list[Mask]:
    """Returns the NUMA nodes together that may have a wide part, none if they are too many.

    `predicted` is the pod of the part if only ends can have come in between. The kubelet prefers few NUMA nodes, then
    low positions, and an end takes no choice away. By policy none a pod may also lie on more NUMA nodes than necessary.
    """
    count = len(node.node_ids)
    size = next(size for size in range(2, count + 1) if any(_masks_of_size(part, node, size)))
    blocks = {} if node.memory is None or predicted is None else node.memory.allocations.get(predicted.uid, {})
    last = max((block.mask for of_container in blocks.values() for block in of_container), default=0)
    is_bounded = last.bit_count() == size and not node.settings.topology.prefer_closest
    sizes = [size] if is_bounded or node.settings.topology.policy != "none" else range(size, count + 1)
    masks = (mask for size in sizes for mask in _masks_of_size(part, node, size) if not is_bounded or mask <= last)
    few = list(islice(masks, MAX_POSSIBLE + 1))
    return few if len(few) <= MAX_POSSIBLE else []


def _masks_of_size(part: _Part, node: Kubelet, size: int) -> Iterator[Mask]:
    for positions in combinations(range(len(node.node_ids)), size):
        if _is_possible(part, node, *positions):
            yield mask_of(positions)


def _lie_each_for_itself(parts: Sequence[_Part]) -> bool:
    """Returns whether the NUMA nodes of the parts do not depend on each other. Later containers get what an init
    container holds, as far as their hints allow."""
    return len(parts) == 1 or all(part.kind != "init" and not part.reuses for part in parts)


def position_of(node: Kubelet, placements: Mapping[str, Placement]) -> int:
    """Returns the position of the NUMA node on which an active pod lies, the last position if there are several."""
    hints = {placement.numa for placement in placements.values() if placement.numa is not None}
    zones = {zone for hint in hints for zone in hint}
    return node.node_ids.index(zones.pop()) if len(zones) == 1 else len(node.node_ids) - 1


def _may_lie_in_groups(node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int]) -> bool:
    """Returns whether memory of these pods may lie over several NUMA nodes, or beside such memory.

    The NUMA nodes may differ from the prediction. The kubelet refuses a container that gets some of both ("violates
    NUMA node allocation") or finds nothing beside its hint.
    """
    policy = node.settings.topology.policy
    if node.memory is None or policy == "single-numa-node":
        return False
    are_wide = any(_may_be_wide(node, pod, only_ends=pod.uid in highest) for pod in uncertain)
    if not are_wide and policy != "best-effort":
        return False
    base = node.without([pod.uid for pod in uncertain])
    assert base.memory is not None
    tables = base.memory.tables
    return any(cells.bit_count() > 1 for cells in tables.cells) or (are_wide and tables.assignments.count(0) > 1)


def _may_be_wide(node: Kubelet, pod: PodView, *, only_ends: bool) -> bool:
    """Returns whether the pod's memory may lie over several NUMA nodes. By best-effort the memory follows CPUs and
    devices; but a pod that fits on a single NUMA node also fits there after ends of other pods (`only_ends`)."""
    if has_wide_memory(node, pod.uid):
        return True
    amounts = (
        [pod.memory] if node.settings.topology.scope == "pod" else [container.memory for container in pod.containers]
    )
    # Memory over several NUMA nodes forms a group, which later pods cannot share (memorymanager/policy_static.go).
    if any(_is_wide(_Part(0, amount, {}), node) for amount in amounts if amount):
        return True
    if node.settings.topology.policy != "best-effort":
        return False
    return any(amounts) and not (only_ends and _had_its_wish(node, pod))


def _had_its_wish(node: Kubelet, pod: PodView) -> bool:
    """Returns whether the pod has a preferred hint, as every pod has that other policies admit. Best-effort may later
    find a preferred hint on a higher NUMA node."""
    if node.settings.topology.policy != "best-effort":
        return True
    return pod.uid in node.active and all(placement.preferred for placement in node.placements(pod.uid).values())


def _without_memory(node: Kubelet) -> Kubelet:
    """Returns the node without free memory."""
    assert node.memory is not None
    for name, values in node.memory.tables.free.items():
        node.memory.tables.free[name] = [0] * len(values)
    return node


def _at_worst(node: Kubelet, uncertain: Iterable[PodView]) -> Kubelet:
    """Returns a copy of the node in which each of these pods also holds what it might hold elsewhere."""
    copy = node.fork()
    for pod in uncertain:
        parts = [part for part in _parts(node, pod) if part]
        predicted = tuple(node.placements(pod.uid).values()) if pod.uid in node.active else ()
        anywhere = sum(part.from_anywhere for part in parts)
        if anywhere:
            _reserve(copy, node, 0, _Part(0, {}, {}, from_anywhere=anywhere), predicted)
        # Every NUMA node at once is more than the pod can have, so this state refuses at least as much.
        for position in range(len(node.node_ids)):
            part = _together(parts, node, position)
            if part:
                _reserve(copy, node, position, part, predicted)
    return copy


def _parts(node: Kubelet, pod: PodView) -> Iterator[_Part]:
    zones_decide = node.settings.topology.policy in _ZONES_DECIDE
    # Devices without a NUMA node do not limit where the rest may lie.
    tables = [name for name, table in node.devices.tables.items() if table.has_topology] if zones_decide else []
    has_cpus, has_memory = zones_decide and node.cpu is not None, node.memory is not None
    most = _most_cpus(node, pod) if is_of_any_size(node, pod) else 0
    if node.settings.topology.scope == "pod":
        yield _Part(
            pod.cpus if has_cpus else 0,
            (pod.memory or {}) if has_memory else {},
            {name: count for name in tables if (count := device_requests(pod, name))},
            more_cpus=max(0, most - pod.cpus) if has_cpus else 0,
            from_anywhere=0 if has_cpus else most,
        )
        return
    for container, reuses in zip(pod.containers, _reusing(pod), strict=True):
        yield _Part(
            container.cpus if has_cpus else 0,
            (container.memory or {}) if has_memory else {},
            {name: count for name, count in container.limits.items() if name in tables and count},
            container.kind,
            reuses,
        )
    if most and not has_cpus:
        yield _Part(0, {}, {}, from_anywhere=most)


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


def _together(parts: Iterable[_Part], node: Kubelet, position: int) -> _Part:
    """Returns the most of a pod that can lie on a NUMA node: all parts that fit there, init containers in turn."""
    fitting = [part for part in parts if _is_possible(part, node, position) or _is_wide(part, node)]
    cpus = sum(part.cpus + part.more_cpus for part in fitting if not part.reuses)
    memory = _at_peak([(part.kind, part.memory) for part in fitting])
    return _Part(cpus, memory, _at_peak([(part.kind, part.devices) for part in fitting]))


def _at_peak(parts: Sequence[tuple[pods.Kind, Mapping[str, int]]]) -> dict[str, int]:
    names = dict.fromkeys(name for _, amounts in parts for name in amounts)
    return {name: pods.peak((kind, amounts.get(name, 0)) for kind, amounts in parts) for name in names}


def _is_wide(part: _Part, node: Kubelet) -> bool:
    """Returns whether the part only fits on several NUMA nodes together."""
    if node.settings.topology.policy == "single-numa-node":
        return False
    everywhere = range(len(node.node_ids))
    return _is_possible(part, node, *everywhere) and not any(_is_possible(part, node, at) for at in everywhere)


def _is_possible(part: _Part, node: Kubelet, *positions: int) -> bool:
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


_NONE = (0,) * 64


def _reserve_on_mask(copy: Kubelet, node: Kubelet, mask: Mask, part: _Part) -> None:
    """Reserves what is free of the part. A wide part may have any share of it on each of its NUMA nodes."""
    if mask.bit_count() == 1:
        _reserve(copy, node, mask.bit_length() - 1, part, ())
        return
    for position in members(mask):
        _reserve(copy, node, position, msgspec.structs.replace(part, memory={}), ())
    if copy.memory is not None:
        # The group of these NUMA nodes keeps other memory away.
        tables = copy.memory.tables
        for name in part.memory.keys() & tables.free.keys():
            tables.take(name, mask, sum([tables.free[name][position] for position in members(mask)]))


def _reserve(copy: Kubelet, node: Kubelet, position: int, part: _Part, predicted: Sequence[Placement]) -> None:
    """Reserves what is free of the part, beyond what the pod is predicted to have there."""
    zone = node.node_ids[position]
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
