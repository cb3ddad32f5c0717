"""What is drawn of one machine, whoever it was read from: plain data, in the order in which it appears.

With precision "counts" nobody knows which CPU or device is whose, only how many are: ids are None then, and the
CPUs of a zone are cores of one thread each.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Precision = Literal["exact", "counts"]
CpuState = Literal["free", "shared", "exclusive", "reserved", "offline"]
ShareKind = Literal["reserved", "hugepages", "held", "shared", "free"]


class Thread(msgspec.Struct, frozen=True, gc=False):
    """One CPU. `free`: in the shared pool, and can be given away; `shared`: in the pool, where it stays.

    `owner` is an index into `Picture.owners`, None if it is not known who has an exclusive CPU.
    """

    id: int | None
    state: CpuState
    owner: int | None = None


class Core(msgspec.Struct, frozen=True):
    """The threads of one core, lowest id first."""

    threads: tuple[Thread, ...]


class Cache(msgspec.Struct, frozen=True):
    """Cores on one L3 cache; `id` None where caches are not told apart."""

    id: int | None
    cores: tuple[Core, ...]


class Socket(msgspec.Struct, frozen=True):
    """What a zone has of one socket; `id` None if that is not known."""

    id: int | None
    caches: tuple[Cache, ...]


class Share(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a zone's memory. `owners` are who holds them: several if only their sum is known, none if nobody knows.

    `hugepages` is memory that was made into hugepages, `shared` what all pods use as the memory manager is off.
    """

    kind: ShareKind
    size: int
    owners: tuple[int, ...] = ()


class Memory(msgspec.Struct, frozen=True):
    """Memory of one type ("memory" or "hugepages-2Mi") of a zone, in shares that add up to `total` bytes."""

    type: str
    total: int
    shares: tuple[Share, ...]

    @property
    def free(self) -> int | None:
        """Bytes that can still be given away, None if nobody keeps count."""
        if any(share.kind == "shared" for share in self.shares):
            return None
        return sum(share.size for share in self.shares if share.kind == "free")


class Device(msgspec.Struct, frozen=True, gc=False):
    """One device; held if `is_held`, by `owner` if that is known."""

    id: str | None
    is_held: bool = False
    owner: int | None = None
    is_healthy: bool = True
    zones: tuple[int, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether a pod can get it."""
        return self.is_healthy and not self.is_held


class Devices(msgspec.Struct, frozen=True):
    """The devices of one resource, of a zone or of none."""

    resource: str
    devices: tuple[Device, ...]


class Zone(msgspec.Struct, frozen=True):
    """A NUMA node under its real id. Every zone has the same memory types, with a total of 0 where it has none.

    `group`: the ids of the zones its memory is joined with, itself too; empty if it is on its own.
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
        """Whether there is nothing on it, as on those that GPUs keep for partitions of their memory."""
        return not (self.sockets or self.devices or any(memory.total for memory in self.memory))


class Block(msgspec.Struct, frozen=True, gc=False):
    """Bytes of one type that a pod holds on these zones together."""

    type: str
    zones: tuple[int, ...]
    size: int


class Owner(msgspec.Struct, frozen=True):
    """A pod that holds something. `name` is "namespace/name", `devices` maps a resource to ids.

    `cpus` are ids; with precision "counts" they only have a number, `cpu_count`, and devices have no ids. `caches` is
    the number of L3 caches that they are on, 0 where that is not told or no zone has several.
    """

    name: str
    cpu_count: int = 0
    cpus: frozenset[int] = frozenset()
    memory: tuple[Block, ...] = ()
    device_counts: dict[str, int] = {}
    devices: dict[str, tuple[str, ...]] = {}
    caches: int = 0


class Picture(msgspec.Struct, frozen=True):
    """One machine.

    `elsewhere` are devices near several zones or none; `distances` has a row per zone, in their order. `others` is the
    number of pods that hold nothing of their own. `bare` are NUMA nodes that are not drawn, as they
    have nothing.
    """

    node: str
    policy: str
    scope: str
    precision: Precision
    zones: tuple[Zone, ...]
    owners: tuple[Owner, ...] = ()
    elsewhere: tuple[Devices, ...] = ()
    distances: tuple[tuple[int, ...], ...] | None = None
    others: int = 0
    age: str = ""
    bare: tuple[int, ...] = ()
