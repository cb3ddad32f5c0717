"""A node as it may be, while it is not known where its newest pods lie.

A prediction is as good as the order of events. Between our decision and the kubelet's another pod may end, which the
kubelet knows before the API server does, or two pods may change places; then a pod lies on another NUMA node than
predicted, and the next one predicted on top of it may be refused. So until a report confirms them, or time has shown
that nothing came in between, a pod only fits if it fits in every *possible placement*: each way in which such pods may
lie on the NUMA nodes that could take them. How many CPUs such a pod has may be unknown too: which of those that its
init containers had are given to it again is a matter of what else was free (allocateCPUs takes from both alike).

Invariant: if the kubelet would refuse a pod in any way in which these pods may lie, it would in one of the copies.
Where these are too many there is one instead, which is worse than all of them: each such pod holds what it could hold
on every NUMA node at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Final, NamedTuple

import msgspec

from topowise import pods
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.device_table import DeviceSet
from topowise_scheduler.kubelet.masks import lowest, union
from topowise_scheduler.kubelet.pod import PodView, device_requests

# Under the other policies CPUs and devices may come from anywhere, so that only their sums decide.
_ZONES_DECIDE: Final = ("restricted", "single-numa-node")
MAX_POSSIBLE: Final = 16
_ANYWHERE: Final[Mapping[str, int]] = {}


class Possible(NamedTuple):
    """The states in which a node may be: `node` is predicted, and `others` are states by other orders of events.

    `uncertain` pods may lie on any NUMA node in each of these, and `highest` says how high. `moved` are pods that lie
    elsewhere in one of `others`.
    """

    node: Kubelet
    uncertain: Sequence[PodView] = ()
    highest: Mapping[str, int] = _ANYWHERE
    others: Sequence[Kubelet] = ()
    moved: Sequence[PodView] = ()

    @property
    def is_sure(self) -> bool:
        """Returns whether the node is as predicted."""
        return not (self.uncertain or self.others)

    @property
    def doubted(self) -> tuple[frozenset[str], int]:
        """Returns the UIDs of the pods that may lie anywhere, and the number of other states."""
        return frozenset([pod.uid for pod in self.uncertain]), len(self.others)

    def states(self) -> list[Kubelet]:
        """Returns copies of the node in every state but the predicted state."""
        if not self.others:
            return possible_placements(self.node, self.uncertain, self.highest)
        if not self.uncertain:
            return [state.fork() for state in self.others]
        ways = [possible_placements(state, self.uncertain, self.highest) for state in (self.node, *self.others)]
        if sum(map(len, ways)) > MAX_POSSIBLE:
            ways = [possible_placements(state, self.uncertain, self.highest, 1) for state in (self.node, *self.others)]
        return [state for states in ways for state in states]


class _Part(msgspec.Struct, frozen=True):
    """What has to lie together: a container, or with scope pod all of it. Whole CPUs, bytes, devices.

    `reuses`: the CPUs are those of an init container before it. `more_cpus` are those that it may have there besides,
    `from_anywhere` all that a pod may have where zones do not decide.
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
        """Whether it lies on some NUMA node and not on others."""
        return bool(self.cpus or any(self.memory.values()) or any(self.devices.values()))


def holds_anything(node: Kubelet, pod: PodView) -> bool:
    """Whether the pod gets anything of its own on this node of which it matters where it is, or how much."""
    return any(_parts(node, pod))


def holds_own(node: Kubelet, pod: PodView) -> bool:
    """Whether any manager gives the pod anything: what others get depends on whether it is there."""
    return any(own_amounts(node, pod).values())


def is_of_any_size(node: Kubelet, pod: PodView) -> bool:
    """Whether it is not known how many CPUs the pod gets, wherever it lies."""
    if node.cpu is None or len(pod.containers) < 2 or pod.containers[0].kind == "app":
        return False
    return _most_cpus(node, pod) > _least_cpus(node, pod)


def has_choice_of_devices(node: Kubelet, pod: PodView) -> bool:
    """Whether it matters which of several devices the pod gets, because they are near other NUMA nodes besides. That is
    its kubelet's (Go's map order) or its plug-in's choice."""
    if node.settings.topology.policy not in _ZONES_DECIDE:
        return False
    return any(not table.of_one_node and device_requests(pod, name) for name, table in node.devices.tables.items())


def has_wide_memory(node: Kubelet, uid: str) -> bool:
    """Whether an active pod has memory over several NUMA nodes."""
    held = {} if node.memory is None else node.memory.allocations.get(uid, {})
    return any(block.mask.bit_count() > 1 for blocks in held.values() for block in blocks)


def own_amounts(node: Kubelet, pod: PodView) -> dict[str, int]:
    """What the pod gets of its own in all once it runs, in units of requests: milli-CPU, bytes, devices."""
    amounts: dict[str, int] = {"cpu": 1000 * pod.cpus} if node.cpu is not None and pod.cpus else {}
    if node.memory is not None:
        amounts |= pod.memory or {}
    return amounts | {name: count for name in node.devices.tables if (count := device_requests(pod, name))}


