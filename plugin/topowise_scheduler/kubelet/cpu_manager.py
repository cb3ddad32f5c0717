"""The CPU manager: exclusive CPUs for integer requests of Guaranteed pods (pkg/kubelet/cm/cpumanager/policy_static.go).

`CpuPolicy` is the constant part of a node, `CpuManager` the state: the shared pool and the exclusive CPUs. With policy
none there is no `CpuManager`, because policy none returns no hints and allocates nothing (policy_none.go).

CPUs are chosen by takeByTopology (cpu_assignment.go): packed by default (cpu_packing.py), evenly over NUMA nodes with
distribute-cpus-across-numa (cpu_distribution.py).
"""

from __future__ import annotations

from topowise import cpuset
from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.configuration import CpuSettings, KubeletStartError
from topowise_scheduler.kubelet.cpu_distribution import CpuDistribution
from topowise_scheduler.kubelet.cpu_packing import Packing, take_packed
from topowise_scheduler.kubelet.cpu_topology import CpuSet, CpuTopology
from topowise_scheduler.kubelet.hints import EMPTY_POOL, IMPOSSIBLE, SMT_ALIGNMENT, Hint, Hints, ProviderHints, Refused
from topowise_scheduler.kubelet.masks import by_groups, by_size, mask_of, members, reaching, subsets, supersets
from topowise_scheduler.kubelet.pod import ContainerView, PodView
from topowise_scheduler.kubelet.shared_allocations import with_container
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED

EMPTY_POOL_FOR_INIT = "pod rejected, pod has shared init containers but no cpus available for them"
EMPTY_POOL_FOR_SHARED = (
    "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
)


class Assignment:
    """Chooses CPUs on a machine under its policy options."""

    __slots__ = ("_distribution", "_packing", "_topology")

    def __init__(self, topology: CpuTopology, options: CpuSettings, behaviour: Behaviour) -> None:
        self._topology = topology
        self._packing = Packing(
            spread=options.distribute_across_cores,
            core_by_core=behaviour.spread_goes_core_by_core,
            # takeByTopologyNUMADistributed passes preferAlignByUncoreCache=false to the packing.
            by_uncore=options.align_by_uncore and not options.distribute_across_numa,
            rounds_up=behaviour.uncore_rounds_cores_up,
            tells_amounts=behaviour.cpu_refusals_tell_amounts,
        )
        self._distribution: CpuDistribution | None = None
        if options.distribute_across_numa:
            self._distribution = CpuDistribution(
                topology,
                self._packing,
                group=topology.cpus_per_core if options.full_pcpus_only else 1,
                in_one_socket=options.align_by_socket and behaviour.distribution_prefers_one_socket,
                by_hint=behaviour.hint_width_is_least,
                whole_groups=behaviour.remainder_counts_whole_groups,
                copies=behaviour.combinations_are_copied,
            )

    def take(self, available: CpuSet, count: int, width: int = 0) -> CpuSet:
        """Returns `count` of the available CPUs; `width` is the number of NUMA nodes in the hint. Raises Refused."""
        if self._distribution is not None:
            return self._distribution.take(available, count, width)
        return take_packed(self._topology, available, count, self._packing)


