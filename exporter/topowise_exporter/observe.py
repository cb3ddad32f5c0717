"""Reads the node: every source is read again, and an unchanged source is not decoded again.

The kubelet is asked each time, because its answers change most. The hardware is scanned after a uevent and at its
interval. The state files are read after List, because they are compared with it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import psutil

from topowise.kubeletconfig import KubeletConfiguration
from topowise.quantity import human_bytes
from topowise.runtime import clock
from topowise_exporter import machine
from topowise_exporter.conditions import Condition
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.dra import slices
from topowise_exporter.dra.slices import Devices
from topowise_exporter.kubelet import entry_owners
from topowise_exporter.kubelet.allocations import (
    Allocatable,
    Allocations,
    Device,
    FreeMemory,
    MemoryBlock,
    PodAllocation,
)
from topowise_exporter.kubelet.device_checkpoint import EmptyTopologies
from topowise_exporter.kubelet.podresources import PodResources, lists_claims
from topowise_exporter.kubelet.pods_in_admission import Admissions, Sorted
from topowise_exporter.kubelet.settings import Source
from topowise_exporter.kubelet.startup import Before, KubeletAnswer, KubeletRestarts
from topowise_exporter.machine.inventory import Machine
from topowise_exporter.node_files import AdmittedPods, FilesReading, NodeFiles, Unlisted, UnlistedResources
from topowise_exporter.publish.topology import Observation
from topowise_exporter.state_file_check import StartCheck

# On old kernels, MemTotal of the NUMA nodes exceeds MemTotal of the machine by up to 3 %.
_MEMORY_TOLERANCE_PERCENT: Final = 5
# For changes of which the kernel sends no event, such as a renamed network device. A scan takes some milliseconds.
_SCAN_INTERVAL_S: Final = 60.0
_NONE: Final[frozenset[str]] = frozenset()
_NO_DEVICES: Final[Devices] = {}


class HardwareReading(NamedTuple):
    """The machine, its boot id ("" if the kernel has none), and why its memory looks wrong ("" if it does not)."""

    machine: Machine
    boot_id: str = ""
    memory_problem: str = ""


class Hardware:
    """Scans /sys and /proc at most once a minute, unless `forget` is called."""

    def __init__(self, settings: ExporterConfiguration) -> None:
        self._settings = settings
        # A process ends with the boot of its machine.
        self._boot_id = machine.read_boot_id(settings.procfs_root)
        self._last: HardwareReading | None = None
        self._scanned_at = 0.0

    def forget(self) -> None:
        """Make the next read scan."""
        self._last = None

    def read(self) -> HardwareReading:
        """The same machine object until the next scan."""
        now = clock.monotonic()
        if self._last is None or now - self._scanned_at >= _SCAN_INTERVAL_S:
            scanned = machine.scan(self._settings.sysfs_root, self._settings.procfs_root)
            # Only the /proc of this machine has a kernel that psutil can ask.
            is_own = self._settings.procfs_root == "/proc"
            problem = memory_problem(scanned, psutil.virtual_memory().total) if is_own else ""
            self._last, self._scanned_at = HardwareReading(scanned, self._boot_id, problem), now
        return self._last


def memory_problem(scanned: Machine, total_bytes: int) -> str:
    """Returns both amounts if the memory of the NUMA nodes does not add up to `total_bytes`, else ""."""
    sum_bytes = sum(node.memory_bytes for node in scanned.nodes)
    # A kernel without NUMA shows no memory of nodes.
    if not sum_bytes or abs(sum_bytes - total_bytes) * 100 <= total_bytes * _MEMORY_TOLERANCE_PERCENT:
        return ""
    return f"the nodes have {human_bytes(sum_bytes)}, the machine {human_bytes(total_bytes)}"


class ConfigurationSource(NamedTuple):
    """The source of the kubelet's configuration, and a line for each source that could not be read."""

    name: str = ""
    problems: tuple[str, ...] = ()


class Reading(msgspec.Struct, frozen=True):
    """All results of a reading."""

    observation: Observation
    """The same object as before if nothing has changed."""
    doubts: frozenset[str] = frozenset()
    """Why the answers of the kubelet are not true yet (topowise.attributes.confirmation)."""
    withheld: frozenset[tuple[str, str]] = frozenset()
    """Pods that are left out because the kubelet is admitting them."""
    due: float | None = None
    """Seconds until a next reading finds a change without any event."""
    problems: Mapping[Condition, str] = {}
    """Conditions of sources, with the detail."""
    configuration: ConfigurationSource = ConfigurationSource()


class _Sources(NamedTuple):
    """The answers of all sources; `version` is the kubelet's own, "" if it is unknown."""

    kubelet: KubeletConfiguration
    version: str
    admitted: AdmittedPods
    allocatable: Allocatable
    pods: tuple[PodAllocation, ...]
    hardware: HardwareReading
    files: FilesReading


