"""What a kubelet has given out, in the shape its podresources socket and its state files tell it."""

from __future__ import annotations

from typing import Any

import msgspec


class Block(msgspec.Struct, frozen=True):
    """`size` bytes on NUMA nodes `numa` together."""

    type: str
    numa: tuple[int, ...]
    size: int


class ContainerHoldings(msgspec.Struct, frozen=True):
    """`devices` maps a resource to device ids; `claims` are (driver, pool, device) of resource claims."""

    name: str
    kind: str
    cpus: frozenset[int] = frozenset()
    memory: tuple[Block, ...] = ()
    devices: dict[str, tuple[str, ...]] = {}
    claims: tuple[tuple[str, str, str], ...] = ()


class PodHoldings(msgspec.Struct, frozen=True):
    """`cpus` and `memory` are the pod's own, of which its containers have parts (gate PodLevelResourceManagers)."""

    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerHoldings, ...] = ()
    cpus: frozenset[int] = frozenset()
    memory: tuple[Block, ...] = ()


class NodeHoldings(msgspec.Struct, frozen=True):
    """`shared_cpus` is the default cpuset; `device_nodes` maps (resource, id) to NUMA nodes, None without topology.

    `unhealthy` are devices that cannot be given out: a plugin says so, or has not registered (yet).
    """

    allocatable_cpus: frozenset[int]
    allocatable_memory: tuple[Block, ...]
    shared_cpus: frozenset[int]
    device_nodes: dict[tuple[str, str], tuple[int, ...] | None]
    pods: tuple[PodHoldings, ...] = ()
    memory_tables: dict[str, Any] = {}
    """`machineState` of memory_manager_state; empty if the memory manager is off."""
    unhealthy: frozenset[tuple[str, str]] = frozenset()
