"""The contents of a picture of a machine: plain data, in drawing order.

With precision "counts" only the number of allocated CPUs and devices is known: ids are None, and each CPU of a zone is
a core of its own.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Precision = Literal["exact", "counts"]
CpuState = Literal["free", "shared", "exclusive", "reserved", "offline"]
ShareKind = Literal["reserved", "hugepages", "held", "shared", "free"]


class Thread(msgspec.Struct, frozen=True, gc=False):
    """A CPU. `free`: in the shared pool and available; `shared`: in the pool, and never exclusive.

    `owner` is an index into `Picture.owners`, None if the owner of an exclusive CPU is not known.
    """

    id: int | None
    state: CpuState
    owner: int | None = None


class Core(msgspec.Struct, frozen=True):
    """The threads of one core, lowest id first."""

    threads: tuple[Thread, ...]


class Cache(msgspec.Struct, frozen=True):
    """Cores on an L3 cache; `id` is None if caches are not distinguished."""

    id: int | None
    cores: tuple[Core, ...]


class Socket(msgspec.Struct, frozen=True):
    """The part of a socket in a zone; `id` is None if it is not known."""

    id: int | None
    caches: tuple[Cache, ...]


class Share(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a zone's memory. `owners` has several pods if only their sum is known, none if the pod is not known.

    `hugepages` is memory reserved as hugepages; `shared` is used by all pods, because the memory manager is off.
    """

    kind: ShareKind
    size: int
    owners: tuple[int, ...] = ()


class Memory(msgspec.Struct, frozen=True):
    """Memory of a type ("memory" or "hugepages-2Mi") in a zone, in shares that add up to `total` bytes."""

    type: str
    total: int
    shares: tuple[Share, ...]

    @property
    def free(self) -> int | None:
        """Free bytes, None if no manager accounts for the memory."""
        if any(share.kind == "shared" for share in self.shares):
            return None
        return sum(share.size for share in self.shares if share.kind == "free")


class Device(msgspec.Struct, frozen=True, gc=False):
    """A device; `owner` is None if the pod that has it is not known."""

    id: str | None
    is_held: bool = False
    owner: int | None = None
    is_healthy: bool = True
    zones: tuple[int, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether a pod can get the device."""
        return self.is_healthy and not self.is_held


class Devices(msgspec.Struct, frozen=True):
    """The devices of a resource, in a zone or outside of all zones."""

    resource: str
    devices: tuple[Device, ...]


class Zone(msgspec.Struct, frozen=True):
    """A NUMA node with its Linux id. Every zone has the same memory types, with a total of 0 for a missing type.

    `group` are the ids of the zones in its memory group, itself included; empty without a group.
    """

    id: int
    sockets: tuple[Socket, ...]
    memory: tuple[Memory, ...]
    devices: tuple[Devices, ...] = ()
    group: tuple[int, ...] = ()

    @property
    def threads(self) -> tuple[Thread, ...]:
        """All CPUs of the zone."""
        caches = [cache for socket in self.sockets for cache in socket.caches]
        return tuple([thread for cache in caches for core in cache.cores for thread in core.threads])

    @property
    def is_bare(self) -> bool:
        """Whether it has no resources, such as the NUMA nodes that GPUs keep for memory partitions."""
        return not (self.sockets or self.devices or any(memory.total for memory in self.memory))


class Block(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a memory type that a pod has on these zones together."""

    type: str
    zones: tuple[int, ...]
    size: int


class Owner(msgspec.Struct, frozen=True):
    """A pod with exclusive resources. `name` is "namespace/name"; `devices` has ids by resource.

    `cpus` are ids; with precision "counts" only `cpu_count` is known, and devices have no ids. `caches` is the number
    of L3 caches of the CPUs, 0 if caches are not reported or no zone has several.
    """

    name: str
    cpu_count: int = 0
    cpus: frozenset[int] = frozenset()
    memory: tuple[Block, ...] = ()
    device_counts: dict[str, int] = {}
    devices: dict[str, tuple[str, ...]] = {}
    caches: int = 0


class Picture(msgspec.Struct, frozen=True):
    """A machine.

    `elsewhere` are devices near several zones or near none. `distances` has a row for each zone, in their order.
    `other_pods` is the number of pods without exclusive resources. `bare` are NUMA nodes that are not drawn, because
    they have no resources.
    """

    node: str
    policy: str
    scope: str
    precision: Precision
    zones: tuple[Zone, ...]
    owners: tuple[Owner, ...] = ()
    elsewhere: tuple[Devices, ...] = ()
    distances: tuple[tuple[int, ...], ...] | None = None
    other_pods: int = 0
    age: str = ""
    bare: tuple[int, ...] = ()
