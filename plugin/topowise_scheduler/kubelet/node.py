"""One kubelet: its managers, the pods it runs, and what it does with the next one (pkg/kubelet/allocation, lifecycle).

An admission is hints, merge and allocation container by container (or once for the pod, scopes.py), then the
predicates. The first refusal wins, and what the pod had been given by then is released the way the kubelet releases a
dead pod's resources.

A `Kubelet` is cheap to `fork`: machine, topology and policies are shared, the state of a pod is never changed in
place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from topowise import pods
from topowise.errors import ConfigError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pods import Amounts, Kind
from topowise_scheduler.kubelet import scopes
from topowise_scheduler.kubelet.admission import Admission, MemoryBlock, Placement, Rejection
from topowise_scheduler.kubelet.configuration import Evidence, Settings, settle
from topowise_scheduler.kubelet.cpu_manager import CpuManager, CpuPolicy
from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology
from topowise_scheduler.kubelet.device_manager import DeviceManager
from topowise_scheduler.kubelet.device_table import DeviceSet
from topowise_scheduler.kubelet.hints import NO_AFFINITY, Hint
from topowise_scheduler.kubelet.machine import Device, Machine
from topowise_scheduler.kubelet.masks import MAX_NODES, mask_of, members
from topowise_scheduler.kubelet.memory_manager import Block, MemoryManager
from topowise_scheduler.kubelet.memory_tables import MemoryPolicy
from topowise_scheduler.kubelet.pod import PodView, finished, view
from topowise_scheduler.kubelet.predicates import SIDECARS_FORBIDDEN, Shortage, node_allocatable, shortages
from topowise_scheduler.kubelet.scopes import Observer, Rejected
from topowise_scheduler.kubelet.shared_allocations import single
from topowise_scheduler.kubelet.topology_manager import TopologyManager
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion

_NO_HINTS: Mapping[str, Hint] = {}
# Types are those the memory manager has, and most containers hold one or two.
_MANY_HELD: Final = 8192
_FEW_BLOCKS: Final = 4


class _Active(msgspec.Struct, frozen=True, gc=False):
    """A pod the kubelet runs; `pod` is None for one that was only reported to hold something, `reported`."""

    requests: Mapping[str, int]
    pod: PodView | None
    hints: Mapping[str, Hint]
    reported: Mapping[str, Placement] | None = None


class Kubelet:
    """The model of one node.

    Raises KubeletStartError if the kubelet would not start, ConfigError for too many NUMA nodes (masks.MAX_NODES),
    and ParseError for a malformed quantity. `Settings` instead of a configuration are taken as they are: for a node of
    which only a part is known, and no configuration that a kubelet starts with.

    `version` is the kubelet's (versions.version_of), `evidence` what is known of it besides its configuration; both
    count for a configuration alone, `Settings` have a behaviour already.

    `node_ids` are the NUMA nodes by position in a mask, `all_node_ids` those that were left out as well
    (Machine.modelled).

    `predicates` False leaves the predicates out; `integer_scores` is the arithmetic of KEP-6007 (most_allocated.py).
    `allocatable` is what the predicates compare with, instead of what follows from machine and settings; a resource
    that is neither in it nor a device's is then unknown, and not checked.
    """

    __slots__ = (
        "__weakref__",
        "_fixed",
        "_knows_all",
        "_used",
        "active",
        "all_node_ids",
        "cpu",
        "devices",
        "integer_scores",
        "memory",
        "node_ids",
        "predicates",
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
        integer_scores: bool = True,
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
        self.integer_scores = integer_scores
        self.topology = CpuTopology(modelled)
        self.topology_manager = TopologyManager(self.settings.topology, nodes, machine.nodes())
        self.devices = DeviceManager(modelled, behaviour)
        self.cpu: CpuManager | None = None
        if self.settings.cpu is not None:
            self.cpu = CpuManager(CpuPolicy(self.topology, self.settings.cpu, len(nodes), behaviour))
        self.memory: MemoryManager | None = None
        if self.settings.reserved_memory is not None:
            positions = {node_id: place for place, node_id in enumerate(self.all_node_ids)}
            reserved = [self.settings.reserved_memory[positions[node_id]] for node_id in self.node_ids]
            self.memory = MemoryManager(MemoryPolicy(nodes, reserved, behaviour, self.all_node_ids))
        self.active: dict[str, _Active] = {}
        self._used: Amounts = {}
        self._knows_all = allocatable is None
        if allocatable is None:
            self._fixed = node_allocatable(machine, self.settings)
        else:
            self._fixed = {"pods": self.settings.max_pods, **allocatable}

    def fork(self) -> Kubelet:
        """An independent copy: pods can be tried on it without a trace here."""
        copy = Kubelet.__new__(Kubelet)
        copy.settings = self.settings
        copy.all_node_ids = self.all_node_ids
        copy.node_ids = self.node_ids
        copy.predicates = self.predicates
        copy.integer_scores = self.integer_scores
        copy.topology = self.topology
        copy.topology_manager = self.topology_manager
        copy.devices = self.devices.fork()
        copy.cpu = None if self.cpu is None else self.cpu.fork()
        copy.memory = None if self.memory is None else self.memory.fork()
        copy.active = self.active.copy()
        copy._used = self._used.copy()
        copy._fixed = self._fixed
        copy._knows_all = self._knows_all
        return copy

    def emptied(self) -> Kubelet:
        """The same node with no pods on it."""
        copy = self.fork()
        copy.devices.allocated = dict.fromkeys(copy.devices.tables, 0)
        copy.devices.allocations = {}
        copy.cpu = None if copy.cpu is None else CpuManager(copy.cpu.policy)
        copy.memory = None if copy.memory is None else MemoryManager(copy.memory.policy)
        copy.active = {}
        copy._used = {}
        return copy

    @property
    def knows_all(self) -> bool:
        """Whether a resource that it does not know is one that the node does not have."""
        return self._knows_all

    @property
    def capacity(self) -> Mapping[str, int]:
        """What the predicates compare requests with, devices left out; the same object in every fork."""
        return self._fixed

    @property
    def requested(self) -> Mapping[str, int]:
        """The sum of the effective requests of the active pods; 0 of a resource that nobody requests any more."""
        return self._used

    def admit(self, pod: pods.Pod) -> Admission:
        """Decide a pod and, if it is admitted, book it. Raises ParseError for a malformed quantity."""
        needs = pods.needs(pod, pod_level_resources=self.settings.pod_level_resources)
        return self.admit_view(self.view(pod.metadata.uid, needs))

    def view(self, uid: str, needs: pods.Needs) -> PodView:
        """The pod as this kubelet sees it; the same for all nodes of one behaviour with the same feature gates."""
        return view(
            uid,
            needs,
            pod_level_resource_managers=self.settings.pod_level_resource_managers,
            behaviour=self.settings.behaviour,
        )

    def admit_view(self, seen: PodView, observe: Observer | None = None) -> Admission:
        """Decide a pod whose view is known; `observe` is called for every merge on the way.

        A pod that is active already is admitted once more, as after a restart of the kubelet: it keeps what it holds.
        """
        self._forget(seen.uid)
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
            # As most pods have one container, and all kinds of hints are few.
            hints = single(*next(iter(hints.items())))
        self._activate(seen.uid, _Active(seen.requests, seen, hints))
        return Admission(uid=seen.uid, qos=seen.qos, admitted=True, placements=self.placements(seen.uid))

    def expect(self, seen: PodView) -> Admission:
        """The same for a pod that is only expected, and not active: one that is refused has never been here. (A kubelet
        takes back what it has given a pod that it refuses in the end, but its memory groups stay as the pod has made
        them, and so do CPUs that it had from others.)"""
        before = self.fork() if self._may_keep_traces else self
        admission = self.admit_view(seen)
        if not admission.admitted:
            self.devices, self.cpu, self.memory = before.devices, before.cpu, before.memory
            self.active, self._used = before.active, before._used
        return admission

    @property
    def _may_keep_traces(self) -> bool:
        has_groups = self.memory is not None and self.settings.topology.policy != "single-numa-node"
        return has_groups or (self.cpu is not None and not self.cpu.policy.topology.is_even)

    def start(self, uid: str, containers: Iterable[str] | None = None) -> bool:
        """Containers (None: all) start: finished init containers free their memory. False for an unknown uid."""
        active = self.active.get(uid)
        if active is None:
            return False
        if active.pod is None:
            return True
        done = finished(active.pod, None if containers is None else frozenset(containers))
        if done:
            if self.memory is not None:
                self.memory.remove(uid, done)
            kept = {container.name for container in active.pod.containers if container.declared != "init"}
            self.active[uid] = msgspec.structs.replace(
                active, hints={name: hint for name, hint in active.hints.items() if name in kept or name not in done}
            )
        return True

    def remove(self, uid: str) -> bool:
        """A pod has ended: all it holds is free at the next admission. False for an unknown uid."""
        if uid not in self.active:
            return False
        self._forget(uid)
        self._release(uid)
        return True

    def report_devices(self, resource: str, devices: Iterable[Device]) -> None:
        """A device plugin reports its list, for the first time or anew.

        Raises ConfigError for a device near a NUMA node that had nothing and was left out (Machine.modelled).
        """
        devices = tuple(devices)
        left_out = {*self.all_node_ids} - {*self.node_ids}
        if left_out and any(left_out.intersection(device.numa or ()) for device in devices):
            raise ConfigError("devices", f"{resource} is now near NUMA nodes that had none, and that are not modelled")
        self.devices.report(resource, self.devices.table(devices))

    def hold(self, uid: str, requests: Mapping[str, int], placements: Mapping[str, Placement]) -> None:
        """Book a pod that runs already, as the node reports it, without deciding anything.

        `requests` are its effective requests (topowise.pods.needs). CPUs are taken out of the shared pool, memory
        joins nodes to groups just as an allocation does.
        """
        self.remove(uid)
        for name, placement in placements.items():
            self._hold(uid, name, placement)
        self._activate(uid, _Active(requests, None, _NO_HINTS, placements))

    def hold_bare(self, seen: PodView) -> None:
        """Book a pod to which no manager gives anything: it counts in the sums of requests alone."""
        self._activate(seen.uid, _Active(seen.requests, seen, _NO_HINTS))

    def hold_exactly(
        self,
        holders: Mapping[str, tuple[Mapping[str, int], Mapping[str, Placement]]],
        beside: Collection[str] = (),
        among: Collection[str] | None = None,
    ) -> None:
        """Let these pods by uid be all there are (`among` some), each held as by `hold`; what is held like that already
        stays, and so do those `beside`, as they are.

        Memory tables and CPUs that nobody holds depend on how they came about, and are to be corrected afterwards.
        """
        for uid in list(self.active if among is None else among):
            if uid not in holders and uid not in beside:
                self.remove(uid)
        for uid, (requests, placements) in holders.items():
            active = self.active.get(uid)
            if active is None or active.reported is not placements or active.requests != requests:
                self.hold(uid, requests, placements)
        # What two pods are said to hold is not free once the first of them has gone.
        self.devices.recount()
        if self.cpu is not None:
            self.cpu.recount()

    def allocates_whole(self, pod: PodView) -> bool:
        """Whether a pod is given CPUs and memory as a whole, of which its containers get parts (AllocatePod)."""
        topology = self.settings.topology
        return pod.by_pod_level and topology.scope == "pod" and topology.policy != "none"

    @property
    def is_within(self) -> bool:
        """Whether what the active pods request is there: then predicates refuse none of them, whoever came first."""
        used, capacity = self._used, self._fixed
        return len(self.active) <= capacity["pods"] and all(
            amount <= capacity[name] for name, amount in used.items() if name in capacity
        )

    def reserve(
        self, position: int, cpus: CpuSet, memory: Amounts | None = None, devices: Mapping[str, DeviceSet] | None = None
    ) -> None:
        """Take CPUs, devices, and memory of the NUMA node at a position away for no pod; the predicates do not see it,
        and it cannot be given back."""
        if self.cpu is not None:
            self.cpu.default &= ~cpus
        for name, size in (memory or {}).items():
            assert self.memory is not None
            self.memory.tables.take(name, 1 << position, size)
        for resource, taken in (devices or {}).items():
            self.devices.allocated[resource] |= taken

    def placements(self, uid: str) -> dict[str, Placement]:
        """What each container of an active pod holds now."""
        active = self.active[uid]
        cpus = self.cpu.allocations.get(uid, {}) if self.cpu is not None else {}
        memory = self.memory.allocations.get(uid, {}) if self.memory is not None else {}
        devices = self.devices.allocations.get(uid, {})
        kinds: dict[str, Kind] = (
            dict.fromkeys((*cpus, *memory, *devices), "app")
            if active.pod is None
            else {container.name: container.declared for container in active.pod.containers}
        )
        found = {}
        for name, kind in kinds.items():
            hint = active.hints.get(name, NO_AFFINITY)
            found[name] = Placement(
                kind,
                None if hint.mask is None else self.ids(hint.mask),
                hint.preferred,
                cpus.get(name),
                tuple([MemoryBlock(one.type, self.ids(one.mask), one.size) for one in memory.get(name, ())]),
                {
                    resource: self.devices.tables[resource].names(held)
                    for resource, held in devices.get(name, {}).items()
                },
            )
        return found

    def ids(self, mask: int) -> tuple[int, ...]:
        """The NUMA node ids of a mask."""
        if mask == (1 << len(self.node_ids)) - 1:
            return self.all_node_ids
        return tuple([self.node_ids[position] for position in members(mask)])

    def allocatable(self) -> Amounts:
        """Node allocatable as the kubelet reports it: milli-CPU, bytes, healthy devices, pods."""
        healthy = {name: table.healthy.bit_count() for name, table in self.devices.tables.items()}
        return {**self._fixed, **healthy}

    def _refused_by_predicates(self, pod: PodView) -> Admission | None:
        if not self.settings.sidecars:
            for container in pod.containers:
                if container.declared == "sidecar":
                    message = f'Init container "{container.name}" may not have a non-default restartPolicy'
                    return self._refused(pod, "predicate", SIDECARS_FORBIDDEN, message)
        missing = self._shortages(pod)
        if not missing:
            return None
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
        """A refusal; whatever the pod had been given by then is free again."""
        self._release(pod.uid)
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
        held = pod.uid in self.devices.allocations
        devices = {}
        for resource, table in self.devices.tables.items():
            count = table.healthy.bit_count()
            if held:
                # A pod that got devices is not refused for those that turned unhealthy (sanitizeNodeAllocatable).
                count = max(count, self.devices.allocated[resource].bit_count())
            devices[resource] = count
        requests = pod.requests
        if not self._knows_all:
            requests = {
                name: amount for name, amount in requests.items() if name in self._fixed or name in self.devices.tables
            }
        return shortages(requests, self._used, len(self.active), self._fixed, devices, pod.init_requests)

    def _hold(self, uid: str, name: str, placement: Placement) -> None:
        if self.cpu is not None and placement.cpus is not None:
            self.cpu.hold(uid, name, placement.cpus)
        if self.memory is not None and placement.memory:
            blocks = _blocks if len(placement.memory) <= _FEW_BLOCKS else _blocks.__wrapped__
            self.memory.hold(uid, name, blocks(placement.memory, self.node_ids))
        for resource, ids in placement.devices.items():
            self.devices.hold(uid, name, resource, ids)

    def _activate(self, uid: str, active: _Active) -> None:
        self.active[uid] = active
        for name, amount in active.requests.items():
            self._used[name] = self._used.get(name, 0) + amount

    def _forget(self, uid: str) -> None:
        """The pod is no longer counted; what the managers gave it stays for now."""
        active = self.active.pop(uid, None)
        if active is not None:
            for name, amount in active.requests.items():
                self._used[name] -= amount

    def _release(self, uid: str) -> None:
        """Remove stale state (removeStaleState of each manager)."""
        self.devices.release(uid)
        if self.cpu is not None:
            self.cpu.release(uid)
        if self.memory is not None:
            self.memory.release(uid)


@lru_cache(maxsize=_MANY_HELD)
def _blocks(held: tuple[MemoryBlock, ...], node_ids: tuple[int, ...]) -> tuple[Block, ...]:
    """What is held by ids of nodes, by their positions; once for all containers that hold the same."""
    return tuple(
        [
            Block(one.type, mask_of([node_ids.index(node) for node in one.numa if node in node_ids]), one.size)
            for one in held
        ]
    )