def possible_placements(
    node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int] = _ANYWHERE, at_most: int = MAX_POSSIBLE
) -> list[Kubelet]:
    """Copies of the node for the ways in which these pods may lie, beside the predicted one. Predicates aside: what
    pods request is the same in all of them.

    `highest`: by uid the highest position at which a pod has been predicted since it is expected there, if all that can
    have come in between is the end of others. Pods that are alike then lie there or lower: their kubelet takes the
    lowest NUMA node that will do (of equally narrow hints the one with the lower bits: topologymanager/policy.go,
    compareHints), and what ends makes more of them do, never fewer.
    """
    if not uncertain:
        return []
    if _may_lie_in_groups(node, uncertain, highest):
        return [_without_memory(_at_worst(node, uncertain))]
    wanted = [[part for part in _parts(node, pod) if part] for pod in uncertain]
    takes_the_lowest = (
        all(pod.uid in highest for pod in uncertain)
        and not node.settings.topology.prefer_most_allocated
        and all(_had_its_wish(node, pod) for pod in uncertain)
        and all(parts == wanted[0] for parts in wanted[1:])
    )
    choices: list[list[tuple[int, _Part] | None]] = []
    for pod, parts in zip(uncertain, wanted, strict=True):
        if not _lie_each_for_itself(parts) or has_choice_of_devices(node, pod):
            return [_at_worst(node, uncertain)]
        for part in parts:
            if _is_wide(part, node):
                return [_at_worst(node, uncertain)]
            count = highest[pod.uid] + 1 if takes_the_lowest else len(node.node_ids)
            places = [position for position in range(count) if _is_possible(part, node, position)]
            if not part.has_place:
                del places[1:]
            choices.append([(position, part) for position in places] or [None])
    if prod(map(len, choices)) > at_most:
        return [_at_worst(node, uncertain)]
    found = []
    base = node.fork()
    for pod in uncertain:
        base.remove(pod.uid)
    for combination in product(*choices):
        copy = base.fork()
        for placed in combination:
            if placed is not None:
                _reserve(copy, node, *placed, ())
        found.append(copy)
    return found


def _lie_each_for_itself(parts: Sequence[_Part]) -> bool:
    """Whether the places of all parts are choices that do not depend on each other. What an init container holds is
    given to later containers, as far as their hints allow."""
    return len(parts) == 1 or all(part.kind != "init" and not part.reuses for part in parts)


def position_of(node: Kubelet, placements: Mapping[str, Placement]) -> int:
    """The position of the NUMA node on which an active pod lies; the last one if it is not one node."""
    hints = {placement.numa for placement in placements.values() if placement.numa is not None}
    zones = {zone for hint in hints for zone in hint}
    return node.node_ids.index(zones.pop()) if len(zones) == 1 else len(node.node_ids) - 1


def _may_lie_in_groups(node: Kubelet, uncertain: Sequence[PodView], highest: Mapping[str, int]) -> bool:
    """Whether memory of these pods may lie over several NUMA nodes, or beside what does.

    It may be other ones than predicted, and a container that is given some of both is refused ("violates NUMA node
    allocation"), or finds nothing beside its hint.
    """
    policy = node.settings.topology.policy
    if node.memory is None or policy == "single-numa-node":
        return False
    are_wide = any(_may_be_wide(node, pod, only_ends=pod.uid in highest) for pod in uncertain)
    if not are_wide and policy != "best-effort":
        return False
    base = node.fork()
    for pod in uncertain:
        base.remove(pod.uid)
    assert base.memory is not None
    tables = base.memory.tables
    return any(cells.bit_count() > 1 for cells in tables.cells) or (are_wide and tables.assignments.count(0) > 1)


def _may_be_wide(node: Kubelet, pod: PodView, *, only_ends: bool) -> bool:
    """Whether the pod's memory may lie over several NUMA nodes. By best-effort it also does if CPUs or devices do; but
    one that had all it asked for on one has it on one still when others have ended (`only_ends`)."""
    if has_wide_memory(node, pod.uid):
        return True
    amounts = [pod.memory] if node.settings.topology.scope == "pod" else [one.memory for one in pod.containers]
    if any(_is_wide(_Part(0, one, {}), node) for one in amounts if one):
        return True
    if node.settings.topology.policy != "best-effort":
        return False
    return any(amounts) and not (only_ends and _had_its_wish(node, pod))


def _had_its_wish(node: Kubelet, pod: PodView) -> bool:
    """Whether the pod was given a hint that is preferred, as all are whom the other policies admit. Best-effort may
    find such a one on a higher NUMA node later."""
    if node.settings.topology.policy != "best-effort":
        return True
    return pod.uid in node.active and all(placement.preferred for placement in node.placements(pod.uid).values())


def _without_memory(node: Kubelet) -> Kubelet:
    """Nobody who asks for some finds any."""
    assert node.memory is not None
    for name, values in node.memory.tables.free.items():
        node.memory.tables.free[name] = [0] * len(values)
    return node


