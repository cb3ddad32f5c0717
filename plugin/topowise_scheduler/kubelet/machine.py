"""The machine of a kubelet, as cadvisor and the device plugins describe it: plain data, no behaviour.

Ids are the kernel's and may have gaps. Everywhere else in this package a NUMA node is its *position* in the ascending
list of ids. So a set of nodes is a small integer (masks.py), and positions keep the order of the ids.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from topowise.pods import HUGEPAGES

# Ids become bit numbers; a larger id is damage.
Id = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Amount = Annotated[int, msgspec.Meta(ge=0)]

# NUMA nodes that a kubelet accepts without max-allowable-numa-nodes. Up to here all masks are cheap.
WIDE: Final = 8


class Core(msgspec.Struct, frozen=True, gc=False):
    """A physical core; `threads` are CPU ids, `uncore` is the id of its L3 cache, None if the kernel reports none."""

    socket: Id
    threads: Annotated[tuple[Id, ...], msgspec.Meta(min_length=1)]
    uncore: Id | None = None


class NumaNode(msgspec.Struct, frozen=True, gc=False):
    """A NUMA node. `memory` is in bytes, `hugepages` maps a page size in KiB to a number of pages.

    `distances` is the row of the SLIT as cadvisor reads it, None if unreadable. Linux prints an entry for each online
    NUMA node, by ascending id, and none for a missing id (topology_manager.py). `read_latency` and `read_bandwidth` are
    measured from the CPUs of the nodes `initiators` (ids), in any unit, 0 if unknown; the kubelet does not read them.
    """

    id: Id
    memory: Amount
    cores: tuple[Core, ...] = ()
    hugepages: dict[int, Amount] = {}
    distances: tuple[int, ...] | None = None
    initiators: tuple[Id, ...] = ()
    read_latency: Amount = 0
    read_bandwidth: Amount = 0


class Device(msgspec.Struct, frozen=True, gc=False):
    """A device of a plugin. `numa` None (no topology) and empty (a topology without nodes) differ for the kubelet."""

    id: str
    numa: tuple[Id, ...] | None = None
    healthy: bool = True


class DevicePlugin(msgspec.Struct, frozen=True, gc=False):
    """The devices of a resource. `preferred`: the ids that GetPreferredAllocation returns, "" without it."""

    resource: str
    devices: tuple[Device, ...] = ()
    preferred: Literal["", "first", "last"] = ""


class Machine(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A whole machine. A field that is None is derived from the nodes; an unknown `ephemeral_storage` is not checked.

    Raises ValueError (ValidationError when decoded) for a contradictory description.
    """

    numa: Annotated[tuple[NumaNode, ...], msgspec.Meta(min_length=1)]
    devices: tuple[DevicePlugin, ...] = ()
    num_sockets: Amount | None = None
    memory_capacity: Amount | None = None
    ephemeral_storage: Amount | None = None

    def __post_init__(self) -> None:
        if not self.numa:
            raise ValueError("a machine has at least one NUMA node")
        if len({node.id for node in self.numa}) < len(self.numa):
            raise ValueError("two NUMA nodes have the same id")
        threads = [thread for node in self.numa for core in node.cores for thread in core.threads]
        if len(set(threads)) < len(threads):
            raise ValueError("a CPU is part of two cores")
        for node in self.numa:
            if node.distances and len(node.distances) < len(self.numa):
                raise ValueError(
                    f"node {node.id} has {len(node.distances)} distances, expected one for each of {len(self.numa)}"
                )

    def nodes(self) -> tuple[NumaNode, ...]:
        """Returns the NUMA nodes by ascending id: the order that gives a node its position in a mask."""
        return tuple(sorted(self.numa, key=lambda node: node.id))

    def modelled(self, *, with_memory: bool) -> Machine:
        """Returns the machine with the NUMA nodes that affect decisions.

        GPUs add NUMA nodes for their memory, 32 on some machines, and every node doubles the number of masks. A bare
        node has no CPUs and no devices, and no memory if memory is managed. It makes no mask fit that does not fit
        without it. Beyond `WIDE` nodes a single bare node is enough: it keeps the mask of all nodes distinct.
        """
        nodes = self.nodes()
        if len(nodes) <= WIDE:
            return self
        near = {node for plugin in self.devices for device in plugin.devices for node in device.numa or ()}
        bare = [
            node.id
            for node in nodes
            if not node.cores
            and node.id not in near
            and not (with_memory and (node.memory or any(node.hugepages.values())))
        ]
        # A bare node stays in any case.
        kept = max(1, WIDE - (len(nodes) - len(bare)))
        dropped = frozenset(bare[kept:])
        if not dropped:
            return self
        return Machine(
            numa=tuple(node for node in nodes if node.id not in dropped),
            devices=self.devices,
            num_sockets=self.sockets(),
            memory_capacity=self.memory(),
            ephemeral_storage=self.ephemeral_storage,
        )

    def sockets(self) -> int:
        """Returns the number of sockets that cadvisor reports."""
        if self.num_sockets is not None:
            return self.num_sockets
        return len({core.socket for node in self.numa for core in node.cores})

    def memory(self) -> int:
        """Returns the memory capacity in bytes."""
        return sum(node.memory for node in self.numa) if self.memory_capacity is None else self.memory_capacity

    def cpus(self) -> int:
        """Returns the number of CPUs."""
        return sum(len(core.threads) for node in self.numa for core in node.cores)

    def hugepages(self) -> dict[str, int]:
        """Returns the bytes of hugepages by resource name, over all nodes."""
        total: dict[str, int] = {}
        for node in self.numa:
            for size_kib, pages in node.hugepages.items():
                name = hugepages_resource(size_kib)
                total[name] = total.get(name, 0) + pages * size_kib * 1024
        return total


def is_memory(resource: str) -> bool:
    """Returns whether the memory manager manages the resource."""
    return resource == "memory" or resource.startswith(HUGEPAGES)


def hugepages_resource(size_kib: int) -> str:
    """Returns the resource name of a page size: 2048 -> "hugepages-2Mi" (HugePageResourceName)."""
    for unit, shift in (("Gi", 20), ("Mi", 10)):
        if size_kib % (1 << shift) == 0:
            return f"hugepages-{size_kib >> shift}{unit}"
    return f"hugepages-{size_kib}Ki"
