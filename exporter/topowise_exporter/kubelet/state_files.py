"""Reads the kubelet's checkpoints of its CPU manager and memory manager. device_checkpoint reads that of the device
manager.

Only these files have two things. First, CPUs that a finished init container keeps until its pod ends (List leaves init
containers out). Second, how a block over several NUMA nodes is spread, with the groups of nodes that it forms. The
format is internal to the kubelet (kubernetes#118375). Anything unexpected therefore makes the file unreadable, and
amounts come from List. topowise.checkpoints reads the formats of all versions. The checksum is not verified: the
kubelet replaces a file as a whole, and states a wrong checksum itself when it starts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from topowise import checkpoints, documents, files
from topowise.checkpoints import CpuState, MemoryState
from topowise.errors import ParseError, SourceError

CPU_STATE: Final = "cpu_manager_state"
MEMORY_STATE: Final = "memory_manager_state"
DEVICE_STATE: Final = "device-plugins/kubelet_internal_checkpoint"
ALLOCATED_STATE: Final = "allocated_pods_state"

_TICK_NS: Final = 50_000_000

Checkpoint = TypeVar("Checkpoint")
Read = TypeVar("Read", CpuState, MemoryState)
State = TypeVar("State")


def parse_cpu_state(text: bytes, source: str) -> CpuState | None:
    """Returns the state, None if the CPU manager is off. Raises SourceError."""
    state = _read(checkpoints.cpu_state, text, source)
    return state if state.policy == "static" else None


def parse_memory_state(text: bytes, source: str) -> MemoryState | None:
    """Returns the state, None if the memory manager is off. Raises SourceError."""
    state = _read(checkpoints.memory_state, text, source)
    return state if state.policy == "Static" else None


def _read(parse: Callable[[bytes], Read], text: bytes, source: str) -> Read:
    try:
        state = parse(text)
    except ParseError as exc:
        raise SourceError(source, f"is not a checkpoint of a known format: {exc}") from exc
    if not state.policy:
        raise SourceError(source, "is not a checkpoint of a known format: it names no policy")
    return state


class _AllocatedPods(msgspec.Struct, frozen=True):
    """The kubelet wraps the entries in a text, of which its checksum is."""

    data: str


class _AllocatedEntries(msgspec.Struct, frozen=True):
    entries: dict[str, msgspec.Raw] = {}


def parse_allocated_pods(text: bytes, source: str) -> frozenset[str]:
    """Uids of pods whose admission is over (pkg/kubelet/allocation/state/checkpoint.go). Raises SourceError. The
    allocation manager writes a pod down once it has been admitted as a whole, by default since 1.33
    (InPlacePodVerticalScaling), and long before the pod has a directory."""
    data = _decode(text, source, _AllocatedPods).data
    return frozenset(_decode(data.encode(), source, _AllocatedEntries).entries)


class StateFile(Generic[State]):
    """A state file. While its bytes are the same, `state` is the same object. The file is on a disk of the host and
    could be anything: only a regular file of a plausible size is read."""

    def __init__(self, path: Path, parse: Callable[[bytes, str], State | None], most: int = 4 << 20) -> None:
        """`most`: size limit in bytes."""
        self._path = path
        self._parse = parse
        self._most = most
        self._signature: tuple[int, ...] | None = None
        self._content: bytes | None = None
        self._problem = ""
        self.state: State | None = None
        """The last state that was read, also while the file cannot be read; None if the manager is off."""
        self.is_readable = False

    def exists(self) -> bool:
        """Whether the path exists, also as a dangling link."""
        return os.path.lexists(self._path)

    def read(self) -> State | None:
        """Returns the state, None if the manager is off. Raises SourceError."""
        self.is_readable = False
        try:
            text = self._text()
            if text is not None and (text != self._content or self._problem):
                self._content, self._problem = text, ""
                self.state = self._parse(text, str(self._path))
        except OSError as exc:
            self._signature = None
            raise SourceError(str(self._path), f"cannot be read: {exc.strerror}") from exc
        except SourceError as exc:
            self._problem = str(exc).removeprefix(f"{self._path}: ")
            raise
        if self._problem:
            raise SourceError(str(self._path), self._problem)
        self.is_readable = True
        return self.state

    def _text(self) -> bytes | None:
        """Returns the file's bytes, None if the file has not changed since the last read."""
        descriptor, status = files.open_regular(self._path, self._most)
        with os.fdopen(descriptor, "rb") as file:
            signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if signature == self._signature:
                return None
            text = file.read(self._most + 1)
        # Time stamps have the resolution of the kernel's timer tick: within a tick a file can change twice with equal
        # stamps.
        is_old = abs(time.time_ns() - status.st_ctime_ns) > _TICK_NS
        self._signature = signature if is_old else None
        return text


def _decode(text: bytes, source: str, kind: type[Checkpoint]) -> Checkpoint:
    try:
        return msgspec.json.decode(text, type=kind)
    except documents.UNREADABLE as exc:
        raise SourceError(source, f"is not a checkpoint of a known format: {exc}") from exc