class CpuPolicy:
    """Policy static on a machine (NewStaticPolicy). Raises KubeletStartError."""

    __slots__ = ("behaviour", "node_count", "options", "reserved", "reserved_physical", "take", "topology")

    def __init__(
        self,
        topology: CpuTopology,
        options: CpuSettings,
        node_count: int,
        behaviour: Behaviour = NEWEST_RECORDED.behaviour,
    ) -> None:
        self.topology = topology
        self.options = options
        self.node_count = node_count
        self.behaviour = behaviour
        # (available CPUs, count, NUMA nodes in the hint) -> CPUs. Raises Refused.
        self.take = Assignment(topology, options, behaviour).take
        # NewManager rounds the reservation up to whole CPUs; NewStaticPolicy takes them by topology unless
        # reservedSystemCPUs is set.
        count = -(-options.reserved_milli // 1000)
        self.reserved: CpuSet = options.reserved_cpus
        if not self.reserved:
            try:
                self.reserved = self.take(topology.cpus, count)
            except Refused:
                self.reserved = 0
        if self.reserved.bit_count() != count:
            raise KubeletStartError(
                "new static policy error: [cpumanager] unable to reserve the required amount of CPUs "
                f"(size of {cpuset.to_text(members(self.reserved))} did not equal {count})"
            )
        # All siblings of reserved CPUs (reservedPhysicalCPUs): full-pcpus-only must not allocate the other half of such
        # a core.
        self.reserved_physical: CpuSet = 0
        for core in topology.cores:
            if core.cpus & self.reserved:
                self.reserved_physical |= core.cpus


class CpuManager:
    """The state of policy static. `allocations` maps a pod's UID to the CPUs of each container with exclusive CPUs.

    A pod with managed pod-level resources has a `bubble` for all its containers.
    """

    __slots__ = ("_reusable", "allocations", "bubbles", "default", "policy")

    def __init__(self, policy: CpuPolicy) -> None:
        self.policy = policy
        self.default: CpuSet = policy.topology.cpus
        if policy.options.strict_reservation:
            self.default &= ~policy.reserved
        self.allocations: dict[str, dict[str, CpuSet]] = {}
        self.bubbles: dict[str, CpuSet] = {}
        self._reusable: CpuSet = 0

    @property
    def available(self) -> CpuSet:
        """Returns the CPUs that can be allocated exclusively (GetAvailableCPUs)."""
        return self.default & ~self.policy.reserved

    def fork(self) -> CpuManager:
        """Returns an independent copy of the state."""
        copy = CpuManager.__new__(CpuManager)
        copy.policy = self.policy
        copy.default = self.default
        copy.allocations = self.allocations.copy()
        copy.bubbles = self.bubbles.copy()
        copy._reusable = 0
        return copy

    def begin(self) -> None:
        """Starts an admission: nothing can be reused yet (cpusToReuse)."""
        self._reusable = 0

    def hints(self, pod: PodView, container: ContainerView) -> ProviderHints:
        """Returns the hints for a container (GetTopologyHints)."""
        if not container.cpus:
            return {}
        cpus = self.allocations.get(pod.uid, {}).get(container.name)
        if cpus is None:
            return {"cpu": self._fitting(self.available, self._reusable, container.cpus)}
        if cpus.bit_count() != container.cpus:
            # The request changed since the allocation. An empty list of hints refuses the pod, except under
            # best-effort.
            return {"cpu": IMPOSSIBLE}
        return {"cpu": self._fitting(cpus, 0, container.cpus)}

    def pod_hints(self, pod: PodView) -> ProviderHints:
        """Returns the hints for the pod as a whole (GetPodTopologyHints)."""
        if not pod.cpus:
            return {}
        if pod.by_pod_level and _empty_pool(pod):
            return {"cpu": IMPOSSIBLE}
        by_container = self.allocations.get(pod.uid)
        if by_container:
            return {"cpu": self._pod_hints_again(pod, by_container)}
        return {"cpu": self._fitting(self.available, self._reusable, pod.cpus)}

    def allocate(self, pod: PodView, container: ContainerView, hint: Hint) -> None:
        """Allocates for a container. Raises Refused."""
        count = container.cpus
        if not count:
            return
        self._check_smt_alignment(count)
        by_container = self.allocations.get(pod.uid, {})
        cpus = by_container.get(container.name)
        if cpus is None:
            cpus = self._take(count, hint, self._reusable)
            self.allocations[pod.uid] = with_container(by_container, container.name, cpus)
        # Later containers reuse an init container's CPUs; sidecars and app containers keep theirs (updateCPUsToReuse).
        self._reusable = self._reusable | cpus if container.kind == "init" else self._reusable & ~cpus

    def allocate_pod(self, pod: PodView, hint: Hint) -> None:
        """AllocatePod (KEP-5526): allocates a bubble for the pod and partitions it. Raises Refused.

        A restarted kubelet allocates a second bubble for the pod, and never releases the first bubble.
        """
        if not pod.cpus:
            return
        problem = _empty_pool(pod)
        if problem:
            raise Refused(problem, EMPTY_POOL)
        self._check_smt_alignment(pod.cpus)
        bubble = self._take(pod.cpus, hint, 0)
        self.bubbles[pod.uid] = bubble
        sidecars: CpuSet = 0
        by_container: dict[str, CpuSet | None] = {}
        pool = bubble
        for container in pod.containers:
            if container.kind == "app" or (container.kind == "sidecar" and not container.cpus):
                by_container[container.name] = self.policy.take(pool, container.cpus) if container.cpus else None
                pool &= ~(by_container[container.name] or 0)
                continue
            # An init container ends before the app containers start, so it may use all CPUs but the sidecars'.
            runnable = bubble & ~sidecars
            cpus = self.policy.take(runnable, container.cpus) if container.cpus else runnable
            by_container[container.name] = cpus
            if container.kind == "sidecar":
                sidecars |= cpus
                pool &= ~cpus
        # Containers without exclusive CPUs share the rest of the bubble.
        self.allocations[pod.uid] = {name: pool if cpus is None else cpus for name, cpus in by_container.items()}

    def hold(self, uid: str, container: str, cpus: CpuSet) -> None:
        """Books CPUs that a container is known to have."""
        self.allocations[uid] = with_container(self.allocations.get(uid), container, cpus)
        # Exclusive CPUs are never in the shared pool.
        self.default &= ~cpus

    def recount(self) -> None:
        """Rebuilds the shared pool from the allocations."""
        allocated: CpuSet = 0
        for containers in self.allocations.values():
            for cpus in containers.values():
                allocated |= cpus
        self.default = CpuManager(self.policy).default & ~allocated

    def correct(self, available: CpuSet) -> None:
        """Sets the available CPUs that the kubelet reports, regardless of the known allocations."""
        self.default = self.default & self.policy.reserved | available & self.policy.topology.cpus

    def release(self, uid: str) -> None:
        """Releases all CPUs of the pod (RemoveContainer, for each of its containers)."""
        by_container = self.allocations.pop(uid, {})
        if uid not in self.bubbles:
            for cpus in by_container.values():
                self.default |= cpus
        elif by_container:
            # The last container releases the bubble. On a machine with uneven cores the containers may have CPUs
            # outside the bubble, which the kubelet does not release. It never releases a bubble without containers,
            # which remains if a container did not fit the bubble (policy_static.go, AllocatePod step 5).
            self.default |= self.bubbles.pop(uid)

    def exclusive_cpus(self, position: int) -> tuple[int, int]:
        """Returns the exclusively allocated and the allocatable CPUs of a NUMA node, as numbers."""
        policy = self.policy
        allocatable = policy.topology.numa_cpus[position] & ~policy.reserved
        return (allocatable & ~self.default).bit_count(), allocatable.bit_count()

    def _pod_hints_again(self, pod: PodView, by_container: dict[str, CpuSet]) -> Hints:
        """Returns the hints of a pod that is admitted again, after a restart of the kubelet."""
        allocated = 0
        for container in pod.containers:
            cpus = by_container.get(container.name)
            if cpus is None:
                continue
            if cpus.bit_count() != container.cpus:
                # The request changed since the allocation, or the container has the shared CPUs of its pod.
                return IMPOSSIBLE
            allocated |= cpus
        # Every mask with these CPUs, as upstream also gives if the pod has no other CPUs.
        return self._fitting(self.available, self._reusable | allocated, pod.cpus)

    def _fitting(self, available: CpuSet, reusable: CpuSet, requested: int) -> Hints:
        # generateCPUTopologyHints: every mask with enough CPUs fits; masks of the smallest size are preferred.
        topology, count = self.policy.topology, self.policy.node_count
        free = tuple([(cpus & available).bit_count() for cpus in topology.numa_cpus])
        fits = reaching(free, requested - reusable.bit_count()) & subsets(topology.nodes)
        if reusable:
            # The mask must contain all reusable CPUs: upstream skips a mask without the NUMA node of a reusable CPU.
            fits &= supersets(mask_of(numa.id for numa in topology.numas if numa.cpus & reusable), count)
        # minAffinitySize counts all CPUs of a mask, also allocated and reserved CPUs. So a busy machine has no
        # preferred hint.
        size = topology.smallest_mask(requested)
        preferred = fits & by_size(count)[size]
        if self.policy.options.align_by_socket:
            preferred |= self._socket_aligned(fits, size)
        return Hints(fits, preferred)

    def _socket_aligned(self, fits: int, size: int) -> int:
        # Returns the masks on as few sockets as the smallest mask would need (isHintSocketAligned).
        topology = self.policy.topology
        nodes_per_socket = len(topology.numas) // topology.sockets_total if topology.sockets_total else 0
        if not nodes_per_socket:
            return 0
        by_sockets = by_groups(topology.socket_masks, self.policy.node_count)
        # minSockets of isHintSocketAligned, rounded up.
        sockets = -(-size // nodes_per_socket)
        return fits & by_sockets[sockets] if sockets < len(by_sockets) else 0

    def _check_smt_alignment(self, count: int) -> None:
        """full-pcpus-only: a request must be whole cores without any reserved CPU. Raises Refused."""
        # enforceSMTAlignment.
        if not self.policy.options.full_pcpus_only:
            return
        per_core = self.policy.topology.cpus_per_core
        physical = (self.default & ~self.policy.reserved_physical).bit_count()
        too_many = count > physical
        tells_free = physical or self.policy.behaviour.smt_refusal_counts_free_cores
        if count % per_core or (too_many and not tells_free):
            raise Refused(
                f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {per_core}", SMT_ALIGNMENT
            )
        if too_many:
            raise Refused(
                f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {physical}, "
                f"requested CPUs = {count}, CPUs per core = {per_core}",
                SMT_ALIGNMENT,
            )

    def _take(self, count: int, hint: Hint, reusable: CpuSet) -> CpuSet:
        # allocateCPUs: first within the hint, then from all available CPUs.
        pool = self.available | reusable
        taken: CpuSet = 0
        if hint.mask is not None:
            topology = self.policy.topology
            hint_cpus = topology.cpus_in(hint.mask)
            if self.policy.options.align_by_socket:
                # getAlignedCPUs extends the hint to whole sockets.
                hint_cpus = topology.cpus_of_sockets_in(hint_cpus)
            aligned = pool & hint_cpus
            taken = self.policy.take(aligned, min(count, aligned.bit_count()), hint.mask.bit_count())
        taken |= self.policy.take(pool & ~taken, count - taken.bit_count())
        self.default &= ~taken
        return taken


def _empty_pool(pod: PodView) -> str:
    """Returns why a container in the shared pool of the pod would get no CPUs, "" otherwise."""
    # validatePodScopeResources.
    exclusive = 0
    shared = False
    for container in pod.containers:
        if container.kind == "init":
            # An init container in the shared pool needs CPUs that no earlier sidecar has.
            if not container.cpus and exclusive >= pod.cpus:
                return EMPTY_POOL_FOR_INIT
        elif container.cpus:
            exclusive += container.cpus
        else:
            shared = True
    return EMPTY_POOL_FOR_SHARED if shared and exclusive >= pod.cpus else ""
