"""The kubelet's checkpoints of its CPU and memory manager: what podresources does not tell.

Two things are only here: CPUs that a finished init container keeps until its pod ends (List leaves init containers
out), and how a block over several NUMA nodes is spread, with the groups of nodes it ties. The format is the kubelet's
own business (kubernetes#118375), so anything unexpected makes the file unreadable, and amounts come from List.
Formats: pkg/kubelet/cm/cpumanager/state/checkpoint.go, pkg/kubelet/cm/memorymanager/state/checkpoint.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from topowise import cpuset, documents
from topowise.errors import ParseError, SourceError
from topowise_exporter.kubelet.model import MemoryBlock

CPU_STATE: Final = "cpu_manager_state"
MEMORY_STATE: Final = "memory_manager_state"
DEVICE_STATE: Final = "device-plugins/kubelet_internal_checkpoint"

# A CPU is named by the init containers of a pod and by one more, and by dead pods.
_MAX_HELD: Final = 1 << 18

Checkpoint = TypeVar("Checkpoint")
State = TypeVar("State")

# Pod uid -> container name -> what it holds.
Holders = Mapping[str, Mapping[str, frozenset[int]]]
BlockHolders = Mapping[str, Mapping[str, tuple[MemoryBlock, ...]]]


class CpuState(msgspec.Struct, frozen=True):
    """`shared` is the default cpuset: everything not given exclusively."""

    shared: frozenset[int]
    holders: Holders


class MemoryTable(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes of one type on one node."""

    allocatable: int = 0
    reserved: int = 0
    free: int = 0


class MemoryNode(msgspec.Struct, frozen=True, rename="camel"):
    """`cells` are the nodes of the group this one belongs to; `number_of_assignments` how many blocks lie on it."""

    number_of_assignments: int = 0
    memory_map: dict[str, MemoryTable] = {}
    cells: tuple[int, ...] = ()


class MemoryState(msgspec.Struct, frozen=True):
    """By NUMA node id."""

    nodes: Mapping[int, MemoryNode]
    holders: BlockHolders


class _CpuCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str
    default_cpu_set: str
    entries: dict[str, dict[str, str]] | None = None


class _Block(msgspec.Struct, frozen=True):
    numaAffinity: tuple[int, ...] | None
    type: str
    size: int


class _MemoryCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str
    machine_state: dict[int, MemoryNode] | None = None
    entries: dict[str, dict[str, tuple[_Block, ...]]] | None = None


def parse_cpu_state(text: bytes, source: str) -> CpuState | None:
    """None if the CPU manager is off. Raises SourceError."""
    checkpoint = _decode(text, source, _CpuCheckpoint)
    if checkpoint.policy_name != "static":
        return None
    holders: dict[str, dict[str, frozenset[int]]] = {}
    count = 0
    try:
        for uid, containers in (checkpoint.entries or {}).items():
            held = holders[uid] = {}
            for name, cpus in containers.items():
                held[name] = cpuset.parse(cpus)
                count += len(held[name])
                if count > _MAX_HELD:
                    raise SourceError(source, f"names more than {_MAX_HELD} CPUs, expected each with a few containers")
        return CpuState(cpuset.parse(checkpoint.default_cpu_set), holders)
    except ParseError as exc:
        raise SourceError(source, str(exc)) from exc


def parse_memory_state(text: bytes, source: str) -> MemoryState | None:
    """None if the memory manager is off. Raises SourceError."""
    checkpoint = _decode(text, source, _MemoryCheckpoint)
    if checkpoint.policy_name != "Static":
        return None
    holders = {
        uid: {name: tuple(map(_block, blocks)) for name, blocks in containers.items()}
        for uid, containers in (checkpoint.entries or {}).items()
    }
    return MemoryState(checkpoint.machine_state or {}, holders)


class StateFile(Generic[State]):
    """A state file; while its bytes are the same, so is the object that is read from it."""

    def __init__(self, path: Path, parse: Callable[[bytes, str], State | None]) -> None:
        self._path = path
        self._parse = parse
        self._held: bytes | None = None
        self._state: State | None = None

    def read(self) -> State | None:
        """None if the manager is off. Raises SourceError."""
        try:
            text = self._path.read_bytes()
        except OSError as exc:
            raise SourceError(str(self._path), f"cannot be read: {exc.strerror}") from exc
        if text != self._held:
            self._state = self._parse(text, str(self._path))
            self._held = text
        return self._state


def _block(block: _Block) -> MemoryBlock:
    return MemoryBlock(block.type, tuple(sorted(block.numaAffinity or ())), block.size)


def _decode(text: bytes, source: str, kind: type[Checkpoint]) -> Checkpoint:
    try:
        return msgspec.json.decode(text, type=kind)
    except documents.UNREADABLE as exc:
        raise SourceError(source, f"is not the checkpoint it should be: {exc}") from exc
