"""Resources that a kubelet can allocate and has allocated, as plain values.

The structure is that of podresources (ids of CPUs and devices, blocks of memory), normalised: each device appears once
with all its NUMA nodes, and ids that cannot be NUMA nodes are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topowise.attributes.devices import Device as Device
from topowise.checkpoints import MemoryBlock as MemoryBlock


class Allocatable(msgspec.Struct, frozen=True):
    """What the kubelet may allocate, allocated or not: no reserved CPUs and memory, and no unhealthy devices."""

    cpus: frozenset[int] = frozenset()
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[Device, ...] = ()


class Claim(msgspec.Struct, frozen=True, gc=False, order=True):
    """A device of dynamic resource allocation (DRA) that is allocated to a container."""

    driver: str
    pool: str
    device: str


class ContainerAllocation(msgspec.Struct, frozen=True):
    """Exclusive resources of a container."""

    name: str
    cpus: frozenset[int] = frozenset()
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[Device, ...] = ()
    claims: tuple[Claim, ...] = ()


class PodAllocation(msgspec.Struct, frozen=True, cache_hash=True):
    """Exclusive resources of a pod. Containers without any are not listed. `own_cpus` and `own_memory` are pod-level
    resources (KEP-5526), and overlap with those of the containers."""

    namespace: str
    name: str
    containers: tuple[ContainerAllocation, ...] = ()
    own_cpus: frozenset[int] = frozenset()
    own_memory: tuple[MemoryBlock, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def cpus(self) -> frozenset[int]:
        """Each CPU once, over all containers and the pod level."""
        return self.own_cpus.union(*(container.cpus for container in self.containers))

    @property
    def memory(self) -> tuple[MemoryBlock, ...]:
        """The pod's blocks; a pod-level block includes the containers' shares."""
        if self.own_memory:
            return self.own_memory
        return tuple(sorted(block for container in self.containers for block in container.memory))

    @property
    def devices(self) -> tuple[Device, ...]:
        """Each device once."""
        return tuple(sorted({device for container in self.containers for device in container.devices}))

    @property
    def has_resources(self) -> bool:
        """Whether the pod or a container has any exclusive resource."""
        return bool(self.containers or self.own_cpus or self.own_memory)

    @property
    def holds_cpus_or_memory(self) -> bool:
        """Whether the pod holds exclusive CPUs, or memory of a NUMA node."""
        return bool(self.own_cpus or self.own_memory) or any(
            container.cpus or any(block.nodes for block in container.memory) for container in self.containers
        )


class FreeMemory(msgspec.Struct, frozen=True):
    """The memory manager's own accounting: free bytes by (NUMA node, type); by node the number of blocks on it and its
    group of nodes."""

    free: Mapping[tuple[int, str], int]
    assignments: Mapping[int, int]
    cells: Mapping[int, tuple[int, ...]]


class Allocations(msgspec.Struct, frozen=True):
    """`unlisted` maps pod UIDs to CPUs that only the CPU manager's state file shows: the pod keeps the CPUs of its
    finished init containers. `unlisted_devices` is the same for devices. `free_memory` is None without a readable state
    of the memory manager, and `free_cpus` without a readable state of the CPU manager: a CPU can be free although a pod
    has it. The allocations of `admitting` pods may be incomplete. `absent` are devices of resources that had
    allocatable devices not long ago and have none now."""

    allocatable: Allocatable = Allocatable()
    pods: tuple[PodAllocation, ...] = ()
    unlisted: Mapping[str, frozenset[int]] = {}
    free_memory: FreeMemory | None = None
    unlisted_devices: Mapping[str, tuple[Device, ...]] = {}
    admitting: frozenset[tuple[str, str]] = frozenset()
    absent: tuple[Device, ...] = ()
    free_cpus: frozenset[int] | None = None
