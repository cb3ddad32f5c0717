"""The exporter of a hollow node: topowise-exporter's own code, from podresources bytes and state files to the object.

A change is read after `wait` and published `lag` later, which emulates an exporter that polls seldom, and an exporter
with slow writes. Only changes are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import msgspec

from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.pace import Seconds
from sandbox.kubelet.podresources import PodResourcesServicer
from topowise import nrt
from topowise.attributes import confirmation
from topowise.errors import ApiError, SourceError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.backoff import Backoff
from topowise.runtime.config import API_VERSION
from topowise.runtime.log import kv
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet import entry_owners, state_files
from topowise_exporter.kubelet.allocations import Allocations
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.kubelet.settings import Source
from topowise_exporter.kubelet.settings.sources import Kubelet
from topowise_exporter.kubelet.state_files import StateFile
from topowise_exporter.machine import Machine
from topowise_exporter.observe import Hardware, HardwareReading, Observer, Reading
from topowise_exporter.publish import numatopology, topology
from topowise_exporter.publish.topology import Observation, Publishing
from topowise_exporter.publish.writer import Writer, same_topology

log = logging.getLogger(__name__)

_REPORTS: Final = 100


class Reporting(msgspec.Struct, frozen=True):
    """Seconds, each drawn evenly between two bounds: from a change to the sync after it, and from there to the object.

    `sees`: "exporter" reads as our exporter does; "halves" publishes whatever the kubelet shows at the moment, as other
    exporters do, and also ours up to 0.9. What is `published` beyond amounts; the other exporters have no holdings.
    `numatopology`: Volcano's object is written too. `interval`: seconds without any event, after which it is synced all
    the same; thousands of nodes that do so take the cores from what is measured.
    """

    wait: Seconds = (0.2, 0.2)
    lag: Seconds = (0.0, 0.0)
    sees: Literal["exporter", "halves"] = "exporter"
    published: Publishing = Publishing()
    numatopology: bool = False
    interval: float = 1.0


class Reporter:
    """Publishes a node whose kubelet has its files in `root`."""

    def __init__(
        self,
        api: Api,
        name: str,
        machine: Machine,
        config: KubeletConfiguration,
        node: EmulatedNode,
        root: Path,
        *,
        reporting: Reporting,
        random: Random,
    ) -> None:
        self._name = name
        self._reporting = reporting
        self._random = random
        socket = root / "pod-resources/kubelet.sock"
        podresources = _Directly(node, socket)
        self._looker: Observer | _Halves
        self._doubts: frozenset[str] = frozenset()
        if reporting.sees == "exporter":
            self._looker = _exporter(machine, config, podresources, root, socket)
        else:
            self._looker = _Halves(machine, config, podresources, root)
        self._writers: list[Writer[Any]] = [
            Writer(api, paths.path(nrt.PATH, name), same_topology, nrt.decode, nrt.KIND, _now, random.uniform)
        ]
        if reporting.numatopology:
            path = f"{numatopology.PATH}/{name}"
            self._writers.append(Writer(api, path, numatopology.same, numatopology.decode, numatopology.KIND))
        self._stale = asyncio.Event()
        self._is_writing = False
        # The daemon too uses its writer serially.
        self._writing = asyncio.Lock()
        self._published: tuple[Observation, frozenset[str]] | None = None
        self._true: nrt.NodeResourceTopology | None = None
        self._lacks: frozenset[str] = frozenset()
        self.written = 0
        self.reports: deque[tuple[float, float]] = deque(maxlen=_REPORTS)
        """When the node was looked at and when that was published, by the event loop's clock; newest last."""
        self.marks: deque[tuple[float, float]] = deque(maxlen=_REPORTS)
        """The same of looks at a kubelet that was not to be believed."""
        self.looked: Callable[[], None] = _nothing
        """Called when the node has been looked at, with an answer that is believed, before it is published."""

    @property
    def slowest(self) -> float:
        """Seconds from a change to the object, at most, as far as they are drawn."""
        return self._reporting.wait[1] + self._reporting.lag[1]

    @property
    def is_current(self) -> bool:
        """Whether the published object tells what the node holds, and has no doubt of it."""
        return not (self._stale.is_set() or self._is_writing or self._doubts) and self._published is not None

    def note(self) -> None:
        """The kubelet shows something else than before."""
        self._stale.set()

    async def run(self) -> None:
        """Publishes until cancelled, at first without any delay."""
        await self._publish(lag=0.0)
        while True:
            wait = self._random.uniform(*self._reporting.wait)
            # Not wait_for: that of Python 3.11 drops a cancellation that comes as the node changes.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._reporting.interval, wait)):
                    await self._stale.wait()
            if self._stale.is_set():
                await asyncio.sleep(wait)
            await self._publish(lag=self._random.uniform(*self._reporting.lag))

    async def observe(self) -> Observation:
        """What an exporter would see now. Raises SourceError if it would not believe it."""
        reading = await self._looker.observe()
        self._doubts = reading.doubts
        if not confirmation.of_devices_only(reading.doubts):
            raise SourceError("kubelet", f"not to be believed yet: {', '.join(sorted(reading.doubts))}")
        return reading.observation

    async def check(self) -> None:
        """Writes a document as the daemon does: a change by another writer is undone."""
        async with self._writing:
            is_undone = await self._writers[0].check() is not None
        if is_undone:
            self._published = None
            self._stale.set()

    async def _publish(self, *, lag: float) -> None:
        self._is_writing = True
        self._stale.clear()
        loop = asyncio.get_running_loop()
        now = loop.time()
        try:
            seen = await self.observe()
        except SourceError as exc:
            log.info("Nothing to publish", extra=kv(node=self._name, why=exc))
            await self._mark(lag)
            self.marks.append((now, loop.time()))
        else:
            self.looked()
            if (seen, self._doubts) != self._published:
                await self._publish_seen(seen, lag)
            self.reports.append((now, loop.time()))
        self._is_writing = False

    async def _mark(self, lag: float) -> None:
        """As the daemon does: the last true object says why it is not confirmed."""
        if self._true is None or not self._doubts:
            return
        await asyncio.sleep(lag)
        await self._write(self._writers[0], topology.unconfirmed(self._true, self._doubts | self._lacks))
        self._published = None

    async def _publish_seen(self, seen: Observation, lag: float) -> None:
        objects_of_node = topology.build(self._name, seen, self._reporting.published, Exclusions())
        if objects_of_node.problems:
            log.warning("The numbers do not add up", extra=kv(node=self._name, why="; ".join(objects_of_node.problems)))
        reasons = self._doubts
        self._true, self._lacks = objects_of_node.topology, reasons
        objects: list[object] = [objects_of_node.topology]
        if self._reporting.numatopology:
            for_volcano = numatopology.observed(self._name, seen, Exclusions())
            objects.append(numatopology.stamped(for_volcano, int(time.time())))
        if reasons:
            # As the daemon does.
            objects = [topology.unconfirmed(objects_of_node.topology, reasons)]
        await asyncio.sleep(lag)
        is_there = [
            await self._write(writer, document) for writer, document in zip(self._writers, objects, strict=False)
        ]
        # What was held back is tried again, as the daemon does.
        self._published = (seen, reasons) if all(is_there) else None

    async def _write(self, writer: Writer[Any], document: object) -> bool:
        """Returns whether the server has it; False if it is to be tried again later."""
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                async with self._writing:
                    outcome = await writer.publish(document)
                self.written += outcome == "written"
                return outcome != "held-back"
            except ApiError as exc:
                log.warning("Cannot publish", extra=kv(node=self._name, why=exc))
                await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))


