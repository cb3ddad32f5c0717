"""One look at the node: every source is asked anew, and what has not changed is not read twice.

The kubelet is asked each time, as its answer is what changes. The hardware changes with a uevent and is otherwise
read at its interval; the state files are read after List, because they are compared with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter import machine
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.kubelet import holders, state_files
from topowise_exporter.kubelet.model import Allocations, MemoryBooks, PodAllocation
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.kubelet.settings import Source
from topowise_exporter.publish.topology import Observation

log = logging.getLogger(__name__)


class Observer:
    """Looks at one node. `problems` has what the last look found odd, by what it is about."""

    def __init__(
        self,
        settings: ExporterConfiguration,
        podresources: PodResources,
        configuration: Source,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._podresources = podresources
        self._configuration = configuration
        self._clock = clock
        self._state = Path(settings.kubelet_root) if settings.kubelet_root else None
        self._machine: machine.Machine | None = None
        self._machine_at = 0.0
        self._seen_listed: frozenset[str] = frozenset()
        self.problems: dict[str, str] = {}

    def forget_machine(self) -> None:
        """The next look reads the hardware."""
        self._machine = None

    async def look(self) -> Observation:
        """Raises SourceError if the kubelet cannot be asked or its configuration was never readable."""
        self.problems = {}
        kubelet = await self._configuration.read()
        allocatable = await self._podresources.allocatable()
        pods = await self._podresources.pods()
        return Observation(
            machine=self._read_machine(),
            kubelet=kubelet,
            allocations=Allocations(
                allocatable, pods, unlisted=self._unlisted(kubelet, pods), books=self._books(kubelet, pods)
            ),
        )

    def _read_machine(self) -> machine.Machine:
        now = self._clock()
        if self._machine is None or now - self._machine_at >= self._settings.machine_interval:
            self._machine = machine.scan(self._settings.sysfs_root, self._settings.procfs_root)
            self._machine_at = now
        return self._machine

    def _unlisted(self, kubelet: KubeletConfiguration, pods: tuple[PodAllocation, ...]) -> dict[str, frozenset[int]]:
        if self._state is None or kubelet.cpuManagerPolicy != "static":
            return {}
        try:
            state = state_files.read_cpu_state(self._state)
        except SourceError as exc:
            self.problems["CPU manager state cannot be read, CPUs of finished init containers count as free"] = str(exc)
            return {}
        if state is None:
            return {}
        listed = holders.listed_uids(state, pods)
        # A pod that was listed with CPUs once and is not any more is dead, even if its directory lingers.
        self._seen_listed = (self._seen_listed | listed) & frozenset(state.holders)
        existing = (
            _existing_pods(self._state) - self._seen_listed if listed != frozenset(state.holders) else frozenset()
        )
        return holders.unlisted_cpus(state, pods, listed | existing)

    def _books(self, kubelet: KubeletConfiguration, pods: tuple[PodAllocation, ...]) -> MemoryBooks | None:
        if self._state is None or kubelet.memoryManagerPolicy != "Static":
            return None
        try:
            state = state_files.read_memory_state(self._state)
        except SourceError as exc:
            self.problems["Memory manager state cannot be read, blocks over several nodes are guessed"] = str(exc)
            return None
        return None if state is None else holders.exact_memory(state, holders.live_memory_holders(state, pods))


def _existing_pods(kubelet_root: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in (kubelet_root / "pods").iterdir())
    except OSError:
        return frozenset()