def _at_worst(node: Kubelet, uncertain: Iterable[PodView]) -> Kubelet:
    """A copy of the node in which each of these pods also holds what it might hold elsewhere."""
    copy = node.fork()
    for pod in uncertain:
        parts = [part for part in _parts(node, pod) if part]
        held = tuple(node.placements(pod.uid).values()) if pod.uid in node.active else ()
        anywhere = sum(part.from_anywhere for part in parts)
        if anywhere:
            _reserve(copy, node, 0, _Part(0, {}, {}, from_anywhere=anywhere), held)
        for position in range(len(node.node_ids)):
            wanted = _together(parts, node, position)
            if wanted:
                _reserve(copy, node, position, wanted, held)
    return copy


def _parts(node: Kubelet, pod: PodView) -> Iterator[_Part]:
    zones_decide = node.settings.topology.policy in _ZONES_DECIDE
    # Devices that are near no NUMA node say nothing of where the rest may be.
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
    """For each container whether its CPUs are those of an init container before it, and no others.

    They are if it asks for the same: what they are taken from is as it was, as long as no container in between keeps
    any.
    """
    before: list[object] = []
    for container in pod.containers:
        asked = (container.cpus, container.memory, container.limits)
        yield asked in before
        if container.cpus:
            before = [*before, asked] if container.kind == "init" else []


def _most_cpus(node: Kubelet, pod: PodView) -> int:
    """What the pod may have in all if as few CPUs as possible are used again."""
    if node.allocates_whole(pod):
        return pod.cpus
    return sum(one.cpus for one, reuses in zip(pod.containers, _reusing(pod), strict=True) if not reuses)


def _least_cpus(node: Kubelet, pod: PodView) -> int:
    """The same if as many as possible are."""
    return pod.cpus if node.allocates_whole(pod) else pods.peak((one.kind, one.cpus) for one in pod.containers)


def _together(parts: Iterable[_Part], node: Kubelet, position: int) -> _Part:
    """The most of a pod that can lie on one NUMA node: all parts for which it is large enough; init ones in turn."""
    some = [one for one in parts if _is_possible(one, node, position) or _is_wide(one, node)]
    cpus = sum(one.cpus + one.more_cpus for one in some if not one.reuses)
    memory = _at_peak([(one.kind, one.memory) for one in some])
    return _Part(cpus, memory, _at_peak([(one.kind, one.devices) for one in some]))


def _at_peak(held: Sequence[tuple[pods.Kind, Mapping[str, int]]]) -> dict[str, int]:
    names = dict.fromkeys(name for _, amounts in held for name in amounts)
    return {name: pods.peak((kind, amounts.get(name, 0)) for kind, amounts in held) for name in names}


def _is_wide(part: _Part, node: Kubelet) -> bool:
    """Whether no NUMA node alone could have the part, so that it lies on several of them if it is there at all."""
    if node.settings.topology.policy == "single-numa-node":
        return False
    everywhere = range(len(node.node_ids))
    return _is_possible(part, node, *everywhere) and not any(_is_possible(part, node, at) for at in everywhere)


def _is_possible(part: _Part, node: Kubelet, *positions: int) -> bool:
    """Whether these NUMA nodes could have the part if nothing else were there."""
    if part.cpus and node.cpu is not None:
        usable = union([node.topology.numa_cpus[at] for at in positions]) & ~node.cpu.policy.reserved
        if usable.bit_count() < part.cpus:
            return False
    if node.memory is not None:
        allocatable = node.memory.policy.allocatable
        if any(
            size > sum([allocatable[name][at] for at in positions])
            for name, size in part.memory.items()
            if name in allocatable
        ):
            return False
    # Those that are not healthy now may have been when the pod came.
    tables = [(node.devices.tables[name], count) for name, count in part.devices.items()]
    return all(union([table.near[at] for at in positions]).bit_count() >= count for table, count in tables)


_NONE = (0,) * 64


def _reserve(copy: Kubelet, node: Kubelet, position: int, wanted: _Part, held: Sequence[Placement]) -> None:
    """Take what is free of it, beyond what the pod is predicted to have there already."""
    zone = node.node_ids[position]
    cpus: CpuSet = 0
    most = wanted.cpus + wanted.more_cpus + wanted.from_anywhere
    if most and copy.cpu is not None:
        mine = node.topology.cpus if wanted.from_anywhere else node.topology.numa_cpus[position]
        already = union([placement.cpus or 0 for placement in held]) & mine
        cpus = lowest(copy.cpu.available & mine, max(0, most - already.bit_count()))
    memory: dict[str, int] = {}
    if copy.memory is not None and copy.memory.tables.cells[position] == 1 << position:
        for name, size in wanted.memory.items():
            already = sum(
                [
                    block.size
                    for placement in held
                    for block in placement.memory
                    if block.type == name and block.numa == (zone,)
                ]
            )
            size = min(size - already, copy.memory.tables.free.get(name, _NONE)[position])
            if size > 0:
                memory[name] = size
    devices: dict[str, DeviceSet] = {}
    for name, count in wanted.devices.items():
        table = copy.devices.tables[name]
        already = sum(
            [(table.select(placement.devices.get(name, ())) & table.near[position]).bit_count() for placement in held]
        )
        devices[name] = lowest(copy.devices.free(name) & table.near[position], count - already)
    copy.reserve(position, cpus, memory, devices)