class _Previous(NamedTuple):
    """The last observation and its inputs: `objects` are compared by identity, `values` by equality."""

    observation: Observation
    objects: tuple[object, ...]
    values: tuple[object, ...]


class _Claims:
    """Devices of resource claims, as far as List says which pods have them: otherwise all would look free."""

    def __init__(self, devices: Callable[[], Devices]) -> None:
        self._devices = devices
        self._is_listed = False

    def read(
        self, kubelet: KubeletConfiguration, version: str | None, pods: tuple[PodAllocation, ...]
    ) -> tuple[Devices, Mapping[Condition, str]]:
        """The devices, and the problem for which they are left out."""
        devices = self._devices()
        # The feature gate may be set by a flag, which no configuration file shows. A claim in List proves the gate.
        self._is_listed = self._is_listed or bool(devices and slices.allocated_claims(pods))
        if not devices or self._is_listed or lists_claims(version, kubelet.featureGates or {}):
            return devices, {}
        problem = f"kubelet {version} without the feature gate KubeletPodResourcesDynamicResources"
        return _NO_DEVICES, {Condition.NO_CLAIMS: problem}


class Observer:
    """Reads a node. The results of a reading are in the `Reading` that `observe` returns, and nowhere else."""

    def __init__(
        self,
        settings: ExporterConfiguration,
        podresources: PodResources,
        configuration: Source,
        clock: Callable[[], float] = clock.monotonic,
        devices: Callable[[], Devices] = lambda: _NO_DEVICES,
        hardware: Hardware | None = None,
    ) -> None:
        """`devices` returns the devices of resource claims that are known at the time."""
        self._podresources = podresources
        self._configuration = configuration
        self._clock = clock
        self._hardware = hardware or Hardware(settings)
        self._files = NodeFiles(settings.kubelet_root)
        self._claims = _Claims(devices)
        self._whole_pods = entry_owners.WholePods()
        self._admissions = Admissions()
        self._unlisted = UnlistedResources()
        self._empty_topologies = EmptyTopologies()
        self._kubelet = KubeletRestarts(settings.podresources_socket, clock)
        self._start = StartCheck(Path(settings.kubelet_root))
        self._previous: _Previous | None = None
        self._config: KubeletConfiguration | None = None

    def forget_machine(self) -> None:
        """Make the next reading scan the hardware."""
        self._hardware.forget()

    def forget_allocatable(self) -> None:
        """Make the next reading ask the kubelet for what is allocatable."""
        self._podresources.expire()

    def is_admitting(self) -> bool:
        """Whether the state files show a pod that no reading has seen, and nothing shows that its admission has ended.
        List would show a part of the pod. The kubelet's next write is an event."""
        if self._config is None:
            return False
        states = self._files.read(self._config).readable
        return self._admissions.has_begun(states, self._files.admitted_pods().proven)

    def remember(self, devices: tuple[Device, ...], unlisted: frozenset[str]) -> None:
        """Start from the last object of an earlier exporter: its devices, and uids of pods that List does not show."""
        self._kubelet.before = Before(devices=devices, unlisted=unlisted)
        self._unlisted.remember(unlisted)
        self._empty_topologies.remember(devices)

    async def observe(self, node_version: str | None = None) -> Reading:
        """Returns a reading. The kubelet's defaults depend on `node_version`, the version in the Node; None means the
        newest. Raises SourceError if the kubelet does not answer or its configuration was never readable."""
        sources = await self._read_sources(node_version)
        self._config = sources.kubelet
        files, directories = sources.files, sources.admitted.directories or _NONE
        pods = self._whole_pods.of(sources.pods, files.cpu, files.memory)
        admission = self._admissions.sort(pods, files.readable, sources.admitted.proven, self._clock())
        answer = _answer(sources, pods, admission.listed)
        doubts = self._kubelet.doubts(answer)
        no_nodes = self._devices_without_nodes(sources, is_complete=not doubts)
        alive = {device.resource for device in no_nodes}
        absent = tuple(device for device in self._kubelet.absent(answer) if device.resource not in alive)
        if doubts:
            self._podresources.expire()
        else:
            self._kubelet.believe(answer, absent)
        unlisted = self._unlisted.read(files, pods, admission, directories)
        devices, no_claims = self._claims.read(sources.kubelet, sources.version or node_version, pods)
        refused = self._refused_files(sources, is_true=not doubts)
        observation = self._observation(sources, admission, unlisted, no_nodes, absent, devices, refused)
        odd_memory = sources.hardware.memory_problem
        return Reading(
            observation,
            doubts,
            admission.withheld,
            admission.due,
            {
                **sources.admitted.problems,
                **({Condition.ODD_MEMORY: odd_memory} if odd_memory else {}),
                **files.problems,
                **no_claims,
            },
            ConfigurationSource(self._configuration.name, self._configuration.problems),
        )

    async def _read_sources(self, node_version: str | None) -> _Sources:
        kubelet = await self._configuration.read(node_version)
        version = self._configuration.version
        admitted = self._files.admitted_pods()
        allocatable = await self._podresources.allocatable()
        pods = await self._podresources.pods()
        return _Sources(kubelet, version, admitted, allocatable, pods, self._hardware.read(), self._files.read(kubelet))

    def _devices_without_nodes(self, sources: _Sources, *, is_complete: bool) -> tuple[Device, ...]:
        """Returns the devices with an empty topology, which the answer about allocatable resources lacks."""
        devices = sources.files.devices
        registered = {} if devices is None else devices.registered
        if self._empty_topologies.is_new(registered):
            # The next reading compares this checkpoint with a newer answer.
            self._podresources.expire()
        return self._empty_topologies.read(registered, sources.allocatable, is_complete=is_complete)

    def _refused_files(self, sources: _Sources, *, is_true: bool) -> Mapping[str, str]:
        """Why the kubelet would not start again, by state file; the last answer while the kubelet is doubted."""
        if self._files.is_mounted and is_true:
            machine = sources.hardware.machine
            return self._start.compare(
                sources.kubelet, machine, sources.allocatable, self._clock(), sources.version or None
            )
        return {} if self._previous is None else self._previous.observation.refused_state_files

    def _observation(
        self,
        sources: _Sources,
        admission: Sorted,
        unlisted: Unlisted,
        no_nodes: tuple[Device, ...],
        absent: tuple[Device, ...],
        devices: Devices,
        refused: Mapping[str, str],
    ) -> Observation:
        files, hardware, previous = sources.files, sources.hardware, self._previous
        objects = (
            hardware.machine,
            sources.allocatable,
            admission.pods,
            admission.admitting,
            devices,
            files.cpu,
            files.memory,
            files.devices,
        )
        # Directories of pods change `unlisted` without any other change.
        values = (sources.kubelet, sources.version, refused, unlisted, no_nodes, absent)
        if previous is not None and all(map(operator.is_, previous.objects, objects)) and previous.values == values:
            return previous.observation
        last = None if previous is None else previous.observation.allocations
        allocatable = sources.allocatable
        if no_nodes:
            allocatable = msgspec.structs.replace(allocatable, devices=tuple(sorted((*allocatable.devices, *no_nodes))))
        allocations = Allocations(
            allocatable,
            admission.pods,
            unlisted.cpus,
            _free_memory(files, admission, last),
            unlisted.devices,
            admission.admitting,
            absent,
            entry_owners.free_cpus(files.readable.cpu, admission.pods, unlisted.live, sources.allocatable.cpus)
            if files.readable.cpu is not None and sources.allocatable.cpus
            else None,
        )
        observation = Observation(
            hardware.machine, sources.kubelet, allocations, devices, sources.version, refused, hardware.boot_id
        )
        if previous is not None and previous.observation == observation:
            observation = previous.observation
        self._previous = _Previous(observation, objects, values)
        return observation


