"""The exporter as a process: how soon a change on the node is on the API server, and what watching costs.

A kubelet with 250 pods on a machine of 8 NUMA nodes, 8 GPUs and 64 virtual functions is emulated by its socket and
state files. The API server's own write time is measured in the same run with the same object, and taken off.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import yaml

from bench.figures import Figure, spread
from demo.cluster import CRD
from sandbox import machines
from sandbox.kubelet import podresources
from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings
from sandbox.kubelet.state_files import StateFiles
from topowise import nrt
from topowise.errors import ApiError
from topowise.kube import credentials
from topowise.kube.api import APPLY_PATCH, Api
from topowise.kube.reflector import EventType, Reflector

GIB = 1 << 30
NODE = "bench"
ROUNDS = 100
IDLE_S = float(os.environ.get("BENCH_IDLE_S", "20"))

MACHINE = machines.Machine(
    nodes=tuple(machines.Node(number, 64 * GIB, socket=number // 4, cores=64) for number in range(8)),
    distances=tuple(tuple(10 if a == b else 12 if a // 4 == b // 4 else 21 for b in range(8)) for a in range(8)),
    pci=tuple(
        function
        for number in range(8)
        for function in (
            *machines.gpu(f"0000:{0x20 + number:02x}:00.0", number, f"0000:{0x10 + number:02x}:00.0"),
            *machines.nic(f"0000:{0x40 + number:02x}:00.0", number, f"0000:{0x30 + number:02x}:00.0", 7),
        )
    ),
)
CPUS = {node: [cpu.id for cpu in machines.layout(MACHINE) if cpu.node == node] for node in range(8)}


class Kubelet:
    """Socket and state files of a node with many pods."""

    def __init__(self, root: Path, pods: int) -> None:
        self._files = StateFiles(root)
        self._free = {node: list(cpus[2:]) for node, cpus in CPUS.items()}
        self._pods: dict[str, PodHoldings] = {}
        for number in range(pods):
            self._put(f"pod-{number}", number % 8, exclusive=number < 80)
        self._devices: dict[tuple[str, str], tuple[int, ...] | None] = {}
        for node in range(8):
            self._devices["nvidia.com/gpu", f"gpu-{node}"] = (node,)
            for vf in range(8):
                self._devices["intel.com/e810_vf", f"vf-{node}-{vf}"] = (node,)
        self._now = self._look()
        self._write(admitted=True)

    def holdings(self) -> NodeHoldings:
        return self._now

    def _look(self) -> NodeHoldings:
        return NodeHoldings(
            allocatable_cpus=frozenset(cpu for cpus in CPUS.values() for cpu in cpus[2:]),
            allocatable_memory=tuple(Block("memory", (node,), 60 * GIB) for node in range(8)),
            shared_cpus=frozenset(cpu for cpus in self._free.values() for cpu in cpus),
            device_nodes=self._devices,
            pods=tuple(self._pods.values()),
        )

    def admit(self, name: str, node: int) -> float:
        """A pod takes CPUs and memory: state files are written. Returns when they were begun."""
        self._put(name, node, exclusive=True)
        self._change()
        begun = time.perf_counter()
        self._write(admitted=True)
        return begun

    def release(self, name: str) -> None:
        """A pod goes: no file is written, as by the real kubelet's memory and device manager."""
        for container in self._pods.pop(name).containers:
            for cpu in container.cpus:
                self._free[next(node for node, cpus in CPUS.items() if cpu in cpus)].append(cpu)
        self._change()

    def _change(self) -> None:
        # The emulated kubelet's own time is not the exporter's: its answers are ready before anybody can ask.
        self._now = self._look()
        podresources.prepare(self._now)

    def _put(self, name: str, node: int, *, exclusive: bool) -> None:
        main = ContainerHoldings("main", "app")
        if exclusive:
            cpus = frozenset(self._free[node].pop() for _ in range(2))
            main = ContainerHoldings("main", "app", cpus, (Block("memory", (node,), GIB),))
        self._pods[name] = PodHoldings(name, "default", name, (main, ContainerHoldings("side", "app")))

    def _write(self, *, admitted: bool) -> None:
        self._files.write(self.holdings(), cpu_policy="static", memory_policy="None", admitted=admitted)


