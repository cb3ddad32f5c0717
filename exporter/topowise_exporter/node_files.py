"""The kubelet's files on the node: state files, and the proofs that a pod has been admitted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from topowise.checkpoints import CpuState, MemoryState
from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.conditions import Condition
from topowise_exporter.kubelet import device_checkpoint, state_files
from topowise_exporter.kubelet.device_checkpoint import DeviceState
from topowise_exporter.kubelet.pods_in_admission import States
from topowise_exporter.kubelet.state_files import State, StateFile

_NONE: Final[frozenset[str]] = frozenset()


class AdmittedPods(NamedTuple):
    """Uids of pods with a directory (None: unknown), and of pods that `allocated_pods_state` records."""

    directories: frozenset[str] | None
    recorded: frozenset[str] = _NONE
    problems: Mapping[Condition, str] = {}

    @property
    def proven(self) -> frozenset[str] | None:
        """Uids of pods whose admission has ended; None if that is unknown."""
        return None if self.directories is None else self.directories | self.recorded


class FilesReading(NamedTuple):
    """The last readable contents of the state files (None: the manager is off), and what is readable now."""

    cpu: CpuState | None
    memory: MemoryState | None
    devices: DeviceState | None
    readable: States
    has_cpu_manager: bool
    """False if the state file says that the manager is off."""
    has_memory_manager: bool
    problems: Mapping[Condition, str]


class NodeFiles:
    """Reads the files below the kubelet's root; "" as root: there are none."""

    def __init__(self, kubelet_root: str) -> None:
        root = Path(kubelet_root or "/nonexistent")
        self.is_mounted = bool(kubelet_root)
        self._pods = root / "pods"
        self._cpu = StateFile(root / state_files.CPU_STATE, state_files.parse_cpu_state)
        self._memory = StateFile(root / state_files.MEMORY_STATE, state_files.parse_memory_state)
        self._devices = StateFile(
            root / state_files.DEVICE_STATE, device_checkpoint.parse, device_checkpoint.MOST_BYTES
        )
        self._allocated = StateFile(root / state_files.ALLOCATED_STATE, state_files.parse_allocated_pods)

    def admitted_pods(self) -> AdmittedPods:
        """To be read before List: a pod that is admitted by then has all its resources in the answer of List."""
        if not self.is_mounted:
            return AdmittedPods(None)
        try:
            directories = frozenset(os.listdir(self._pods))  # noqa: PTH208
        except OSError:
            directories = None
        if not self._allocated.exists():
            return AdmittedPods(directories)
        try:
            return AdmittedPods(directories, self._allocated.read() or _NONE)
        except SourceError as exc:
            return AdmittedPods(directories, problems={Condition.ALLOCATED_STATE: str(exc)})

    def read(self, kubelet: KubeletConfiguration) -> FilesReading:
        """The contents of each file. While a file cannot be read, its last contents: List and the directories show
        which pods have ended since."""
        cpu = memory = devices = None
        problems: dict[Condition, str] = {}
        if self.is_mounted and kubelet.cpuManagerPolicy == "static":
            cpu = _read(self._cpu, Condition.CPU_STATE, problems)
        if self.is_mounted and kubelet.memoryManagerPolicy == "Static":
            memory = _read(self._memory, Condition.MEMORY_STATE, problems)
        # On a node without device plug-ins the file may be missing.
        if self.is_mounted and (self._devices.exists() or self._devices.state is not None):
            devices = _read(self._devices, Condition.DEVICE_STATE, problems)
        has_cpu, has_memory = self._cpu.is_readable, self._memory.is_readable
        readable = States(
            cpu if has_cpu else None, memory if has_memory else None, devices if self._devices.is_readable else None
        )
        return FilesReading(
            cpu,
            memory,
            devices,
            readable,
            not has_cpu or cpu is not None,
            not has_memory or memory is not None,
            problems,
        )


def _read(file: StateFile[State], condition: Condition, problems: dict[Condition, str]) -> State | None:
    try:
        return file.read()
    except SourceError as exc:
        problems[condition] = str(exc)
        return file.state
