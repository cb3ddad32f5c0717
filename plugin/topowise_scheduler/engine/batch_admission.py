"""One shape of pod against many nodes at once: what `Kubelet.admit_view` does, in its order (kubelet/node.py).

Invariant: the result for a node is the model's wherever the counts tell it; where it depends on which CPUs or devices a
container gets, the node is deferred to the model, with the cause (verdicts.CAUSES).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import topology_manager
from topowise_scheduler.engine.cpu_manager import CpuManager
from topowise_scheduler.engine.device_manager import DeviceManager
from topowise_scheduler.engine.mask_arrays import Flags, Masks, Subset, order_of, popcounts
from topowise_scheduler.engine.memory_manager import MemoryManager
from topowise_scheduler.engine.node_groups import NodesView
from topowise_scheduler.engine.node_vector import CPU, ENDLESS, Traits
from topowise_scheduler.engine.topology_manager import ResourceHints
from topowise_scheduler.engine.verdicts import AFFINITY, FAILED, SHORT, SIDECARS, Decisions
from topowise_scheduler.shape import AlignedRequest, Shape

Numbers = NDArray[np.int64]

_EVERYWHERE: Flags = np.ones(1, dtype=np.bool_)
_NOWHERE: Flags = np.zeros(1, dtype=np.bool_)
_NONE: Subset = np.zeros(0, dtype=np.intp)

# What the kubelet looks at first, in its order; the others follow by name (predicates.py).
Result = TypeVar("Result")

_FIRST = ("cpu", "memory", "ephemeral-storage")


def checked(shape: Shape) -> tuple[str, ...]:
    """The resources the predicates check, in their order."""
    amounts = dict(shape.requests)
    return ("pods", *[name for name in _FIRST if name in amounts], *sorted(amounts.keys() - set(_FIRST)))


class Placements:
    """Where each container of a pod will lie, if a node admits it.

    `zones` (containers, nodes) are the NUMA nodes of its CPUs, memory and devices together, bit z for position z, and 0
    for none of these; `aligned` (containers, nodes) whether its hint was preferred, or it asks for nothing that could
    be aligned. `looked_for`, `known_cpus` and `known_devices` (nodes,) are False where zones are not right: they were
    not looked for, or are all that may be, as ids of CPUs or devices decide.
    """

    __slots__ = ("aligned", "known_cpus", "known_devices", "looked_for", "zones")

    def __init__(self, containers: int, nodes: int) -> None:
        self.zones: Masks = np.zeros((containers, nodes), dtype=np.uint8)
        self.aligned: Flags = np.ones((containers, nodes), dtype=np.bool_)
        self.looked_for: Flags = np.ones(nodes, dtype=np.bool_)
        self.known_cpus: Flags = np.ones(nodes, dtype=np.bool_)
        self.known_devices: Flags = np.ones(nodes, dtype=np.bool_)


def admit(shape: Shape, counts: NodesView, traits: Traits, *, locate: bool = False) -> tuple[Decisions, Placements]:
    """What is decided about some nodes with these traits.

    A node that is still undecided at the end admits the pod, and places it so. Where that is not simply the hint, it is
    worked out only to `locate` the pod: a verdict does not depend on it.
    """
    return finished(admitting(shape, counts, traits, locate=locate))


def admitting(
    shape: Shape, counts: NodesView, traits: Traits, *, locate: bool = False
) -> Generator[None, None, tuple[Decisions, Placements]]:
    """The same with a step for each container, of a millisecond or two."""
    admission = _Admission(shape, counts, traits, locate=locate)
    yield from admission.steps()
    return admission.decisions, admission.placements


def finished(steps: Generator[None, None, Result]) -> Result:
    """What all steps come to."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return cast(Result, stop.value)


