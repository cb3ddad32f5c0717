"""What a kubelet has to give and has given, as plain values.

The shape is podresources' (ids of CPUs and devices, blocks of memory), stripped of its traps: every device once with
all its NUMA nodes, and ids that cannot be NUMA nodes dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class MemoryBlock(msgspec.Struct, frozen=True, gc=False, order=True):
    """`size` bytes of `type` ("memory", "hugepages-2Mi") on `nodes` together; a block over several has one size."""

    type: str
    nodes: tuple[int, ...]
    size: int


class Device(msgspec.Struct, frozen=True, gc=False, order=True, cache_hash=True):
    """A device-plugin device; `nodes` is empty if it has no affinity to any."""

    resource: str
    id: str
    nodes: tuple[int, ...]


class Allocatable(msgspec.Struct, frozen=True):
    """All that the kubelet may hand out, whether handed out or not: reserved CPUs and memory are left out,
    and so are unhealthy devices."""

    cpus: frozenset[int] = frozenset()
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[Device, ...] = ()


class Claim(msgspec.Struct, frozen=True, gc=False, order=True):
    """A device of dynamic resource allocation that a container was given."""

    driver: str
    pool: str
    device: str


class ContainerAllocation(msgspec.Struct, frozen=True):
    """What one container holds exclusively."""

    name: str
    cpus: frozenset[int] = frozenset()
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[Device, ...] = ()
    claims: tuple[Claim, ...] = ()


class PodAllocation(msgspec.Struct, frozen=True, cache_hash=True):
    """What one pod holds exclusively. Containers that hold nothing are not listed; `own_cpus` and `own_memory` are of
    the pod level (KEP-5526), and overlap with what its containers hold."""

    namespace: str
    name: str
    containers: tuple[ContainerAllocation, ...] = ()
    own_cpus: frozenset[int] = frozenset()
    own_memory: tuple[MemoryBlock, ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        """Each CPU once, over all containers and the pod level."""
        return self.own_cpus.union(*(container.cpus for container in self.containers))

    @property
    def memory(self) -> tuple[MemoryBlock, ...]:
        """The pod's blocks; a pod-level block has the containers' shares in it."""
        if self.own_memory:
            return self.own_memory
        return tuple(sorted(block for container in self.containers for block in container.memory))

    @property
    def devices(self) -> tuple[Device, ...]:
        """Each device once."""
        return tuple(sorted({device for container in self.containers for device in container.devices}))

    @property
    def holds_cpus_or_memory(self) -> bool:
        """Whether it has CPUs, or memory of some NUMA node, of its own."""
        return bool(self.own_cpus or self.own_memory) or any(
            container.cpus or any(block.nodes for block in container.memory) for container in self.containers
        )


class FreeMemory(msgspec.Struct, frozen=True):
    """The memory manager's own accounting: bytes free by (NUMA node, type); by node the blocks on it and its group."""

    free: Mapping[tuple[int, str], int]
    assignments: Mapping[int, int]
    cells: Mapping[int, tuple[int, ...]]


class Allocations(msgspec.Struct, frozen=True):
    """All that is known of what the kubelet has to give and has given.

    `unlisted` maps pod uids to CPUs that only the CPU manager's state file shows: finished init containers keep them.
    `unlisted_devices` is the same of the device manager's. `free_memory` is None if the memory manager is off or its
    state cannot be read. `admitting` are those of `pods` that may hold more by now than is known of them. `absent` are
    the devices of resources that have none allocatable, and had some not long ago.
    """

    allocatable: Allocatable = Allocatable()
    pods: tuple[PodAllocation, ...] = ()
    unlisted: Mapping[str, frozenset[int]] = {}
    free_memory: FreeMemory | None = None
    unlisted_devices: Mapping[str, tuple[Device, ...]] = {}
    admitting: frozenset[tuple[str, str]] = frozenset()
    absent: tuple[Device, ...] = ()
