"""The exporter of a hollow node: the real one's pure parts, from podresources bytes to the object, without its loop.

A change is looked at after `wait` and published `lag` later, so that both kinds of staleness can be had: an exporter
that polls seldom, and one whose writes are slow. Nothing is written that says nothing new.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from sandbox.kubelet.lifecycle import Change, Seconds
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.podresources import PodResourcesServicer
from sandbox.kubelet.state_files import StateFiles
from topowise import numatopology
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import kv
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet import holders, state_files
from topowise_exporter.kubelet.model import Allocations
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.kubelet.state_files import StateFile
from topowise_exporter.machine import Machine
from topowise_exporter.publish import numatopology as volcano
from topowise_exporter.publish import topology
from topowise_exporter.publish.topology import Observation, Publishing
from topowise_exporter.publish.writer import Writer, topology_writer

log = logging.getLogger(__name__)

_REPORTS: Final = 100


class Reporting(msgspec.Struct, frozen=True):
    """Seconds, each drawn evenly between two bounds: from a change to the look at it, and from there to the object.
    `numatopology`: Volcano's object is written too."""

    wait: Seconds = (0.2, 0.2)
    lag: Seconds = (0.0, 0.0)
    numatopology: bool = False


class Reporter:
    """Publishes one node. `directory` is for its state files."""

    def __init__(
        self,
        api: Api,
        name: str,
        machine: Machine,
        config: KubeletConfiguration,
        node: EmulatedNode,
        directory: Path,
        *,
        reporting: Reporting,
        random: Random,
    ) -> None:
        self._name = name
        self._machine = machine
        self._config = config
        self._node = node
        self._reporting = reporting
        self._random = random
        self._files = StateFiles(directory)
        self._cpu_state = StateFile(directory / state_files.CPU_STATE, state_files.parse_cpu_state)
        self._memory_state = StateFile(directory / state_files.MEMORY_STATE, state_files.parse_memory_state)
        self._podresources = _Directly(node)
        self._writers: list[Writer[Any]] = [topology_writer(api, name)]
        if reporting.numatopology:
            path = f"{numatopology.PATH}/{name}"
            self._writers.append(Writer(api, path, volcano.same, numatopology.decode, numatopology.KIND))
        self._stale = asyncio.Event()
        self._is_writing = False
        self.written = 0
        self.reports: deque[tuple[float, float]] = deque(maxlen=_REPORTS)
        """When the node was looked at and when that was published, monotonic; newest last."""

    @property
    def is_current(self) -> bool:
        """Whether the published object tells what the node holds."""
        return not (self._stale.is_set() or self._is_writing)

    def note(self, change: Change) -> None:
        """The holdings have changed. The kubelet writes its state when it admits; the dead stay in it until then."""
        if change.admitted:
            self._files.write(
                self._node.holdings(),
                cpu_policy=self._node.cpu_policy,
                memory_policy=self._node.memory_policy,
                admitted=True,
            )
        self._stale.set()

    async def run(self) -> None:
        """Publishes until cancelled, at first without any delay."""
        self.note(Change(admitted=True))
        await self._publish(lag=0.0)
        while True:
            await self._stale.wait()
            await asyncio.sleep(self._random.uniform(*self._reporting.wait))
            await self._publish(lag=self._random.uniform(*self._reporting.lag))

    async def look(self) -> Observation:
        """What an exporter would see now."""
        allocatable = await self._podresources.allocatable()
        pods = await self._podresources.pods()
        cpu, memory = self._cpu_state.read(), self._memory_state.read()
        unlisted = {} if cpu is None else holders.unlisted_cpus(cpu, pods, holders.listed_uids(cpu, pods))
        books = None if memory is None else holders.exact_memory(memory, holders.live_memory_holders(memory, pods))
        return Observation(self._machine, self._config, Allocations(allocatable, pods, unlisted, books))

    async def _publish(self, *, lag: float) -> None:
        self._is_writing = True
        self._stale.clear()
        now = time.monotonic()
        seen = await self.look()
        made = topology.build(self._name, seen, Publishing(), Exclusions())
        if made.problems:
            log.warning("The numbers do not add up", extra=kv(node=self._name, why="; ".join(made.problems)))
        objects: list[object] = [made.topology]
        if self._reporting.numatopology:
            for_volcano = volcano.observed(self._name, seen, Exclusions())
            objects.append(numatopology.stamped(for_volcano, int(time.time())))
        await asyncio.sleep(lag)
        for writer, wanted in zip(self._writers, objects, strict=True):
            await self._write(writer, wanted)
        self.reports.append((now, time.monotonic()))
        self._is_writing = False

    async def _write(self, writer: Writer[Any], wanted: object) -> None:
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                self.written += await writer.publish(wanted) == "written"
                return
            except ApiError as exc:
                log.warning("Cannot publish", extra=kv(node=self._name, why=exc))
                await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))


class _Directly(PodResources):
    """The exporter's client with the bytes of the answers, but without a socket to get them by."""

    def __init__(self, node: EmulatedNode) -> None:
        super().__init__(f"podresources of {node}")
        self._node = node

    async def _call(self, method: str) -> bytes:
        holdings = self._node.holdings()
        servicer = PodResourcesServicer(lambda: holdings)
        answer = await getattr(servicer, method)(None, None)
        told: bytes = answer.SerializeToString(deterministic=True)
        return told