class Arrivals:
    """A consumer that knows when the node's object last changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.at = 0.0

    def replace(self, items: list[nrt.NodeResourceTopology]) -> None:
        if items:
            self.apply("ADDED", items[0])

    def apply(self, event: EventType, item: nrt.NodeResourceTopology) -> None:
        self.at = time.perf_counter()
        self._changed.set()

    async def next(self, since: float, limit: float = 10.0) -> float:
        """Seconds from `since` to the first change after it."""
        async with asyncio.timeout(limit):
            while self.at <= since:
                self._changed.clear()
                await self._changed.wait()
        return self.at - since


async def measure() -> list[Figure]:
    """All figures of the exporter."""
    with tempfile.TemporaryDirectory(prefix="topowise-bench-") as directory:
        root = Path(directory)
        kubelet = Kubelet(root / "kubelet", pods=250)
        server = await podresources.start(root / "kubelet/pod-resources/kubelet.sock", kubelet.holdings)
        try:
            async with _api_server(root) as api:
                arrivals = Arrivals()
                watch = asyncio.create_task(Reflector(api, nrt.PATH, nrt.decode, arrivals).run())
                try:
                    return await _measure(root, kubelet, api, arrivals)
                finally:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
        finally:
            await server.stop(None)


async def _measure(root: Path, kubelet: Kubelet, api: Api, arrivals: Arrivals) -> list[Figure]:
    await api.request("POST", "/api/v1/nodes", body=msgspec.json.encode({"metadata": {"name": NODE}}))
    async with _exporter(root) as process:
        started = time.perf_counter()
        first = await arrivals.next(started)
        await asyncio.sleep(1)
        writes = await _write_times(api, arrivals)
        own = statistics.median(writes)
        # The object as the benchmark left it is not what the exporter wrote; let it find out by a change.
        admissions = await _admissions(kubelet, arrivals)
        releases = await _releases(kubelet, arrivals)
        figures = [Figure("start to first publish", round(first, 3), "s", 1.0)]
        figures += [Figure("the API server's own write and watch, p50", round(own * 1e3, 2), "ms")]
        figures += spread("admission to API server, beyond that", [(x - own) * 1e3 for x in admissions], "ms", 10, 50)
        figures += spread("release without a file to API server", [x * 1e3 for x in releases], "ms", None, 1100)
        return figures + await _idle(process, api)


async def _idle(process: psutil.Process, api: Api) -> list[Figure]:
    before = (await _version(api), _cpu(process))
    started = time.perf_counter()
    await asyncio.sleep(IDLE_S)
    took = time.perf_counter() - started
    after = (await _version(api), _cpu(process))
    share = (after[1] - before[1]) / took
    return [
        Figure(f"writes in {IDLE_S:g} idle seconds", 0 if after[0] == before[0] else 1, "writes", 0),
        Figure("CPU while idle, a look a second", round(100 * share, 2), "% of a core", 0.5),
        Figure("CPU of a look, 250 pods x 2 containers, 8 zones", round(share * 1e3, 2), "ms", 10),
        Figure("resident memory", round(process.memory_info().rss / (1 << 20), 1), "MiB", 60),
    ]


async def _admissions(kubelet: Kubelet, arrivals: Arrivals) -> list[float]:
    times = []
    for number in range(ROUNDS):
        # Apart by more than the limit of looks, as admissions on one node are.
        await asyncio.sleep(0.15)
        since = kubelet.admit(f"new-{number}", number % 8)
        times.append(await arrivals.next(since))
        kubelet.release(f"new-{number}")
        # What the release leaves is published with the next look and is not measured here.
        await asyncio.sleep(1.1)
        if number >= ROUNDS // 4:
            break
    return times


async def _releases(kubelet: Kubelet, arrivals: Arrivals) -> list[float]:
    times = []
    for number in range(10):
        kubelet.admit(f"short-{number}", number % 8)
        await asyncio.sleep(0.3 + 0.07 * number)
        since = time.perf_counter()
        kubelet.release(f"short-{number}")
        times.append(await arrivals.next(since))
    return times


async def _write_times(api: Api, arrivals: Arrivals) -> list[float]:
    """The same object applied by ourselves, each time with another annotation: request, write, and watch event."""
    path = f"{nrt.PATH}/{NODE}"
    held = msgspec.json.decode(await api.request("GET", path))
    times = []
    for number in range(30):
        body = {
            "apiVersion": nrt.API_VERSION,
            "kind": nrt.KIND,
            "metadata": {"name": NODE, "annotations": {"bench": str(number)}},
            "zones": held["zones"],
            "attributes": held["attributes"],
        }
        since = time.perf_counter()
        query = {"fieldManager": "topowise-exporter", "force": "true"}
        await api.request("PATCH", path, query=query, body=msgspec.json.encode(body), content_type=APPLY_PATCH)
        times.append(await arrivals.next(since))
    return times


async def _version(api: Api) -> str:
    held = msgspec.json.decode(await api.request("GET", f"{nrt.PATH}/{NODE}"))
    return str(held["metadata"]["resourceVersion"])


def _cpu(process: psutil.Process) -> float:
    """Seconds of CPU of all threads; the scheduler's own count, as clock ticks of 10 ms are too coarse."""
    tasks = Path(f"/proc/{process.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


@contextlib.asynccontextmanager
async def _api_server(root: Path) -> AsyncIterator[Api]:
    kubeconfig = root / "kubeconfig"
    arguments = ["-m", "sandbox.apiserver", "--kubeconfig-out", str(kubeconfig), "--crd", str(CRD)]
    async with _process(root / "apiserver.log", *arguments):
        for attempt in itertools.count():
            if kubeconfig.exists():
                break
            if attempt > 200:
                raise OSError("the API server did not start")
            await asyncio.sleep(0.05)
        async with Api(await credentials.load(str(kubeconfig)), "bench") as api:
            while True:
                with contextlib.suppress(ApiError):
                    await api.request("GET", nrt.PATH)
                    break
                await asyncio.sleep(0.05)
            yield api


@contextlib.asynccontextmanager
async def _exporter(root: Path) -> AsyncIterator[psutil.Process]:
    sysfs, procfs = machines.write_tree(MACHINE, root / "machine")
    (root / "kubelet/config.yaml").write_text("topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\n")
    config: dict[str, Any] = {
        "apiVersion": "topowise.io/v1alpha1",
        "kind": "ExporterConfiguration",
        "client": {"kubeconfig": str(root / "kubeconfig")},
        "nodeName": NODE,
        "sysfsRoot": str(sysfs),
        "procfsRoot": str(procfs),
        "podresourcesSocket": str(root / "kubelet/pod-resources/kubelet.sock"),
        "kubeletRoot": str(root / "kubelet"),
        "kubelet": {"configFile": str(root / "kubelet/config.yaml")},
        "serving": {"address": "127.0.0.1", "port": 0},
    }
    file = root / "exporter.yaml"
    file.write_text(yaml.safe_dump(config))
    async with _process(root / "exporter.log", "-m", "topowise_exporter", "run", "--config", str(file)) as process:
        yield psutil.Process(process.pid)


@contextlib.asynccontextmanager
async def _process(log: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    # gRPC's threads would have an arena of the allocator each; a container image has to set this too.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=out, stderr=out, env=environment
        )
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()