def _answer(sources: _Sources, pods: tuple[PodAllocation, ...], listed: frozenset[str]) -> KubeletAnswer:
    """Returns the kubelet's answers and the files beside them, as startup.py compares them."""
    files, directories = sources.files, sources.admitted.directories
    cpu, memory, devices = files.readable
    cpu_holders = _NONE if cpu is None else frozenset(cpu.holders)
    memory_holders = _NONE if memory is None else frozenset(memory.holders)
    existing = directories or _NONE
    return KubeletAnswer(
        config=sources.kubelet,
        allocatable=sources.allocatable,
        pods=pods,
        listed=listed,
        living=existing & (cpu_holders | memory_holders),
        directories=existing,
        with_devices=existing & (_NONE if devices is None else devices.holders.keys()),
        registered=_NONE if devices is None else frozenset(devices.registered),
        has_cpu_manager=files.has_cpu_manager,
        has_memory_manager=files.has_memory_manager,
        has_files=directories is not None,
    )


def _free_memory(files: FilesReading, admission: Sorted, last: Allocations | None) -> FreeMemory | None:
    """While the state file cannot be read, the last amounts stay valid if the same pods have the same memory."""
    if files.memory is None:
        return None
    if files.readable.memory is None:
        is_same = last is not None and _memory_of(last.pods) == _memory_of(admission.pods)
        return last.free_memory if last is not None and is_same else None
    live = entry_owners.live_memory_holders(files.memory, admission.pods, admission.whole)
    return entry_owners.exact_memory(files.memory, live)


def _memory_of(pods: Iterable[PodAllocation]) -> list[tuple[str, str, tuple[MemoryBlock, ...]]]:
    return sorted((pod.namespace, pod.name, pod.memory) for pod in pods if pod.memory)
