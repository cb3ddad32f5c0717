"""The order in which a kubelet asks its managers (scope_none.go, scope_container.go, scope_pod.go).

Hints of device, CPU and memory manager, in this order, then the merge, then the allocation in the same order. If a
manager refuses, earlier allocations stay: node.py releases them, as the kubelet does.

KEP-6007, a draft that is in no release of Kubernetes: of two equally preferred nodes, take the fuller node. Its option
was prefer-most-allocated-numa-node and became numa-allocation-strategy; the model accepts both names. Policy
single-numa-node takes the lowest node that fits. So small pods spread over nodes as pods come and go, and a large pod
finds no empty node. With the option, CPU and memory manager each vote for the node with the higher share of exclusive
allocations. The option does not change which pods fit now, only which pods fit later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import hints as reasons
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.hints import NO_AFFINITY, Hint, Hints, Refused, Rejection
from topowise_scheduler.kubelet.memory_manager import MemoryManager
from topowise_scheduler.kubelet.pod import ContainerView, PodView

if TYPE_CHECKING:
    from topowise_scheduler.kubelet.node import Kubelet

_NOT_ALIGNED: Final = "Resources cannot be allocated with Topology locality"
_NOT_ALIGNED_POD: Final = "Pod Scope pod with pod-level resources failed admission "


class MostAllocated:
    """The combined vote over the current state of the managers; a manager with policy none is None.

    The KEP scores "as MostAllocated", which the scheduler computes by integer division: shares within one percent may
    be equal.
    """

    __slots__ = ("cpu", "memory")

    def __init__(self, cpu: CpuManager | None, memory: MemoryManager | None) -> None:
        self.cpu = cpu
        self.memory = memory

    def __call__(self, current: int, candidate: int) -> int:
        """Returns the node (by position) to keep. Without a clear vote, the lower node stays."""
        votes = (self._vote_cpu(current, candidate), self._vote_memory(current, candidate))
        decided = {vote for vote in votes if vote is not None}
        return decided.pop() if len(decided) == 1 else min(current, candidate)

    def _vote_cpu(self, current: int, candidate: int) -> int | None:
        if self.cpu is None:
            return None
        return self._higher(current, self.cpu.exclusive_cpus(current), candidate, self.cpu.exclusive_cpus(candidate))

    def _vote_memory(self, current: int, candidate: int) -> int | None:
        if self.memory is None:
            return None
        tables = self.memory.tables
        shares = [
            (tables.reserved("memory", position), self.memory.policy.allocatable["memory"][position])
            for position in (current, candidate)
        ]
        return self._higher(current, shares[0], candidate, shares[1])

    def _higher(self, node: int, share: tuple[int, int], other_node: int, other_share: tuple[int, int]) -> int | None:
        """Returns the node with the higher share, each (allocated, allocatable); None for equal shares."""
        left, right = _score(*share), _score(*other_share)
        if left == right:
            return None
        return node if left > right else other_node


def _score(allocated: int, allocatable: int) -> int:
    # mostRequestedScore of the scheduler: 0 to 100, rounded down, 0 without allocatable amounts.
    return min(100, allocated * 100 // allocatable) if allocatable > 0 else 0


Observer = Callable[["Kubelet", ContainerView | None, Sequence[tuple[str, Hints]], Hint], None]
"""Called for each merge with the node's current state, the container (None: the whole pod), all hints, the result."""


class Rejected(Exception):  # noqa: N818 - a decision, not an error
    """The pod is refused: the kubelet's reason and message, and the refusing manager."""

    def __init__(self, reason: str, message: str, rejection: Rejection) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.rejection = rejection


def allocate(node: Kubelet, pod: PodView, observe: Observer | None) -> dict[str, Hint]:
    """Allocates for every container, and returns their hints. Raises Rejected."""
    settings = node.settings.topology
    if settings.policy == "none":
        hints = {}
        for container in pod.containers:
            _allocate_container(node, pod, container, NO_AFFINITY)
            hints[container.name] = NO_AFFINITY
        return hints
    if settings.scope == "pod":
        return _allocate_pod(node, pod, observe)
    hints = {}
    for container in pod.containers:
        # Container scope: each decision sees the allocations of the earlier containers.
        hint = _decide(node, pod, container, observe)
        hints[container.name] = hint
        _allocate_container(node, pod, container, hint)
    return hints


def _allocate_pod(node: Kubelet, pod: PodView, observe: Observer | None) -> dict[str, Hint]:
    hint = _decide(node, pod, None, observe)
    if not pod.by_pod_level:
        for container in pod.containers:
            _allocate_container(node, pod, container, hint)
    else:
        # AllocatePod of the device manager does nothing, so devices are not allocated here.
        provider = ""
        try:
            if node.cpu is not None:
                provider = "cpu"
                node.cpu.allocate_pod(pod, hint)
            if node.memory is not None:
                provider = "memory"
                node.memory.allocate_pod(pod, hint)
        except Refused as refused:
            raise Rejected(refused.reason, refused.message, Rejection("", provider, refused.error)) from refused
    return {container.name: hint for container in pod.containers}


def _decide(node: Kubelet, pod: PodView, container: ContainerView | None, observe: Observer | None) -> Hint:
    groups: list[tuple[str, Hints]] = []
    name = "" if container is None else container.name
    vote = None
    if node.settings.topology.prefer_most_allocated:
        vote = MostAllocated(node.cpu, node.memory)
    # A provider raises only where the kubelet would panic.
    refusing = ""
    try:
        for name_of_provider, provider in (("device", node.devices), ("cpu", node.cpu), ("memory", node.memory)):
            if provider is not None:
                refusing = name_of_provider
                hints_by_resource = provider.pod_hints(pod) if container is None else provider.hints(pod, container)
                groups += hints_by_resource.items()
        refusing = "topology"
        # Their number, because the kubelet merges device resources in random order (Go maps) and before the other
        # resources.
        devices = sum(resource == MARKER or resource in node.devices.tables for resource, _ in groups)
        hint, admitted = node.topology_manager.decide([hints for _, hints in groups], vote, devices)
    except Refused as refused:
        raise Rejected(refused.reason, refused.message, Rejection(name, refusing, refused.error)) from refused
    if observe is not None:
        observe(node, container, groups, hint)
    if not admitted:
        raise Rejected(reasons.TOPOLOGY_AFFINITY, _not_aligned(node, pod), Rejection(name, merged=hint))
    return hint


def _not_aligned(node: Kubelet, pod: PodView) -> str:
    if not pod.by_pod_level:
        return _NOT_ALIGNED
    if node.settings.topology.scope == "pod":
        return _NOT_ALIGNED_POD + "under pod-scope topology manager"
    return _NOT_ALIGNED_POD + "with a container-level topology manager"


def _allocate_container(node: Kubelet, pod: PodView, container: ContainerView, hint: Hint) -> None:
    provider = "device"
    try:
        node.devices.allocate(pod, container, hint)
        if node.cpu is not None:
            provider = "cpu"
            node.cpu.allocate(pod, container, hint)
        if node.memory is not None:
            provider = "memory"
            node.memory.allocate(pod, container, hint)
    except Refused as refused:
        rejection = Rejection(container.name, provider, refused.error)
        raise Rejected(refused.reason, refused.message, rejection) from refused
