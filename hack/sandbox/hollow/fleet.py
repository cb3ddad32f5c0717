"""Hollow nodes, each with machine, kubelet and exporter, and a fleet of them behind a watch of all pods."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Self

import msgspec

from sandbox import machines
from sandbox.hollow.reporter import Reporter, Reporting
from sandbox.kubelet.lifecycle import Lifecycle, Refused
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.pace import Pace, Startup
from sandbox.kubelet.registration import Taints, register
from sandbox.kubelet.state_files import Root
from topowise import pods
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise.kubeletconfig import KubeletConfiguration, with_defaults
from topowise_exporter.machine import Cpu, Machine, NumaNode, PciFunction
from topowise_scheduler.kubelet import Admission, DevicePlugin
from topowise_scheduler.kubelet.device_manager import Chooser


def scanned(machine: machines.Machine) -> Machine:
    """Returns the Machine as the exporter would read it from the tree that `machines.write_tree` writes. The tree is
    some thousand files, which is more work than everything else a hollow node does; a test compares both."""
    cpus = machines.layout(machine)
    online = tuple(cpu.id for cpu in cpus if cpu.id not in machine.offline)
    running = frozenset(online)
    cores = Counter(node for node, _ in {(cpu.node, cpu.threads) for cpu in cpus if cpu.id in running})
    return Machine(
        nodes=tuple(
            _node(machine, rank, [cpu for cpu in cpus if cpu.node == node.id], running)
            for rank, node in enumerate(machine.nodes)
        ),
        cpus=tuple(_cpu(cpu, running, cores[cpu.node]) for cpu in cpus if cpu.id in running),
        pci=tuple(
            sorted((_function(machine, function) for function in machine.pci), key=lambda function: function.address)
        ),
        online=online,
        present=tuple(cpu.id for cpu in cpus),
        possible=tuple(cpu.id for cpu in cpus),
        offline=tuple(sorted(machine.offline)),
        isolated=(),
        memory_bytes=sum(node.memory_bytes for node in machine.nodes),
    )


def _node(machine: machines.Machine, rank: int, cpus: list[machines.Cpu], running: frozenset[int]) -> NumaNode:
    node = machine.nodes[rank]
    return NumaNode(
        id=node.id,
        cpus=tuple(cpu.id for cpu in cpus if cpu.id in running),
        memory_bytes=node.memory_bytes,
        hugepages=dict(sorted(node.hugepages.items())),
        distances={neighbour.id: machine.distances[rank][at] for at, neighbour in enumerate(machine.nodes)},
        sockets=tuple(sorted({cpu.socket for cpu in cpus if cpu.id in running})),
    )


def _cpu(cpu: machines.Cpu, running: frozenset[int], cores_of_node: int) -> Cpu:
    threads = tuple(sorted(running.intersection(cpu.threads)))
    l3 = None if cpu.l3 is None else tuple(sorted(running.intersection(cpu.l3)))
    return Cpu(
        id=cpu.id,
        node=cpu.node,
        socket=cpu.socket,
        die=0,
        core=threads[0],
        core_id=cpu.core_id,
        threads=threads,
        l3=l3,
        l3_id=None if l3 is None else l3[0],
        # A cache of a whole NUMA node is none of its cores'.
        uncore=None if l3 is None or len(l3) == cores_of_node * len(threads) else l3[0],
        kind="",
    )


def _function(machine: machines.Machine, function: machines.Pci) -> PciFunction:
    return PciFunction(
        address=function.address,
        numa_node=function.node,
        class_code=function.class_code,
        vendor=function.vendor,
        device=function.device,
        driver=function.driver,
        physfn=function.physfn,
        path=machines.above(machine, function),
    )


class HollowNode:
    """`directory` is the kubelet's root. Raises KubeletStartError if a kubelet would not start like this."""

    def __init__(
        self,
        api: Api,
        name: str,
        machine: Machine,
        config: KubeletConfiguration,
        directory: Path,
        *,
        pace: Pace,
        reporting: Reporting,
        devices: Sequence[DevicePlugin] | None = None,
        refused: Refused | None = None,
        seed: int = 0,
        chooser: Chooser | None = None,
    ) -> None:
        self._api = api
        self.name = name
        self.root = directory
        self.config = with_defaults(config)
        self.kubelet = EmulatedNode(machine, self.config, devices, chooser=chooser)
        random = Random(f"{name} {seed}")
        self.reporter = Reporter(
            api, name, machine, self.config, self.kubelet, directory, reporting=reporting, random=random
        )
        root = Root(directory)
        root.make_socket_file()
        self.lifecycle = Lifecycle(
            api, name, self.kubelet, root, self.reporter.note, pace=pace, refused=refused, random=random
        )
        self.lifecycle.checkpoint(devices=True)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing will happen by itself, and everything is published."""
        return not self.lifecycle.is_busy and self.reporter.is_current

    async def register(self, taints: Taints = ()) -> None:
        """Makes the Node object, with these taints (`registerWithTaints`)."""
        await register(self._api, self.name, self.kubelet, taints)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.lifecycle.run(), name=f"{self.name} kubelet")
            tasks.create_task(self.reporter.run(), name=f"{self.name} exporter")

    async def restart(self, startup: Startup) -> None:
        """Restarts the kubelet's process; returns when the kubelet knows its pods."""
        await self.lifecycle.restart(startup)