class _KnownHardware(Hardware):
    """A machine that is known, and never scanned."""

    def __init__(self, settings: ExporterConfiguration, machine: Machine) -> None:
        super().__init__(settings)
        self._machine = machine

    def read(self) -> HardwareReading:
        return HardwareReading(self._machine, self._boot_id)


def _exporter(
    machine: Machine, config: KubeletConfiguration, podresources: PodResources, root: Path, socket: Path
) -> Observer:
    """Returns the real observer, of a machine and a configuration that are known."""
    settings = ExporterConfiguration(apiVersion=API_VERSION, kubelet_root=str(root), podresources_socket=str(socket))
    return Observer(settings, podresources, _Known(config), _now, hardware=_KnownHardware(settings, machine))


class _Known(Source):
    """A source of the configuration that never fails."""

    def __init__(self, config: KubeletConfiguration) -> None:
        super().__init__(Kubelet())
        self._config = config

    async def read(self, kubelet_version: str | None = None) -> KubeletConfiguration:
        return self._config


class _Halves:
    """Believes whatever the kubelet shows, each part for itself."""

    def __init__(self, machine: Machine, config: KubeletConfiguration, podresources: PodResources, root: Path) -> None:
        self._machine = machine
        self._config = config
        self._podresources = podresources
        self._cpu_state = StateFile(root / state_files.CPU_STATE, state_files.parse_cpu_state)
        self._memory_state = StateFile(root / state_files.MEMORY_STATE, state_files.parse_memory_state)

    async def observe(self) -> Reading:
        allocatable = await self._podresources.allocatable()
        pods = await self._podresources.pods()
        cpu, memory = self._cpu_state.read(), self._memory_state.read()
        unlisted, free_cpus = {}, None
        if cpu is not None:
            live = entry_owners.listed_uids(cpu, pods)
            unlisted = entry_owners.unlisted_cpus(cpu, pods, live)
            free_cpus = entry_owners.free_cpus(cpu, pods, live, allocatable.cpus)
        free_memory = (
            None
            if memory is None
            else entry_owners.exact_memory(memory, entry_owners.live_memory_holders(memory, pods))
        )
        allocations = Allocations(allocatable, pods, unlisted, free_memory, free_cpus=free_cpus)
        return Reading(Observation(self._machine, self._config, allocations))


class _Directly(PodResources):
    """The exporter's client with the bytes of the answers, but without a connection: the socket is a plain file."""

    def __init__(self, node: EmulatedNode, socket: Path) -> None:
        super().__init__(str(socket), clock=_now)
        self._node = node

    async def _call(self, method: str) -> bytes:
        holdings = self._node.holdings()
        servicer = PodResourcesServicer(lambda: holdings)
        answer = await getattr(servicer, method)(None, None)
        encoded: bytes = answer.SerializeToString(deterministic=True)
        return encoded


def _nothing() -> None:
    return


def _now() -> float:
    return asyncio.get_running_loop().time()
