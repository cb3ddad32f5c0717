"""What a kubelet has to give and has given, as plain values.

The shape is podresources' (ids of CPUs and devices, blocks of memory), stripped of its traps: every device once with
all its NUMA nodes, and ids that cannot be NUMA nodes dropped.
"""

from __future__ import annotations

import msgspec


class MemoryBlock(msgspec.Struct, frozen=True, gc=False, order=True):
    """`size` bytes of `type` ("memory", "hugepages-2Mi") on `nodes` together; a block over several has one size."""

    type: str
    nodes: tuple[int, ...]
    size: int


class Device(msgspec.Struct, frozen=True, gc=False, order=True):
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


class PodAllocation(msgspec.Struct, frozen=True):
    """What one pod holds exclusively, over all its containers and the pod level, each id once."""

    namespace: str
    name: str
    cpus: frozenset[int] = frozenset()
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[Device, ...] = ()

    @property
    def is_exclusive(self) -> bool:
        """Whether it holds anything that belongs to a NUMA node (RTE's rule for the fingerprint method)."""
        return bool(self.cpus) or any(block.nodes for block in self.memory) or any(one.nodes for one in self.devices)