# State files are written at every admission; in memory that costs next to nothing.
_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Refusal(msgspec.Struct, frozen=True):
    """A pod that a kubelet would not have; `at` is the event loop's time."""

    node: str
    pod: pods.Pod
    decision: Admission
    at: float


class Fleet:
    """The nodes by name. `add` them, then keep the block open: `async with fleet: ...`. `refused` is told at once."""

    def __init__(
        self,
        api: Api,
        *,
        pace: Pace | None = None,
        reporting: Reporting | None = None,
        refused: Callable[[Refusal], None] | None = None,
        seed: int = 0,
    ) -> None:
        self._api = api
        self._pace = pace or Pace()
        self._reporting = reporting or Reporting()
        self._refused = refused
        self._seed = seed
        self._directory = tempfile.TemporaryDirectory(prefix="topowise-fleet-", dir=_MEMORY)
        self._running: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._held: list[tuple[float, EventType, pods.Pod]] | None = None
        self.nodes: dict[str, HollowNode] = {}
        self.refusals: list[Refusal] = []

    def add(
        self,
        name: str,
        machine: machines.Machine | Machine,
        config: KubeletConfiguration,
        *,
        devices: Sequence[DevicePlugin] | None = None,
        reporting: Reporting | None = None,
        chooser: Chooser | None = None,
    ) -> HollowNode:
        """Adds a node with a described or scanned machine. `devices` None: the devices of its PCI functions. Raises
        KubeletStartError if a kubelet would not start with this configuration."""
        directory = Path(self._directory.name) / name
        directory.mkdir()
        node = self.nodes[name] = HollowNode(
            self._api,
            name,
            scanned(machine) if isinstance(machine, machines.Machine) else machine,
            config,
            directory,
            pace=self._pace,
            reporting=reporting or self._reporting,
            devices=devices,
            refused=lambda pod, decision: self._note(Refusal(name, pod, decision, _now())),
            seed=self._seed,
            chooser=chooser,
        )
        return node

    async def join(self, name: str, machine: machines.Machine, config: KubeletConfiguration, taints: Taints) -> None:
        """Adds a node while the fleet runs. Returns when the node is Ready, before its exporter's first sync."""
        assert self._group is not None
        node = self.add(name, machine, config)
        await node.register(taints)
        node.lifecycle.replace([])
        self._group.create_task(node.run(), name=name)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing will happen by itself anywhere, and everything is published."""
        return all(node.is_quiet for node in self.nodes.values())

    async def __aenter__(self) -> Self:
        """Returns when every node is registered and has reported once."""
        for node in self.nodes.values():
            await node.register()
        self._running = asyncio.create_task(self._run(), name="fleet")
        while not all(node.reporter.written for node in self.nodes.values()):
            self.check()
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._directory.cleanup()

    def check(self) -> None:
        """Raises what ended the fleet, if anything did."""
        if self._running is not None and self._running.done():
            self._running.result()

    def hold(self) -> None:
        """From now on no node does anything: what the watch says is kept for later."""
        self._held = []

    @property
    def held(self) -> list[tuple[float, EventType, pods.Pod]]:
        """What is kept, with the event loop's time at which it came."""
        return self._held or []

    def release(self) -> None:
        """The nodes do what they would have done, in the order of the events."""
        gate, self._held = self.held, None
        for _, event, item in gate:
            self.apply(event, item)

    # As Consumer of all pods

    def replace(self, items: list[pods.Pod]) -> None:
        """Everything there is."""
        if self._held is not None:
            self._held += [(_now(), "ADDED", item) for item in items]
            return
        by_node: dict[str, list[pods.Pod]] = {}
        for item in items:
            by_node.setdefault(item.spec.nodeName, []).append(item)
        for name, node in self.nodes.items():
            node.lifecycle.replace(by_node.get(name, []))

    def apply(self, event: EventType, item: pods.Pod) -> None:
        """As Consumer: applies a change to its node."""
        if self._held is not None:
            self._held.append((_now(), event, item))
            return
        node = self.nodes.get(item.spec.nodeName)
        if node is not None:
            node.lifecycle.put(event, item)

    def _note(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)
        if self._refused is not None:
            self._refused(refusal)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._group = tasks
            tasks.create_task(Reflector(self._api, "/api/v1/pods", pods.decode, self).run(), name="fleet watch")
            for node in self.nodes.values():
                tasks.create_task(node.run(), name=node.name)


def _now() -> float:
    return asyncio.get_running_loop().time()
