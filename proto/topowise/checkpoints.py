"""Decodes the state files of the kubelet's CPU manager and memory manager, in the formats of all versions.

| file | form | written by |
|---|---|---|
| cpu_manager_state | V1, by container id | up to 1.17 |
| | V2 | up to 1.36 |
| | V3, V2 with `podEntries` | 1.36 with PodLevelResourceManagers |
| | V4, V2 with `data` | from 1.37 on (kubernetes#139102) |
| memory_manager_state | V1 | up to 1.36 |
| | V2, V1 with `podEntries` | 1.36 with PodLevelResourceManagers |
| | V3, V1 with `data` | from 1.37 on (kubernetes#139626) |

`data` is JSON text with the whole content, and takes precedence. The fields beside it are for older kubelets, without
pod-level resources. No field names the format: it is recognised by its fields, and unknown fields of a newer kubelet
are ignored. Upstream: cm/cpumanager/state and cm/memorymanager/state, checkpoint.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from topowise import cpuset, documents
from topowise.errors import ParseError

# The same CPU appears in init containers and an app container of a pod, and in dead pods.
_MOST_HELD: Final = 1 << 18

Decoded = TypeVar("Decoded")
Cpus = frozenset[int]


class CpuState(NamedTuple):
    """The shared CPUs, and the exclusive CPUs by pod UID and container. `pods` are pod-level CPUs (KEP-5526), which
    include the containers' CPUs. Containers of V1 have only an id: they are under "" as their pod."""

    shared: Cpus
    holders: Mapping[str, Mapping[str, Cpus]]
    pods: Mapping[str, Cpus] = {}
    policy: str = "static"


class MemoryTable(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes of a memory type on a node.

    `allocatable` and `free` are negative if the system reserves more than the node has. The kubelet computes them as
    unsigned numbers, which wrap around (memorymanager/policy_static.go, getDefaultMachineState).
    """

    total: int = 0
    system_reserved: int = 0
    allocatable: int = 0
    reserved: int = 0
    free: int = 0


class MemoryNode(msgspec.Struct, frozen=True, rename="camel"):
    """`cells` are the nodes of the group of this node; `number_of_assignments` is the number of blocks on it."""

    number_of_assignments: int = 0
    memory_map: dict[str, MemoryTable] = {}
    cells: tuple[int, ...] | None = ()


class MemoryBlock(msgspec.Struct, frozen=True, gc=False, order=True):
    """`size` bytes of `type` ("memory", "hugepages-2Mi") on `nodes`. A block over several nodes has one total size."""

    type: str
    nodes: tuple[int, ...]
    size: int


MemoryBlocks = tuple[MemoryBlock, ...]


class MemoryState(NamedTuple):
    """The tables by NUMA node id, and blocks by pod UID and container; `pods` as in CpuState."""

    nodes: Mapping[int, MemoryNode]
    holders: Mapping[str, Mapping[str, MemoryBlocks]]
    pods: Mapping[str, MemoryBlocks] = {}
    policy: str = "Static"


_HALF: Final = 1 << 63


class _PodCpus(msgspec.Struct, frozen=True, rename="camel"):
    cpu_set: str = ""


class _CpuForm(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    default_cpu_set: str = ""
    entries: dict[str, dict[str, str] | str] | None = None
    pod_entries: dict[str, _PodCpus] | None = None
    data: str = ""


class _Block(msgspec.Struct, frozen=True):
    numaAffinity: tuple[int, ...] | None
    type: str
    size: int


class _PodMemory(msgspec.Struct, frozen=True, rename="camel"):
    memory_blocks: tuple[_Block, ...] | None = None


class _MemoryForm(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    machine_state: dict[int, MemoryNode] | None = None
    entries: dict[str, dict[str, tuple[_Block, ...]]] | None = None
    pod_entries: dict[str, _PodMemory] | None = None
    data: str = ""


def cpu_state(text: bytes) -> CpuState:
    """Decodes a `cpu_manager_state`. Raises ParseError."""
    form = _decode(text, _CpuForm)
    if form.data:
        form = _decode(form.data.encode(), _CpuForm)
    pod_cpus = {uid: {"": pod.cpu_set} for uid, pod in (form.pod_entries or {}).items()}
    return CpuState(
        cpuset.parse(form.default_cpu_set),
        _held_cpus(form.entries or {}),
        {uid: pod[""] for uid, pod in _held_cpus(pod_cpus).items()},
        form.policy_name,
    )


def memory_state(text: bytes) -> MemoryState:
    """Decodes a `memory_manager_state`. Raises ParseError."""
    form = _decode(text, _MemoryForm)
    if form.data:
        form = _decode(form.data.encode(), _MemoryForm)
    return MemoryState(
        {node: _signed(state) for node, state in (form.machine_state or {}).items()},
        {uid: {name: _blocks(blocks) for name, blocks in pod.items()} for uid, pod in (form.entries or {}).items()},
        {uid: _blocks(pod.memory_blocks) for uid, pod in (form.pod_entries or {}).items() if pod.memory_blocks},
        form.policy_name,
    )


def _signed(node: MemoryNode) -> MemoryNode:
    if all(max(table.allocatable, table.free) < _HALF for table in node.memory_map.values()):
        return node
    tables = {
        name: msgspec.structs.replace(
            table, **{field: (getattr(table, field) + _HALF) % (2 * _HALF) - _HALF for field in ("allocatable", "free")}
        )
        for name, table in node.memory_map.items()
    }
    return msgspec.structs.replace(node, memory_map=tables)


def _blocks(blocks: tuple[_Block, ...]) -> MemoryBlocks:
    return tuple(MemoryBlock(block.type, tuple(sorted(block.numaAffinity or ())), block.size) for block in blocks)


def _held_cpus(entries: Mapping[str, Mapping[str, str] | str]) -> dict[str, dict[str, Cpus]]:
    cpus_by_pod: dict[str, dict[str, Cpus]] = {}
    count = 0
    for uid, containers in entries.items():
        pod, named = ("", {uid: containers}) if isinstance(containers, str) else (uid, containers)
        pod_containers = cpus_by_pod.setdefault(pod, {})
        for name, cpus in named.items():
            pod_containers[name] = cpuset.parse(cpus)
            count += len(pod_containers[name])
            if count > _MOST_HELD:
                raise ParseError("checkpoint", f"{len(entries)} entries", f"up to {_MOST_HELD} CPUs in all of them")
    return cpus_by_pod


def _decode(text: bytes, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(text, type=kind)
    except documents.UNREADABLE as exc:
        raise ParseError("checkpoint", text[:80].decode(errors="replace"), f"the kubelet's form ({exc})") from exc
