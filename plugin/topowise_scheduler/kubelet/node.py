"""A node's kubelet: its managers, its pods, and its decision about the next pod (pkg/kubelet/allocation, lifecycle).

An admission is hints, merge and allocation per container (or once for the pod, scopes.py), then the predicates. The
first refusal wins. Then the pod's allocations are released as the kubelet releases a dead pod's resources.

A `Kubelet` is cheap to `fork`: machine, topology and policies are shared, and a pod's state never changes in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from topowise import pods
from topowise.errors import ConfigError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pods import Amounts, Kind
from topowise_scheduler.kubelet import scopes
from topowise_scheduler.kubelet.configuration import Evidence, Settings, settle
from topowise_scheduler.kubelet.cpu_manager import CpuManager, CpuPolicy
from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology
from topowise_scheduler.kubelet.device_manager import DeviceManager
from topowise_scheduler.kubelet.device_table import DeviceSet
from topowise_scheduler.kubelet.hints import NO_AFFINITY, Admission, Hint, MemoryBlock, Placement, Rejection
from topowise_scheduler.kubelet.machine import Device, Machine
from topowise_scheduler.kubelet.masks import MAX_NODES, mask_of, members
from topowise_scheduler.kubelet.memory_manager import Block, MemoryManager
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy
from topowise_scheduler.kubelet.pod import PodView, finished, view
from topowise_scheduler.kubelet.predicates import (
    LACKS_GATE,
    LACKS_GATE_MESSAGE,
    SIDECARS_FORBIDDEN,
    Shortage,
    node_allocatable,
    shortages,
)
from topowise_scheduler.kubelet.scopes import Observer, Rejected
from topowise_scheduler.kubelet.shared_allocations import single
from topowise_scheduler.kubelet.topology_manager import TopologyManager
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion

_NO_HINTS: Mapping[str, Hint] = {}
# Limits of the cache of blocks: entries, and blocks per entry. Most containers have 1 or 2 blocks.
_CACHE_SIZE: Final = 8192
_MAX_CACHED_BLOCKS: Final = 4


class _Active(msgspec.Struct, frozen=True, gc=False):
    """An active pod; `pod` is None if only its allocations, `reported`, are known."""

    requests: Mapping[str, int]
    pod: PodView | None
    hints: Mapping[str, Hint]
    reported: Mapping[str, Placement] | None = None


class Kubelet:
    """The model of a node's kubelet.

    Raises KubeletStartError if the kubelet would not start, ConfigError for too many NUMA nodes (masks.MAX_NODES), and
    ParseError for a malformed quantity. `Settings` for a partly known node replace a configuration, unchecked.

    `version` is the kubelet's (versions.version_of), `evidence` what else is known about its configuration. Both apply
    to a configuration only, because `Settings` have a behaviour already.

    `node_ids` are the NUMA nodes by position in a mask; `all_node_ids` also has nodes beyond Machine.modelled.

    `predicates` False skips the predicates. `allocatable` replaces the node allocatable that follows from machine and
    settings. Then the predicates do not check a resource that is neither in it nor a device.
    """

    __slots__ = (
        "__weakref__",
        "active",
        "all_node_ids",
        "capacity",
        "cpu",
        "devices",
        "knows_all",
        "memory",
        "node_ids",
        "predicates",
        "requested",
        "settings",
        "topology",
        "topology_manager",
    )

    def __init__(
        self,
        machine: Machine,
        configuration: KubeletConfiguration | Settings,
        *,
        version: KubeletVersion = NEWEST_RECORDED,
        evidence: Evidence = "runs",
        predicates: bool = True,
        allocatable: Amounts | None = None,
    ) -> None:
        self.settings: Settings = (
            configuration if isinstance(configuration, Settings) else settle(configuration, machine, version, evidence)
        )
        behaviour = self.settings.behaviour
        with_memory = self.settings.reserved_memory is not None
        modelled, self.all_node_ids = machine, tuple(node.id for node in machine.nodes())
        if self.settings.topology.policy != "none" or with_memory:
            modelled = machine.modelled(with_memory=with_memory)
            if len(modelled.numa) > MAX_NODES:
                raise ConfigError(
                    "machine", f"has {len(modelled.numa)} NUMA nodes, masks are modelled up to {MAX_NODES}"
                )
        nodes = modelled.nodes()
        self.node_ids = tuple(node.id for node in nodes)
        self.predicates = predicates
        self.topology = CpuTopology(modelled)
        self.topology_manager = TopologyManager(self.settings.topology, nodes, machine.nodes())
        self.devices = DeviceManager(modelled, behaviour)
        self.cpu: CpuManager | None = None
        if self.settings.cpu is not None:
            self.cpu = CpuManager(CpuPolicy(self.topology, self.settings.cpu, len(nodes), behaviour))
        self.memory: MemoryManager | None = None
        if self.settings.reserved_memory is not None:
            positions = {node_id: position for position, node_id in enumerate(self.all_node_ids)}
            reserved = [self.settings.reserved_memory[positions[node_id]] for node_id in self.node_ids]
            self.memory = MemoryManager(MemoryPolicy(nodes, reserved, behaviour, self.all_node_ids))
        self.active: dict[str, _Active] = {}
        # The sum of the effective requests of the active pods; may have entries of 0.
        self.requested: Amounts = {}
        # Whether an unknown resource is a resource that the node does not have.
        self.knows_all = allocatable is None
        # What the predicates compare requests with, without devices; all forks share the object.
        self.capacity: Mapping[str, int] = (
            node_allocatable(machine, self.settings)
            if allocatable is None
            else {"pods": self.settings.max_pods, **allocatable}
        )

    def fork(self) -> Kubelet:
        """Returns an independent copy, for trials without an effect on this object."""
        copy = Kubelet.__new__(Kubelet)
        copy.settings = self.settings
        copy.all_node_ids = self.all_node_ids
        copy.node_ids = self.node_ids
        copy.predicates = self.predicates
        copy.topology = self.topology
        copy.topology_manager = self.topology_manager
        copy.devices = self.devices.fork()
        copy.cpu = None if self.cpu is None else self.cpu.fork()
        copy.memory = None if self.memory is None else self.memory.fork()
        copy.active = self.active.copy()
        copy.requested = self.requested.copy()
        copy.capacity = self.capacity
        copy.knows_all = self.knows_all
        return copy

    def without(self, uids: Iterable[str]) -> Kubelet:
        """Returns a copy on which these pods have ended, in this order."""
        copy = self.fork()
        for uid in uids:
            copy.remove(uid)
        return copy

    def emptied(self) -> Kubelet:
        """Returns the same node without pods."""
        copy = self.fork()
        copy.devices.allocated = dict.fromkeys(copy.devices.tables, 0)
        copy.devices.allocations = {}
        copy.cpu = None if copy.cpu is None else CpuManager(copy.cpu.policy)
        copy.memory = None if copy.memory is None else MemoryManager(copy.memory.policy)
        copy.active = {}
        copy.requested = {}
        return copy

    def admit(self, pod: pods.Pod) -> Admission:
        """Decides a pod and, if it is admitted, books it. Raises ParseError for a malformed quantity."""
        return self.admit_view(self.view_of(pod))

    def view_of(self, pod: pods.Pod) -> PodView:
        """Returns the pod as this kubelet sees it. Raises ParseError for a malformed quantity."""
        needs = pods.needs(pod, pod_level_resources=self.settings.pod_level_resources)
        return self.view(pod.metadata.uid, needs)

    def view(self, uid: str, needs: pods.Needs) -> PodView:
        """Returns the pod as this kubelet sees it; equal on all nodes with the same behaviour and feature gates."""
        return view(
            uid,
            needs,
            pod_level_resource_managers=self.settings.pod_level_resource_managers,
            behaviour=self.settings.behaviour,
        )

    def admit_view(self, seen: PodView, observe: Observer | None = None) -> Admission:
        """Decides a pod with a known view; `observe` is called for every merge.

        A pod that is active already is admitted again, and keeps its allocations. A refused pod has none.
        """
        admission = self.decide(seen, observe)
        if not admission.admitted:
            self.release(seen.uid)
        return admission

    def decide(self, seen: PodView, observe: Observer | None = None) -> Admission:
        """Decides a pod like `admit_view`, and leaves the allocations of a refused pod."""
        # Its own requests must not count against the pod.
        self.forget(seen.uid)
        for manager in (self.devices, self.cpu, self.memory):
            if manager is not None:
                manager.begin()
        try:
            hints = scopes.allocate(self, seen, observe)
        except Rejected as rejected:
            return self._refused(seen, "topology", rejected.reason, rejected.message, rejection=rejected.rejection)
        if self.predicates:
            refused = self._refused_by_predicates(seen)
            if refused is not None:
                return refused
        if len(hints) == 1:
            # Most pods have one container, and there are few distinct hints, so equal dicts are shared.
            hints = single(*next(iter(hints.items())))
        self._activate(seen.uid, _Active(seen.requests, seen, hints))
        return Admission(uid=seen.uid, qos=seen.qos, admitted=True, placements=self.placements(seen.uid))

    def expect(self, seen: PodView) -> Admission:
        """Decides a pod that is predicted, not active. A refusal leaves no trace.

        A kubelet releases a refused pod's allocations, but keeps the memory groups that the pod formed. On an uneven
        machine the release also frees CPUs of other pods.
        """
        before = self.fork() if self._may_keep_traces else self
        admission = self.admit_view(seen)
        if not admission.admitted:
            # Restored from the fork: no manager can undo these traces.
            self.devices, self.cpu, self.memory = before.devices, before.cpu, before.memory
            self.active, self.requested = before.active, before.requested
        return admission

    @property
    def _may_keep_traces(self) -> bool:
        """Returns whether a refused pod may leave traces in the managers' state."""
        has_groups = self.memory is not None and self.settings.topology.policy != "single-numa-node"
        # Forking is skipped where a refusal cannot change anything.
        return has_groups or (self.cpu is not None and not self.cpu.policy.topology.is_even)

    def start(self, uid: str, containers: Iterable[str] | None = None) -> bool:
        """Starts containers (None: all), which frees the memory of ended init containers. False for an unknown UID."""
        active = self.active.get(uid)
        if active is None:
            return False
        if active.pod is None:
            return True
        ended = finished(active.pod, None if containers is None else frozenset(containers))
        if ended:
            if self.memory is not None:
                self.memory.remove(uid, ended)
            # The kubelet forgets the hints of removed containers; a sidecar keeps its hint.
            kept = {container.name for container in active.pod.containers if container.declared != "init"}
            self.active[uid] = msgspec.structs.replace(
                active, hints={name: hint for name, hint in active.hints.items() if name in kept or name not in ended}
            )
        return True

    def remove(self, uid: str) -> bool:
        """Removes an ended pod: its allocations are free at the next admission. False for an unknown UID."""
        known = self.forget(uid)
        if known:
            self.release(uid)
        return known

    def report_devices(self, resource: str, devices: Iterable[Device]) -> None:
        """Applies a device plugin's list. Raises ConfigError for a device near a node that is not modelled."""
        devices = tuple(devices)
        left_out = {*self.all_node_ids} - {*self.node_ids}
        if left_out and any(left_out.intersection(device.numa or ()) for device in devices):
            raise ConfigError("devices", f"{resource} is now near NUMA nodes that had no devices and are not modelled")
        self.devices.report(resource, self.devices.table(devices))

    def hold(self, uid: str, requests: Mapping[str, int], placements: Mapping[str, Placement]) -> None:
        """Books a running pod as the node reports it, without a decision.

        `requests` are its effective requests (topowise.pods.needs). Its memory forms groups, as in an allocation.
        """
        self.remove(uid)
        for name, placement in placements.items():
            self._hold(uid, name, placement)
        self._activate(uid, _Active(requests, None, _NO_HINTS, placements))

    def hold_bare(self, seen: PodView) -> None:
        """Books a pod without allocations: it counts only in the sums of requests."""
        self._activate(seen.uid, _Active(seen.requests, seen, _NO_HINTS))

    def hold_exactly(self, holders: Mapping[str, tuple[Mapping[str, int], Mapping[str, Placement]]]) -> None:
        """Makes these pods, by UID, the only active pods, each booked as by `hold`.

        Pods with unchanged allocations stay. Memory tables, and CPUs without an owner, depend on the history, so the
        caller corrects them afterwards.
        """
        for uid in [uid for uid in self.active if uid not in holders]:
            self.remove(uid)
        for uid, (requests, placements) in holders.items():
            active = self.active.get(uid)
            if active is None or active.reported is not placements or active.requests != requests:
                self.hold(uid, requests, placements)
        # Two pods may be reported with the same device or CPU. It stays allocated when the first pod is removed.
        self.devices.recount()
        if self.cpu is not None:
            self.cpu.recount()

    def allocates_whole(self, pod: PodView) -> bool:
        """Returns whether the kubelet allocates CPUs and memory for the pod as a whole (AllocatePod)."""
        topology = self.settings.topology
        return pod.by_pod_level and topology.scope == "pod" and topology.policy != "none"

    @property
    def is_within(self) -> bool:
        """Returns whether capacity covers all requests. Then the predicates refuse none of the pods, in any order."""
        used, capacity = self.requested, self.capacity
        return len(self.active) <= capacity["pods"] and all(
            amount <= capacity[name] for name, amount in used.items() if name in capacity
        )

    def reserve(
        self, position: int, cpus: CpuSet, memory: Amounts | None = None, devices: Mapping[str, DeviceSet] | None = None
    ) -> None:
        """Takes CPUs, devices, and memory of a position's NUMA node away, for good. The predicates do not see it."""
        if self.cpu is not None:
            self.cpu.default &= ~cpus
        for name, size in (memory or {}).items():
            assert self.memory is not None
            self.memory.tables.take(name, 1 << position, size)
        for resource, taken in (devices or {}).items():
            self.devices.allocated[resource] |= taken

    def placements(self, uid: str) -> dict[str, Placement]:
        """Returns the current allocation of each container of an active pod."""
        active = self.active[uid]
        cpus = self.cpu.allocations.get(uid, {}) if self.cpu is not None else {}
        memory = self.memory.allocations.get(uid, {}) if self.memory is not None else {}
        devices = self.devices.allocations.get(uid, {})
        kinds: dict[str, Kind] = (
            dict.fromkeys((*cpus, *memory, *devices), "app")
            if active.pod is None
            else {container.name: container.declared for container in active.pod.containers}
        )
        placements = {}
        for name, kind in kinds.items():
            hint = active.hints.get(name, NO_AFFINITY)
            placements[name] = Placement(
                kind,
                None if hint.mask is None else self.ids(hint.mask),
                hint.preferred,
                cpus.get(name),
                tuple([MemoryBlock(block.type, self.ids(block.mask), block.size) for block in memory.get(name, ())]),
                {
                    resource: self.devices.tables[resource].names(allocated)
                    for resource, allocated in devices.get(name, {}).items()
                },
            )
        return placements

    def ids(self, mask: int) -> tuple[int, ...]:
        """Returns the NUMA node ids of a mask."""
        if mask == (1 << len(self.node_ids)) - 1:
            # The kubelet's mask of all nodes includes the nodes that are not modelled.
            return self.all_node_ids
        return tuple([self.node_ids[position] for position in members(mask)])

    def allocatable(self) -> Amounts:
        """Returns node allocatable as the kubelet reports it: milli-CPU, bytes, healthy devices, pods."""
        healthy = {name: table.healthy.bit_count() for name, table in self.devices.tables.items()}
        return {**self.capacity, **healthy}

    def _refused_by_predicates(self, pod: PodView) -> Admission | None:
        if not self.settings.sidecars:
            for container in pod.containers:
                if container.declared == "sidecar":
                    message = f'Init container "{container.name}" may not have a non-default restartPolicy'
                    return self._refused(pod, "predicate", SIDECARS_FORBIDDEN, message)
        missing = self._shortages(pod)
        if not missing:
            return self._refused(pod, "predicate", LACKS_GATE, LACKS_GATE_MESSAGE) if pod.lacks_gate else None
        return self._refused(pod, "predicate", missing[0].reason, missing[0].message, shortages=tuple(missing))

    def _refused(
        self,
        pod: PodView,
        stage: str,
        reason: str,
        message: str,
        *,
        rejection: Rejection | None = None,
        shortages: tuple[Shortage, ...] = (),
    ) -> Admission:
        return Admission(
            uid=pod.uid,
            qos=pod.qos,
            admitted=False,
            stage=stage,
            reason=reason,
            message=message,
            rejection=rejection,
            shortages=shortages,
        )

    def _shortages(self, pod: PodView) -> Sequence[Shortage]:
        has_devices = pod.uid in self.devices.allocations
        devices = {}
        for resource, table in self.devices.tables.items():
            count = table.healthy.bit_count()
            if has_devices:
                # sanitizeNodeAllocatable: a pod with devices is not refused for devices that became unhealthy.
                count = max(count, self.devices.allocated[resource].bit_count())
            devices[resource] = count
        requests = pod.requests
        if not self.knows_all:
            # Without known capacity a resource cannot be insufficient.
            requests = {
                name: amount
                for name, amount in requests.items()
                if name in self.capacity or name in self.devices.tables
            }
        return shortages(requests, self.requested, len(self.active), self.capacity, devices, pod.init_requests)

    def _hold(self, uid: str, name: str, placement: Placement) -> None:
        if self.cpu is not None and placement.cpus is not None:
            self.cpu.hold(uid, name, placement.cpus)
        if self.memory is not None and placement.memory:
            blocks = _blocks if len(placement.memory) <= _MAX_CACHED_BLOCKS else _blocks.__wrapped__
            self.memory.hold(uid, name, blocks(placement.memory, self.node_ids))
        for resource, ids in placement.devices.items():
            self.devices.hold(uid, name, resource, ids)

    def _activate(self, uid: str, active: _Active) -> None:
        self.active[uid] = active
        for name, amount in active.requests.items():
            self.requested[name] = self.requested.get(name, 0) + amount

    def forget(self, uid: str) -> bool:
        """Stops counting the pod; its allocations stay for now. False for an unknown UID."""
        active = self.active.pop(uid, None)
        if active is None:
            return False
        for name, amount in active.requests.items():
            self.requested[name] -= amount
        return True

    def release(self, uid: str) -> None:
        """Releases the pod's allocations (removeStaleState of each manager)."""
        self.devices.release(uid)
        if self.cpu is not None:
            self.cpu.release(uid)
        if self.memory is not None:
            self.memory.release(uid)


@lru_cache(maxsize=_CACHE_SIZE)
def _blocks(blocks: tuple[MemoryBlock, ...], node_ids: tuple[int, ...]) -> tuple[Block, ...]:
    """Returns the blocks by positions instead of node ids; equal allocations share an object."""
    return tuple(
        [
            Block(block.type, mask_of([node_ids.index(node) for node in block.numa if node in node_ids]), block.size)
            for block in blocks
        ]
    )
