"""One reading of the node: every source is asked anew, and what has not changed is not read twice.

The kubelet is asked each time, as its answer is what changes. The hardware changes with a uevent and is otherwise
read at its interval; the state files are read after List, because they are compared with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.quantity import human_bytes
from topowise_exporter import machine
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.dra import device_counts
from topowise_exporter.dra.slices import Devices
from topowise_exporter.kubelet import device_checkpoint, holders, state_files
from topowise_exporter.kubelet.admission import Admissions, Sorted, States
from topowise_exporter.kubelet.device_checkpoint import DeviceState
from topowise_exporter.kubelet.model import Allocatable, Allocations, Device, FreeMemory, MemoryBlock, PodAllocation
from topowise_exporter.kubelet.podresources import PodResources, lists_claims
from topowise_exporter.kubelet.settings import Source
from topowise_exporter.kubelet.settled import Answer, Before, Kubelet
from topowise_exporter.kubelet.state_files import CpuState, MemoryState, State, StateFile
from topowise_exporter.publish.topology import Observation
from topowise_exporter.restart import StartCheck

_NONE: frozenset[str] = frozenset()
_NO_DEVICES: Devices = {}


# Old kernels let the nodes' MemTotal exceed the machine's by up to 3 %; memory that is hot-plugged counts at once.
_MEMORY_TOLERANCE_PERCENT = 5


def disagreement(read: machine.Machine, total_bytes: int) -> str | None:
    """None if the memory of the NUMA nodes sums up to `total_bytes` (psutil's word), else both amounts."""
    sum_bytes = sum(node.memory_bytes for node in read.nodes)
    if abs(sum_bytes - total_bytes) * 100 <= total_bytes * _MEMORY_TOLERANCE_PERCENT:
        return None
    return f"the nodes have {human_bytes(sum_bytes)}, the machine {human_bytes(total_bytes)}"


class _Matched(NamedTuple):
    """What was found by comparing a state file with a List; holds as long as both are the same objects."""

    state: CpuState
    pods: tuple[PodAllocation, ...]
    listed: frozenset[str]
    unlisted: dict[str, frozenset[int]]


class _Files(NamedTuple):
    """What the state files have, or had when they could be read; None for a manager that is off."""

    cpu: CpuState | None
    memory: MemoryState | None
    devices: DeviceState | None
    readable: States


class Observer:
    """Reads one node. What the last sync found besides is in `problems`, by what each is about, and in `doubts`,
    `withheld` and `due`."""

    def __init__(
        self,
        settings: ExporterConfiguration,
        podresources: PodResources,
        configuration: Source,
        clock: Callable[[], float] = time.monotonic,
        devices: Callable[[], Devices] = lambda: _NO_DEVICES,
    ) -> None:
        """`devices` are those of resource claims as they are known at the time."""
        self._settings = settings
        self._podresources = podresources
        self._configuration = configuration
        self._clock = clock
        self._devices = devices
        root = Path(settings.kubelet_root or "/nonexistent")
        self._has_files = bool(settings.kubelet_root)
        self._pods_directory = root / "pods"
        self._cpu_state = StateFile(root / state_files.CPU_STATE, state_files.parse_cpu_state)
        self._memory_state = StateFile(root / state_files.MEMORY_STATE, state_files.parse_memory_state)
        self._device_state = StateFile(
            root / state_files.DEVICE_STATE, device_checkpoint.parse, device_checkpoint.MOST_BYTES
        )
        self._allocated_state = StateFile(root / state_files.ALLOCATED_STATE, state_files.parse_allocated_pods)
        self._last: Observation | None = None
        self._last_inputs: tuple[object, ...] = ()
        self._machine: machine.Machine | None = None
        self._machine_at = 0.0
        self._memory_doubt: str | None = None
        self._seen_listed: frozenset[str] = frozenset()
        self._seen_with_devices: frozenset[str] = frozenset()
        self._matched: _Matched | None = None
        self._admissions = Admissions()
        self._leftovers = holders.Leftovers()
        self._whole_pods = holders.WholePods()
        self._kubelet = Kubelet(settings.podresources_socket, clock)
        self._lists_claims = False
        self.problems: dict[str, str] = {}
        self.doubts: frozenset[str] = frozenset()
        """Why what was seen is not the truth yet (topowise.attributes.doubts)."""
        self.withheld: frozenset[tuple[str, str]] = frozenset()
        """Pods that are left out because they are being admitted."""
        self.due: float | None = None
        """Seconds until the next sync finds something new although nothing may happen."""
        # A process does not outlive its machine's boot.
        self._boot_id = machine.read_boot_id(settings.procfs_root)
        self._start = StartCheck(Path(settings.kubelet_root))
        self.kubelet_version: str | None = None
        """The Node's, on which the kubelet's defaults depend; None: the newest."""

    def forget_machine(self) -> None:
        """The next sync reads the hardware."""
        self._machine = None

    def remember(self, devices: tuple[Device, ...], unlisted: frozenset[str]) -> None:
        """What the last object of an earlier exporter had: devices, and uids of pods that List does not show."""
        self._kubelet.before = Before(devices=devices, unlisted=unlisted)
        self._leftovers = holders.Leftovers(unlisted)

    async def observe(self) -> Observation:
        """The same object as the last time if nothing at all has changed.

        Raises SourceError if the kubelet cannot be asked or its configuration was never readable.
        """
        self.problems = {}
        kubelet = await self._configuration.read(self.kubelet_version)
        version = self._configuration.version
        # Before List: a pod that is admitted by then has all that it holds in a List that is asked for later.
        directories, admitted = self._existing_pods(), self._admitted_pods()
        allocatable = await self._podresources.allocatable()
        pods = await self._podresources.pods()
        read = self._read_machine()
        files = self._read_files(kubelet)
        pods = self._whole_pods.of(pods, files.cpu, files.memory)
        found = self._admissions.sort(
            pods, files.readable, None if directories is None else directories | admitted, self._clock()
        )
        self.withheld, self.due = found.withheld, found.due
        said = self._answer(kubelet, allocatable, pods, files, directories, found.listed)
        self.doubts = self._kubelet.doubts(said)
        absent = self._kubelet.absent(said)
        if not self.doubts:
            self._kubelet.believe(said, absent)
        unlisted = {} if files.cpu is None else self._unlisted(files.cpu, found, directories or _NONE)
        leftovers = self._unlisted_devices(files.devices, pods, found, directories or _NONE)
        devices = self._claimable(kubelet, version or self.kubelet_version, pods)
        if self._has_files and not self.doubts:
            self._start.compare(kubelet, read, allocatable, self._clock())
        changing = (unlisted, leftovers, absent)
        inputs = (read, allocatable, found.pods, found.admitting, devices, files.cpu, files.memory, files.devices)
        if self._last is not None and self._is_same(
            self._last, kubelet, (version, self._start.problems), inputs, changing
        ):
            return self._last
        free_memory = self._free_memory(files, found)
        allocations = Allocations(allocatable, found.pods, unlisted, free_memory, leftovers, found.admitting, absent)
        made = Observation(read, kubelet, allocations, devices, version, self._start.problems, self._boot_id)
        if made != self._last:
            self._last = made
        self._last_inputs = inputs
        return self._last

    def _is_same(
        self,
        last: Observation,
        kubelet: KubeletConfiguration,
        shown: tuple[str, Mapping[str, str]],
        inputs: tuple[object, ...],
        changing: tuple[object, ...],
    ) -> bool:
        known = last.allocations
        return (
            all(one is other for one, other in zip(inputs, self._last_inputs, strict=True))
            and last.kubelet == kubelet
            and (last.version, last.refused_state_files) == shown
            # By directories of pods, which come later than the state file and go without any other change.
            and (known.unlisted, known.unlisted_devices, known.absent) == changing
        )

    def _claimable(
        self, kubelet: KubeletConfiguration, version: str | None, pods: tuple[PodAllocation, ...]
    ) -> Devices:
        """Devices of resource claims; none where nobody tells who has them, as all of them would look free."""
        devices = self._devices()
        # Its gate may be one of the flags, which a file does not tell.
        self._lists_claims = self._lists_claims or bool(devices and device_counts.held(pods))
        if not devices or self._lists_claims or lists_claims(version, kubelet.featureGates or {}):
            return devices
        self.problems["List does not name devices of resource claims, leaving them out"] = (
            f"kubelet {version} without the feature gate KubeletPodResourcesDynamicResources"
        )
        return _NO_DEVICES

    def _read_machine(self) -> machine.Machine:
        now = self._clock()
        if self._machine is None or now - self._machine_at >= self._settings.machine_interval:
            self._machine = machine.scan(self._settings.sysfs_root, self._settings.procfs_root)
            self._machine_at = now
            # Only for the machine we run on; any other root is a tree without a kernel behind it.
            self._memory_doubt = None
            if self._settings.procfs_root == "/proc":
                self._memory_doubt = disagreement(self._machine, psutil.virtual_memory().total)
        if self._memory_doubt is not None:
            self.problems["The nodes' memory does not sum up to the machine's, publishing the nodes' own"] = (
                self._memory_doubt
            )
        return self._machine

    def _read_files(self, kubelet: KubeletConfiguration) -> _Files:
        """Each as it is, or, while it cannot be read, as it was: List and the directories show who has gone since."""
        cpu = memory = devices = None
        if self._has_files and kubelet.cpuManagerPolicy == "static":
            cpu = self._read(self._cpu_state, "CPU manager state")
        if self._has_files and kubelet.memoryManagerPolicy == "Static":
            memory = self._read(self._memory_state, "Memory manager state")
        # A node without device plug-ins may be without it.
        if self._has_files and (self._device_state.exists() or self._device_state.state is not None):
            devices = self._read(self._device_state, "Device manager checkpoint")
        readable = States(
            cpu if self._cpu_state.is_readable else None,
            memory if self._memory_state.is_readable else None,
            devices if self._device_state.is_readable else None,
        )
        return _Files(cpu, memory, devices, readable)

    def _read(self, file: StateFile[State], what: str) -> State | None:
        try:
            return file.read()
        except SourceError as exc:
            self.problems[f"{what} cannot be read, going by what it had last, if anything, and by List"] = str(exc)
            return file.state

    def _free_memory(self, files: _Files, found: Sorted) -> FreeMemory | None:
        """As long as the file cannot be read the last numbers hold, if the memory is still that of the same pods."""
        if files.memory is None:
            return None
        last = None if self._last is None else self._last.allocations
        if files.readable.memory is None:
            is_same = last is not None and _memory_of(last.pods) == _memory_of(found.pods)
            return last.free_memory if last is not None and is_same else None
        return holders.exact_memory(files.memory, holders.live_memory_holders(files.memory, found.pods, found.whole))

    def _answer(
        self,
        kubelet: KubeletConfiguration,
        allocatable: Allocatable,
        pods: tuple[PodAllocation, ...],
        files: _Files,
        directories: frozenset[str] | None,
        listed: frozenset[str],
    ) -> Answer:
        cpu, memory, devices = files.readable
        there = directories or _NONE
        cpu_holders = _NONE if cpu is None else frozenset(cpu.holders)
        memory_holders = _NONE if memory is None else frozenset(memory.holders)
        return Answer(
            config=kubelet,
            allocatable=allocatable,
            pods=pods,
            listed=listed,
            living=there & (cpu_holders | memory_holders),
            with_devices=there & (_NONE if devices is None else devices.holders.keys()),
            registered=_NONE if devices is None else devices.registered,
            has_cpu_manager=not (self._cpu_state.is_readable and cpu is None),
            has_memory_manager=not (self._memory_state.is_readable and memory is None),
            has_files=self._has_files and directories is not None,
        )

    def _unlisted_devices(
        self, state: DeviceState | None, pods: tuple[PodAllocation, ...], found: Sorted, directories: frozenset[str]
    ) -> dict[str, tuple[Device, ...]]:
        if state is None:
            return {}
        self._seen_with_devices = (self._seen_with_devices | found.listed) & state.holders.keys()
        others = (directories & state.holders.keys()) - self._seen_with_devices
        live = found.whole | self._leftovers.living(others, pods)
        return holders.unlisted_devices(state, found.pods, live)

    def _unlisted(self, state: CpuState, found: Sorted, directories: frozenset[str]) -> dict[str, frozenset[int]]:
        pods = found.pods
        if self._matched is None or self._matched.state is not state or self._matched.pods is not pods:
            listed = holders.listed_uids(state, pods)
            self._matched = _Matched(state, pods, listed, holders.unlisted_cpus(state, pods, listed))
        # A pod that was listed once and is not any more is dead, even if its directory lingers.
        seen = (self._seen_listed | self._matched.listed | found.listed) & state.holders.keys()
        self._seen_listed = frozenset(seen)
        if len(self._matched.listed) == len(state.holders):
            return self._matched.unlisted
        # Nothing of the others' is listed: their directories show whether they exist, and change by themselves. Of one
        # that is listed with memory or devices alone, what init containers have left is not.
        existing = directories - self._seen_listed
        return holders.unlisted_cpus(state, pods, self._matched.listed | found.whole | existing)

    def _existing_pods(self) -> frozenset[str] | None:
        """Uids of pods that have a directory, None if nobody can tell; a dead pod's stays for a moment."""
        if not self._has_files:
            return None
        try:
            return frozenset(os.listdir(self._pods_directory))  # noqa: PTH208
        except OSError:
            return None

    def _admitted_pods(self) -> frozenset[str]:
        """Uids of pods that the kubelet has written down as admitted; none with one that does not."""
        if not self._has_files or not self._allocated_state.exists():
            return _NONE
        try:
            return self._allocated_state.read() or _NONE
        except SourceError as exc:
            self.problems["Allocated pods state cannot be read, going by directories of pods"] = str(exc)
            return _NONE


def _memory_of(pods: Iterable[PodAllocation]) -> list[tuple[str, str, tuple[MemoryBlock, ...]]]:
    return sorted((pod.namespace, pod.name, pod.memory) for pod in pods if pod.memory)
