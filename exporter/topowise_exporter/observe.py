"""One look at the node: every source is asked anew, and what has not changed is not read twice.

The kubelet is asked each time, as its answer is what changes. The hardware changes with a uevent and is otherwise
read at its interval; the state files are read after List, because they are compared with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.quantity import human_bytes
from topowise_exporter import machine
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.dra.slices import Devices
from topowise_exporter.kubelet import holders, state_files
from topowise_exporter.kubelet.model import Allocations, PodAllocation
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.kubelet.settings import Source
from topowise_exporter.kubelet.state_files import CpuState, MemoryState, StateFile
from topowise_exporter.publish.topology import Observation

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


class Observer:
    """Looks at one node. `problems` has what the last look found odd, by what it is about."""

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
        root = Path(settings.kubelet_root) if settings.kubelet_root else None
        self._pods_directory = None if root is None else root / "pods"
        self._cpu_state: StateFile[CpuState] | None = None
        self._memory_state: StateFile[MemoryState] | None = None
        if root is not None:
            self._cpu_state = StateFile(root / state_files.CPU_STATE, state_files.parse_cpu_state)
            self._memory_state = StateFile(root / state_files.MEMORY_STATE, state_files.parse_memory_state)
        self._last: Observation | None = None
        self._last_states: tuple[CpuState | None, MemoryState | None] = None, None
        self._machine: machine.Machine | None = None
        self._machine_at = 0.0
        self._memory_doubt: str | None = None
        self._seen_listed: frozenset[str] = frozenset()
        self._matched: _Matched | None = None
        self.problems: dict[str, str] = {}
        self.kubelet_version: str | None = None
        """The Node's, on which the kubelet's defaults depend; None: the newest."""

    def forget_machine(self) -> None:
        """The next look reads the hardware."""
        self._machine = None

    async def look(self) -> Observation:
        """The same object as the last time if nothing at all has changed.

        Raises SourceError if the kubelet cannot be asked or its configuration was never readable.
        """
        self.problems = {}
        kubelet = await self._configuration.read(self.kubelet_version)
        allocatable = await self._podresources.allocatable()
        pods = await self._podresources.pods()
        read = self._read_machine()
        cpu = self._read_cpu_state(kubelet)
        memory = self._read_memory_state(kubelet)
        last = self._last
        unlisted = {} if cpu is None else self._unlisted(cpu, pods)
        devices = self._devices()
        if (
            last is not None
            and last.machine is read
            and last.kubelet == kubelet
            and last.allocations.allocatable is allocatable
            and last.allocations.pods is pods
            and last.devices is devices
            and self._last_states[0] is cpu
            and self._last_states[1] is memory
            # By directories of pods, which come later than the state file and go without any other change.
            and last.allocations.unlisted == unlisted
        ):
            return last
        books = None if memory is None else holders.exact_memory(memory, holders.live_memory_holders(memory, pods))
        self._last_states = cpu, memory
        self._last = Observation(read, kubelet, Allocations(allocatable, pods, unlisted, books), devices)
        return self._last

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

    def _read_cpu_state(self, kubelet: KubeletConfiguration) -> CpuState | None:
        if self._cpu_state is None or kubelet.cpuManagerPolicy != "static":
            return None
        try:
            return self._cpu_state.read()
        except SourceError as exc:
            self.problems["CPU manager state cannot be read, CPUs of finished init containers count as free"] = str(exc)
            return None

    def _read_memory_state(self, kubelet: KubeletConfiguration) -> MemoryState | None:
        if self._memory_state is None or kubelet.memoryManagerPolicy != "Static":
            return None
        try:
            return self._memory_state.read()
        except SourceError as exc:
            self.problems["Memory manager state cannot be read, blocks over several nodes are guessed"] = str(exc)
            return None

    def _unlisted(self, state: CpuState, pods: tuple[PodAllocation, ...]) -> dict[str, frozenset[int]]:
        if self._matched is None or self._matched.state is not state or self._matched.pods is not pods:
            listed = holders.listed_uids(state, pods)
            self._matched = _Matched(state, pods, listed, holders.unlisted_cpus(state, pods, listed))
            # A pod that was listed with CPUs once and is not any more is dead, even if its directory lingers.
            self._seen_listed = (self._seen_listed | listed) & frozenset(state.holders)
        if len(self._matched.listed) == len(state.holders):
            return self._matched.unlisted
        # Nothing of the others' is listed: whether they exist is told by their directories, which change by themselves.
        existing = self._existing_pods() - self._seen_listed
        return holders.unlisted_cpus(state, pods, self._matched.listed | existing)

    def _existing_pods(self) -> frozenset[str]:
        """Uids of pods that have a directory; a dead pod's stays for a moment."""
        try:
            return frozenset(entry.name for entry in self._pods_directory.iterdir()) if self._pods_directory else _NONE
        except OSError:
            return _NONE
