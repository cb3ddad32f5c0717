"""What live pods have allocated and List does not show: resources that finished init containers left to their pods."""

from __future__ import annotations

import operator
from typing import Final, NamedTuple

from topowise.checkpoints import CpuState
from topowise_exporter.kubelet import entry_owners
from topowise_exporter.kubelet.allocations import Device, PodAllocation
from topowise_exporter.kubelet.device_checkpoint import DeviceState
from topowise_exporter.kubelet.pods_in_admission import Sorted
from topowise_exporter.node_files import FilesReading

_NONE: Final[frozenset[str]] = frozenset()


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
