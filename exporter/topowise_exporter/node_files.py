"""The kubelet's files on the node: state files, the proofs of admissions, and what only these files show.

List does not show resources that finished init containers left to their pods.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from topowise.checkpoints import CpuState, MemoryState
from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.conditions import Condition
from topowise_exporter.kubelet import device_checkpoint, entry_owners, state_files
from topowise_exporter.kubelet.allocations import Device, PodAllocation
from topowise_exporter.kubelet.device_checkpoint import DeviceState
from topowise_exporter.kubelet.pods_in_admission import Sorted, States
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


class Unlisted(NamedTuple):
    """CPUs and devices by pod uid. `live` are the uids of all pods that have CPUs, as far as the state file shows."""

    cpus: dict[str, frozenset[int]]
    devices: dict[str, tuple[Device, ...]]
    live: frozenset[str] = _NONE


class _Match(NamedTuple):
    """The comparison of a CPU state with a List; valid while both are the same objects."""

    state: CpuState
    pods: tuple[PodAllocation, ...]
    listed: frozenset[str]
    unlisted: dict[str, frozenset[int]]


class UnlistedResources:
    """Remembers which pods List has shown: a pod that List showed once and no longer shows has ended, even if its
    directory remains."""

    def __init__(self) -> None:
        self._match: _Match | None = None
        self._listed_with_cpus: frozenset[str] = _NONE
        self._listed_with_devices: frozenset[str] = _NONE
        self._leftovers = entry_owners.Leftovers()
        self._last: tuple[tuple[object, ...], frozenset[str], Unlisted] = (), _NONE, Unlisted({}, {})

    def remember(self, uids: frozenset[str]) -> None:
        """Take the pods that the last object of an earlier exporter had beyond List."""
        self._leftovers = entry_owners.Leftovers(uids)
        self._last = (), _NONE, Unlisted({}, {})

    def read(
        self, files: FilesReading, pods: tuple[PodAllocation, ...], admission: Sorted, directories: frozenset[str]
    ) -> Unlisted:
        """`pods` are all pods of List. Returns the same object for the same inputs."""
        inputs = files.cpu, files.devices, pods, admission
        last_inputs, last_directories, last = self._last
        is_same = len(last_inputs) == len(inputs) and all(map(operator.is_, inputs, last_inputs))
        if is_same and directories == last_directories:
            return last
        cpus, live = ({}, _NONE) if files.cpu is None else self._cpus(files.cpu, admission, directories)
        devices = {} if files.devices is None else self._devices(files.devices, pods, admission, directories)
        self._last = inputs, directories, Unlisted(cpus, devices, live)
        return self._last[2]

    def _cpus(
        self, state: CpuState, admission: Sorted, directories: frozenset[str]
    ) -> tuple[dict[str, frozenset[int]], frozenset[str]]:
        pods = admission.pods
        if self._match is None or self._match.state is not state or self._match.pods is not pods:
            listed = entry_owners.listed_uids(state, pods)
            self._match = _Match(state, pods, listed, entry_owners.unlisted_cpus(state, pods, listed))
        seen = (self._listed_with_cpus | self._match.listed | admission.listed) & state.holders.keys()
        self._listed_with_cpus = frozenset(seen)
        if len(self._match.listed) == len(state.holders):
            return self._match.unlisted, self._match.listed
        # A pod whose CPUs List never shows exists while its directory does. A pod that List shows with memory or
        # devices alone may still have CPUs of its init containers.
        existing = directories - self._listed_with_cpus
        live = self._match.listed | admission.whole | existing
        return entry_owners.unlisted_cpus(state, pods, live), live

    def _devices(
        self, state: DeviceState, pods: tuple[PodAllocation, ...], admission: Sorted, directories: frozenset[str]
    ) -> dict[str, tuple[Device, ...]]:
        self._listed_with_devices = (self._listed_with_devices | admission.listed) & state.holders.keys()
        candidates = (directories & state.holders.keys()) - self._listed_with_devices
        live = admission.whole | self._leftovers.living(candidates, pods)
        return entry_owners.unlisted_devices(state, admission.pods, live)