class _Admission:
    def __init__(self, shape: Shape, counts: NodesView, traits: Traits, *, locate: bool) -> None:
        self.shape = shape
        self.counts = counts
        self.traits = traits
        self.decisions = Decisions(len(counts))
        self.cpus = CpuManager(counts, traits, self.decisions) if traits.cpu else None
        self.memory = MemoryManager(counts, self.decisions) if traits.memory and shape.pinned else None
        self.devices = DeviceManager(counts, self.decisions)
        self.order = order_of(traits.zones, traits.distances)
        self.placements = Placements(len(shape.containers), len(counts))
        self._locate = locate
        self._init_requests = frozenset(name for name, _ in shape.init_requests)
        self._for_many = traits.policy != "none" and traits.scope == "pod" and len(shape.containers) > 1

    def steps(self) -> Iterator[None]:
        """Decide every node."""
        shape, traits, count = self.shape, self.traits, len(self.counts)
        everything = np.ones(count, dtype=np.bool_)
        if shape.by_pod_level:
            self.decisions.defer(everything, "pod-level-managers")
        elif traits.by_socket and any(request.cpus for request in shape.containers):
            self.decisions.defer(everything, "align-by-socket")
        elif traits.exact_shares:
            self.decisions.defer(everything, "exact-shares")
        if not self.decisions.undecided.any():
            return
        hint = np.zeros(count, dtype=np.uint8)
        preferred = np.zeros(count, dtype=np.bool_)
        by_pod = traits.policy != "none" and traits.scope == "pod" and bool(shape.containers)
        if by_pod:
            hint, preferred = self._decide(shape.total, shape.containers[0])
        for number, request in enumerate(shape.containers):
            if traits.policy != "none" and not by_pod:
                hint, preferred = self._decide(request, request)
            self._allocate(number, hint, preferred)
            yield
            if not self.decisions.undecided.any():
                return
        if traits.predicates:
            self._check_predicates()

    def _decide(self, request: AlignedRequest, first: AlignedRequest) -> tuple[Masks, Flags]:
        """The merged hints, 0 for no affinity, and whether they are preferred. Refuses and defers.

        `first` is the container that is allocated with the hint first.
        """
        resources: list[ResourceHints | None] = [self.devices.hints(name, count) for name, count in request.devices]
        cpus = self.cpus if request.cpus else None
        if cpus is not None:
            resources.append(cpus.hints(request.cpus))
        if self.memory is not None and request.memory:
            resources.append(self.memory.hints(request.memory))
        found = [hints for hints in resources if hints is not None]
        policy, undecided = self.traits.policy, self.decisions.undecided
        if policy == "single-numa-node":
            hint, preferred = topology_manager.merge_single(
                found, self.traits.zones, len(undecided), lambda fits: self._pick(fits, asks_for_cpus=cpus is not None)
            )
        else:
            if policy == "best-effort":
                # Every hint is admitted, so what no hint helps need not wait for one.
                self._check(first)
                if self.memory is not None and first.memory:
                    self.memory.check(first.memory)
            hint, preferred = topology_manager.merge(found, self.order, undecided, policy == "best-effort")
        if policy != "best-effort":
            self.decisions.refuse(~preferred, AFFINITY)
        if cpus is not None:
            cpus.confirm(hint, preferred)
        return hint, preferred

    def _pick(self, fits: Masks, *, asks_for_cpus: bool) -> Masks:
        """Policy single-numa-node: of the NUMA nodes that fit the lowest, or the one the vote leaves."""
        if not self.traits.most_allocated:
            return topology_manager.lowest(fits)
        fits = fits & np.uint8((1 << self.traits.zones) - 1)
        votes = []
        if self.cpus is not None:
            free = self.cpus.free(fits != topology_manager.lowest(fits), asks_for_cpus=asks_for_cpus)
            allocatable = self.counts.allocatable(CPU)
            votes.append(topology_manager.most_allocated(allocatable - free, allocatable))
        if self.traits.memory:
            memory = self.memory or MemoryManager(self.counts, self.decisions)
            votes.append(topology_manager.most_allocated(*memory.reserved()))
        return topology_manager.elect(fits, votes)

    def _allocate(self, number: int, hint: Masks, preferred: Flags) -> None:
        """Device, CPU and memory manager, in this order."""
        shape = self.shape
        request, kind, later = shape.containers[number], shape.kinds[number], shape.containers[number + 1 :]
        self._check(request)
        elsewhere = self._perhaps_elsewhere(request, hint, preferred)
        zones = self._located(request, hint, preferred, elsewhere) if len(elsewhere) else hint
        for name, count in request.devices:
            more = any(name == other for one in later for other, _ in one.devices)
            self.devices.allocate(name, count, kind, hint, more=more)
        if self.cpus is not None and request.cpus:
            # The vote counts CPUs for every later container, also one that shares its own.
            voting = self.traits.most_allocated and self.traits.scope == "container" and bool(later)
            self.cpus.allocate(request.cpus, kind, hint, more=voting or any(one.cpus for one in later))
        if self.memory is not None and request.memory is None:
            self.decisions.refuse(self.decisions.undecided, FAILED)
        elif self.memory is not None and request.memory is not None:
            more = any(one.memory is not None for one in later)
            mask = self.memory.allocate(request.memory, kind, hint, preferred, more=more)
            if request.memory and self._for_many:
                zones = zones | mask
            elif request.memory and len(elsewhere):
                zones[elsewhere] |= mask[elsewhere]
        self._place(number, zones, preferred)

    def _located(self, request: AlignedRequest, hint: Masks, preferred: Flags, elsewhere: Subset) -> Masks:
        """The hint, and `elsewhere` the NUMA nodes of the devices and CPUs that are about to be allocated."""
        places, zones = self.placements, hint.copy()
        zones[elsewhere] = 0
        for name, count in request.devices:
            zones[elsewhere] |= self.devices.located(name, count, hint, preferred, elsewhere, places.known_devices)
        if self.cpus is not None and request.cpus:
            zones[elsewhere] |= self.cpus.located(request.cpus, hint, elsewhere, places.known_cpus)
        return zones

    def _place(self, number: int, zones: Masks, preferred: Flags) -> None:
        """Note where the container lies; on one NUMA node there is nothing to align."""
        request, places = self.shape.containers[number], self.placements
        holds = self._holds(request)
        if self.traits.zones == 1:
            places.zones[number] = holds
            return
        np.multiply(zones, holds, out=places.zones[number])
        if request.can_be_aligned(pinned=self.shape.pinned):
            places.aligned[number] = preferred

    def _holds(self, request: AlignedRequest) -> Flags:
        """Where the container will hold something that lies on NUMA nodes."""
        if (self.cpus is not None and request.cpus) or (self.memory is not None and request.memory):
            return _EVERYWHERE
        found = _NOWHERE
        for name, count in request.devices:
            aligned = self.devices.aligned(name) if count > 0 else None
            if aligned is not None:
                found = found | aligned
        return found

    def _perhaps_elsewhere(self, request: AlignedRequest, hint: Masks, preferred: Flags) -> Subset:
        """The nodes on which the container may get other NUMA nodes than the hint's.

        A preferred hint has enough of everything, and no fewer NUMA nodes would do on the empty machine: all of them
        are used. Only of a hint for the whole pod a container may use a part, unless its memory is pinned to all; or
        memory has no say in that hint, as no NUMA nodes have enough for all containers, and then goes its own way.
        """
        if self.traits.zones == 1 or not self._holds(request).any():
            return _NONE
        sure = preferred
        if self._for_many and not (self.memory is not None and request.memory):
            sure = sure & (popcounts(self.traits.zones)[hint] <= 1)
        elsewhere = np.flatnonzero(self.decisions.undecided & ~sure)
        if self._locate:
            return elsewhere
        self.placements.looked_for[elsewhere] = False
        return _NONE

    def _check(self, request: AlignedRequest) -> None:
        """What device and CPU manager refuse whatever the hint."""
        for name, count in request.devices:
            self.devices.check(name, count)
        if self.cpus is not None and request.cpus:
            self.cpus.check(request.cpus)

    def _check_predicates(self) -> None:
        """The sums of requests against node allocatable; the first resource that is short is the reason."""
        if self.shape.has_sidecars and not self.traits.sidecars:
            self.decisions.refuse(self.decisions.undecided, SIDECARS)
        amounts = dict(self.shape.requests)
        for index, name in enumerate(checked(self.shape)):
            short = self._short(name, 1 if name == "pods" else amounts[name])
            if short is not None:
                where = short & self.decisions.undecided
                if where.any():
                    self.decisions.short[where] = index
                    self.decisions.refuse(where, SHORT)

    def _short(self, name: str, amount: int) -> Flags | None:
        slack = self.counts.section(("slack", name))[0] if ("slack", name) in self.counts else None
        if name.startswith("hugepages-") and slack is None:
            return np.ones(len(self.counts), dtype=np.bool_)
        found = [] if slack is None else [slack < amount]
        by_devices = self.devices.short(name, amount, self._holding())
        if by_devices is not None:
            found.append(by_devices)
        if self.traits.refuses_unknown and name in self._init_requests:
            found.append(self._lacking(name, slack))
        return np.logical_or.reduce(found) if found else None

    def _lacking(self, name: str, slack: Numbers | None) -> Flags:
        """Where neither the kubelet nor a device plug-in knows the resource."""
        lacking = np.ones(len(self.counts), dtype=np.bool_) if slack is None else slack == ENDLESS
        registered = self.devices.registered(name)
        return lacking if registered is None else lacking & ~registered

    def _holding(self) -> Flags:
        """Whether the pod was given devices, whichever."""
        holding = np.zeros(len(self.counts), dtype=np.bool_)
        asked: set[str] = {name for request in self.shape.containers for name, count in request.devices if count > 0}
        for name in asked:
            registered = self.devices.registered(name)
            if registered is not None:
                holding |= registered
        return holding
