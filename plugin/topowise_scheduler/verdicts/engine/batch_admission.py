"""The admission of a pod shape on many nodes at once, in the order of `Kubelet.admit_view` (kubelet/node.py).

Invariant: the result for a node equals the model's result wherever amounts decide. Where it depends on which CPUs or
devices a container gets, the node is deferred to the model, with the cause (verdicts.CAUSES).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.report.shape import NATIVE, AlignedRequest, Shape
from topowise_scheduler.verdicts.engine import topology_manager
from topowise_scheduler.verdicts.engine.cpu_manager import CpuManager
from topowise_scheduler.verdicts.engine.device_manager import DeviceManager
from topowise_scheduler.verdicts.engine.mask_arrays import Flags, Masks, Subset, order_of, popcounts
from topowise_scheduler.verdicts.engine.memory_manager import MemoryManager
from topowise_scheduler.verdicts.engine.node_groups import NodesView
from topowise_scheduler.verdicts.engine.node_vector import CPU, ENDLESS, Traits
from topowise_scheduler.verdicts.engine.topology_manager import ResourceHints
from topowise_scheduler.verdicts.engine.verdicts import AFFINITY, FAILED, NO_GATE, SHORT, SIDECARS, Decisions

Numbers = NDArray[np.int64]

_EVERYWHERE: Flags = np.ones(1, dtype=np.bool_)
_NOWHERE: Flags = np.zeros(1, dtype=np.bool_)
_NONE: Subset = np.zeros(0, dtype=np.intp)


class Placements:
    """The NUMA nodes of each container of a pod, if a node admits the pod.

    `zones` (containers, nodes) are the NUMA nodes of its CPUs, memory and devices together, bit z for position z, and 0
    for a container without them. `aligned` (containers, nodes) is whether its hint was preferred, or no request could
    be aligned, and False for a container that only other kubelets pin (Shape.unpinned). `computed` (nodes,) is False
    where zones were not computed. `known_cpus` and `known_devices` (nodes,) are False where ids of CPUs or devices
    decide: zones are an upper bound there.
    """

    __slots__ = ("aligned", "computed", "known_cpus", "known_devices", "zones")

    def __init__(self, containers: int, nodes: int) -> None:
        self.zones: Masks = np.zeros((containers, nodes), dtype=np.uint8)
        self.aligned: Flags = np.ones((containers, nodes), dtype=np.bool_)
        self.computed: Flags = np.ones(nodes, dtype=np.bool_)
        self.known_cpus: Flags = np.ones(nodes, dtype=np.bool_)
        self.known_devices: Flags = np.ones(nodes, dtype=np.bool_)


def admitting(
    shape: Shape, nodes: NodesView, traits: Traits, *, locate: bool = False
) -> Generator[None, None, tuple[Decisions, Placements]]:
    """The decisions for nodes with these traits, with a step of a millisecond or two for each container.

    A node that is undecided at the end admits the pod with this placement. A placement that differs from the hint is
    computed only with `locate`, because a verdict does not depend on it.
    """
    admission = _Admission(shape, nodes, traits, locate=locate)
    yield from admission.steps()
    return admission.decisions, admission.placements


class _Admission:
    def __init__(self, shape: Shape, nodes: NodesView, traits: Traits, *, locate: bool) -> None:
        self.shape = shape
        self.nodes = nodes
        self.traits = traits
        self.decisions = Decisions(len(nodes))
        self.cpus = CpuManager(nodes, traits, self.decisions) if traits.cpu else None
        self.memory = MemoryManager(nodes, self.decisions) if traits.memory and shape.pinned else None
        self.devices = DeviceManager(nodes, self.decisions)
        self.order = order_of(traits.zones, traits.distances)
        self.placements = Placements(len(shape.containers), len(nodes))
        self._locate = locate
        self._init_requests = frozenset(name for name, _ in shape.init_requests)
        self._for_many = traits.policy != "none" and traits.scope == "pod" and len(shape.containers) > 1

    def steps(self) -> Iterator[None]:
        """Decides every node."""
        shape, traits, count = self.shape, self.traits, len(self.nodes)
        everything = np.ones(count, dtype=np.bool_)
        if shape.by_pod_level:
            self.decisions.defer(everything, "pod-level-managers")
        elif traits.by_socket and any(request.cpus for request in shape.containers):
            self.decisions.defer(everything, "align-by-socket")
        if not self.decisions.undecided.any():
            return
        # Policy none: every container gets the default hint, no affinity.
        hint = np.zeros(count, dtype=np.uint8)
        preferred = np.zeros(count, dtype=np.bool_)
        by_pod = traits.policy != "none" and traits.scope == "pod" and bool(shape.containers)
        if by_pod:
            # podScope.Admit
            hint, preferred = self._decide(shape.total, shape.containers[0])
        for number, request in enumerate(shape.containers):
            if traits.policy != "none" and not by_pod:
                # containerScope.Admit
                hint, preferred = self._decide(request, request)
            self._allocate(number, hint, preferred)
            yield
            if not self.decisions.undecided.any():
                return
        # predicateAdmitHandler runs after the resource managers, on the devices that they allocated.
        if traits.predicates:
            self._check_predicates()

    def _decide(self, request: AlignedRequest, first: AlignedRequest) -> tuple[Masks, Flags]:
        """The merged hints, 0 for no affinity, and whether they are preferred. Refuses and defers nodes.

        `first` is the container that is allocated first with this hint.
        """
        resources: list[ResourceHints | None] = [self.devices.hints(name, count) for name, count in request.devices]
        cpus = self.cpus if request.cpus else None
        if cpus is not None:
            resources.append(cpus.hints(request.cpus))
        if self.memory is not None and request.memory:
            resources.append(self.memory.hints(request.memory))
        # A resource without hints on any node does not restrict the merge (filterProvidersHints).
        with_hints = [hints for hints in resources if hints is not None]
        policy, undecided = self.traits.policy, self.decisions.undecided
        if policy == "single-numa-node":
            hint, preferred = topology_manager.merge_single(
                with_hints,
                self.traits.zones,
                len(undecided),
                lambda fits: self._pick(fits, requests_cpus=cpus is not None),
            )
        else:
            if policy == "best-effort":
                # Every hint is admitted, so refusals that no hint prevents come first and save the merge.
                self._check(first)
                if self.memory is not None and first.memory:
                    self.memory.check(first.memory)
            hint, preferred = topology_manager.merge(with_hints, self.order, undecided, policy == "best-effort")
        # canAdmitPodResult: restricted and single-numa-node admit preferred hints only.
        if policy != "best-effort":
            self.decisions.refuse(~preferred, AFFINITY)
        if cpus is not None:
            cpus.confirm(hint, preferred)
        return hint, preferred

    def _pick(self, fits: Masks, *, requests_cpus: bool) -> Masks:
        """Policy single-numa-node: the lowest NUMA node that fits, or the winner of the vote (KEP-6007)."""
        if not self.traits.most_allocated:
            return topology_manager.lowest(fits)
        # Without restricting resources all eight bits are set, but votes only exist for the zones.
        fits = fits & np.uint8((1 << self.traits.zones) - 1)
        votes = []
        if self.cpus is not None:
            free = self.cpus.free(fits != topology_manager.lowest(fits), requests_cpus=requests_cpus)
            allocatable = self.nodes.allocatable(CPU)
            votes.append(topology_manager.most_allocated(allocatable - free, allocatable))
        if self.traits.memory:
            memory = self.memory or MemoryManager(self.nodes, self.decisions)
            votes.append(topology_manager.most_allocated(*memory.reserved()))
        return topology_manager.elect(fits, votes)

    def _allocate(self, number: int, hint: Masks, preferred: Flags) -> None:
        """Allocates a container: device, CPU and memory manager, in the order in which the kubelet registers them."""
        shape = self.shape
        request, kind, later = shape.containers[number], shape.kinds[number], shape.containers[number + 1 :]
        self._check(request)
        elsewhere = self._maybe_elsewhere(request, hint, preferred)
        zones = self._located(request, hint, preferred, elsewhere) if len(elsewhere) else hint
        later_devices = {name for container in later for name, _ in container.devices}
        for name, count in request.devices:
            self.devices.allocate(name, count, kind, hint, more=name in later_devices)
        if self.cpus is not None and request.cpus:
            # The vote counts free CPUs for every later container, with or without exclusive CPUs.
            voting = self.traits.most_allocated and self.traits.scope == "container" and bool(later)
            self.cpus.allocate(request.cpus, kind, hint, more=voting or any(container.cpus for container in later))
        if self.memory is not None and request.memory is None:
            self.decisions.refuse(self.decisions.undecided, FAILED)
        elif self.memory is not None and request.memory is not None:
            more = any(container.memory is not None for container in later)
            mask = self.memory.allocate(request.memory, kind, hint, preferred, more=more)
            if request.memory and self._for_many:
                zones = zones | mask
            elif request.memory and len(elsewhere):
                zones[elsewhere] |= mask[elsewhere]
        self._place(number, zones, preferred)

    def _located(self, request: AlignedRequest, hint: Masks, preferred: Flags, elsewhere: Subset) -> Masks:
        """The hint, but on the nodes `elsewhere` the NUMA nodes of the devices and CPUs that are allocated next."""
        placements, zones = self.placements, hint.copy()
        # Devices and CPUs add the NUMA nodes that they take, inside or outside the hint.
        zones[elsewhere] = 0
        for name, count in request.devices:
            zones[elsewhere] |= self.devices.located(name, count, hint, preferred, elsewhere, placements.known_devices)
        if self.cpus is not None and request.cpus:
            zones[elsewhere] |= self.cpus.located(request.cpus, hint, elsewhere, placements.known_cpus)
        return zones

    def _place(self, number: int, zones: Masks, preferred: Flags) -> None:
        """Stores the container's placement; on a single NUMA node nothing is aligned."""
        request, placements = self.shape.containers[number], self.placements
        uses_zones = self._uses_zones(request)
        if number in self.shape.unpinned:
            placements.aligned[number] = False
        if self.traits.zones == 1:
            placements.zones[number] = uses_zones
            return
        # 0 for containers without CPUs, memory and devices of a NUMA node.
        np.multiply(zones, uses_zones, out=placements.zones[number])
        if number not in self.shape.unpinned and request.can_be_aligned(pinned=self.shape.pinned):
            placements.aligned[number] = preferred

    def _uses_zones(self, request: AlignedRequest) -> Flags:
        """(nodes,) or (1,) whether the container gets anything that belongs to NUMA nodes."""
        if (self.cpus is not None and request.cpus) or (self.memory is not None and request.memory):
            return _EVERYWHERE
        uses_zones = _NOWHERE
        for name, count in request.devices:
            aligned = self.devices.aligned(name) if count > 0 else None
            if aligned is not None:
                uses_zones = uses_zones | aligned
        return uses_zones

    def _maybe_elsewhere(self, request: AlignedRequest, hint: Masks, preferred: Flags) -> Subset:
        """The nodes on which the container may get other NUMA nodes than the hint's.

        With a preferred hint the container uses all of its NUMA nodes: they have enough, and fewer would not do even on
        the empty machine. The exception is a hint for the whole pod. A container may use a part of it, unless its
        memory is pinned to all of it. If no NUMA nodes have enough memory for all containers, the hint ignores memory,
        and memory can be allocated elsewhere.
        """
        if self.traits.zones == 1 or not self._uses_zones(request).any():
            return _NONE
        sure = preferred
        if self._for_many and not (self.memory is not None and request.memory):
            # A container cannot use a part of a single NUMA node.
            sure = sure & (popcounts(self.traits.zones)[hint] <= 1)
        elsewhere = np.flatnonzero(self.decisions.undecided & ~sure)
        if self._locate:
            return elsewhere
        self.placements.computed[elsewhere] = False
        return _NONE

    def _check(self, request: AlignedRequest) -> None:
        """Refuses what the device and CPU manager refuse under every hint."""
        for name, count in request.devices:
            self.devices.check(name, count)
        if self.cpus is not None and request.cpus:
            self.cpus.check(request.cpus)

    def _check_predicates(self) -> None:
        """Compares sums of requests with node allocatable (generalFilter)."""
        if self.shape.has_sidecars and not self.traits.sidecars:
            self.decisions.refuse(self.decisions.undecided, SIDECARS)
        for name, amount in (("pods", 1), *self.shape.requests):
            short = self._short(name, amount)
            if short is not None:
                self.decisions.refuse(short, SHORT)
        if self.shape.lacks_gate:
            self.decisions.refuse(self.decisions.undecided, NO_GATE)

    def _short(self, name: str, amount: int) -> Flags | None:
        """(nodes,) whether the node lacks the resource, None if no node does."""
        section = self.nodes.find(("slack", name))
        slack = None if section is None else section[0]
        # A node without the page size lacks every request for it.
        if name.startswith("hugepages-") and slack is None:
            return np.ones(len(self.nodes), dtype=np.bool_)
        shortages = [] if slack is None else [slack < amount]
        # Device plug-ins register extended resources alone (IsExtendedResourceName).
        if name != "pods" and name not in NATIVE:
            by_devices = self.devices.short(name, amount, self._has_devices())
            if by_devices is not None:
                shortages.append(by_devices)
        if self.traits.refuses_unknown and name in self._init_requests:
            # removeMissingExtendedResources of these versions keeps unknown resources of init containers.
            shortages.append(self._unknown(name, slack))
        return np.logical_or.reduce(shortages) if shortages else None

    def _unknown(self, name: str, slack: Numbers | None) -> Flags:
        """(nodes,) whether neither the kubelet nor a device plug-in knows the resource."""
        unknown = np.ones(len(self.nodes), dtype=np.bool_) if slack is None else slack == ENDLESS
        registered = self.devices.registered(name)
        return unknown if registered is None else unknown & ~registered

    def _has_devices(self) -> Flags:
        """(nodes,) whether the pod was allocated devices of any resource."""
        has_devices = np.zeros(len(self.nodes), dtype=np.bool_)
        names: set[str] = {name for request in self.shape.containers for name, count in request.devices if count > 0}
        for name in names:
            registered = self.devices.registered(name)
            if registered is not None:
                has_devices |= registered
        return has_devices
