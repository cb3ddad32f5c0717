"""The exporter as a process: the delay from a change on the node to the API server, and the cost of watching.

The emulated kubelet has 250 pods on a machine of 8 NUMA nodes, 8 GPUs and 64 virtual functions, a socket and state
files. The API server's own write time is measured in the same run with the same object, and subtracted.
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
from typing import Any, Final

import msgspec
import psutil
import yaml

from bench import figures
from bench.figures import Figure, spread
from demo.cluster import CRD
from sandbox import machines
from sandbox.kubelet import podresources
from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings
from sandbox.kubelet.state_files import StateFiles
from sandbox.processes import Process
from topowise import nrt
from topowise.errors import ApiError
from topowise.kube import credentials
from topowise.kube.api import APPLY_PATCH, Api
from topowise.kube.reflector import EventType, Reflector

GIB = 1 << 30

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
        self._root = root
        self._free = {node: list(cpus[2:]) for node, cpus in CPUS.items()}
        self._pods: dict[str, PodHoldings] = {}
        self._with_directory: set[str] = set()
        for number in range(pods):
            self._put(f"pod-{number}", number % 8, exclusive=number < 80)
        self._devices: dict[tuple[str, str], tuple[int, ...] | None] = {}
        for node in range(8):
            self._devices["nvidia.com/gpu", f"gpu-{node}"] = (node,)
            for vf in range(8):
                self._devices["intel.com/e810_vf", f"vf-{node}-{vf}"] = (node,)
        self._now = self._observe()
        self._write(admitted=True)

    def holdings(self) -> NodeHoldings:
        return self._now

    def _observe(self) -> NodeHoldings:
        return NodeHoldings(
            allocatable_cpus=frozenset(cpu for cpus in CPUS.values() for cpu in cpus[2:]),
            allocatable_memory=tuple(Block("memory", (node,), 60 * GIB) for node in range(8)),
            shared_cpus=frozenset(cpu for cpus in self._free.values() for cpu in cpus),
            device_nodes=self._devices,
            pods=tuple(self._pods.values()),
        )

    def admit(self, name: str, node: int) -> float:
        """Admits a pod: writes the state files, then the pod's directory. Returns the time of the start."""
        self._put(name, node, exclusive=True)
        self._change()
        begun = time.perf_counter()
        self._write(admitted=True)
        return begun

    def release(self, name: str) -> None:
        """Ends a pod without a write, as the kubelet's memory and device managers do."""
        for container in self._pods.pop(name).containers:
            for cpu in container.cpus:
                self._free[next(node for node, cpus in CPUS.items() if cpu in cpus)].append(cpu)
        self._change()

    def _change(self) -> None:
        # The kubelet's own time does not count: its answers are ready before the exporter's call.
        self._now = self._observe()
        podresources.prepare(self._now)

    def _put(self, name: str, node: int, *, exclusive: bool) -> None:
        main = ContainerHoldings("main", "app")
        if exclusive:
            cpus = frozenset(self._free[node].pop() for _ in range(2))
            main = ContainerHoldings("main", "app", cpus, (Block("memory", (node,), GIB),))
        self._pods[name] = PodHoldings(name, "default", name, (main, ContainerHoldings("side", "app")))

    def _write(self, *, admitted: bool) -> None:
        self._files.write(self.holdings(), cpu_policy="static", memory_policy="None", admitted=admitted)
        # What tells that an admission is over; directories of pods that have ended linger.
        for pod in self._pods.keys() - self._with_directory:
            (self._root / "pods" / pod).mkdir(parents=True, exist_ok=True)
        self._with_directory |= self._pods.keys()


NODE: Final = "bench"


@contextlib.asynccontextmanager
async def api_server(root: Path) -> AsyncIterator[Api]:
    kubeconfig = root / "kubeconfig"
    arguments = ["-m", "sandbox.apiserver", "--kubeconfig-out", str(kubeconfig), "--crd", str(CRD)]
    with Process("apiserver", [sys.executable, *arguments], root / "apiserver.log"):
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
async def exporter(root: Path) -> AsyncIterator[psutil.Process]:
    sysfs, procfs = machines.write_tree(MACHINE, root / "machine")
    (root / "kubelet/config.yaml").write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\n"
    )
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
    # gRPC's threads would have an arena of the allocator each; a container image has to set this too.
    command = ["env", "MALLOC_ARENA_MAX=2", sys.executable, "-m", "topowise_exporter", "run", "--config", str(file)]
    with Process("exporter", command, root / "exporter.log") as child:
        yield psutil.Process(child.pid)


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


PODS: Final = 20
IDLE_S: Final = float(os.environ.get("BENCH_IDLE_S", "15"))


async def measure() -> list[Figure]:
    """Returns all figures of the exporter."""
    with tempfile.TemporaryDirectory(prefix="topowise-bench-") as directory:
        root = Path(directory)
        kubelet = Kubelet(root / "kubelet", pods=250)
        server = await podresources.start(root / "kubelet/pod-resources/kubelet.sock", kubelet.holdings)
        try:
            async with api_server(root) as api:
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
    async with exporter(root) as process:
        started = time.perf_counter()
        first = await arrivals.next(started)
        await asyncio.sleep(1)
        writes = await _write_times(api, arrivals)
        own = statistics.median(writes)
        # The object as the benchmark left it is not what the exporter wrote; let it find out by a change.
        admissions = await _admissions(kubelet, arrivals)
        figures = [Figure("start to first publish", round(first, 3), "s", on_wall=True)]
        figures += [Figure("the API server's own write and watch, p50", round(own * 1e3, 2), "ms")]
        figures += spread("admission to API server, beyond that", [(x - own) * 1e3 for x in admissions], "ms")
        return figures + await _idle(process, api)


async def _idle(process: psutil.Process, api: Api) -> list[Figure]:
    before = (await _version(api), figures.cpu_seconds(process.pid))
    started = time.perf_counter()
    await asyncio.sleep(IDLE_S)
    took = time.perf_counter() - started
    after = (await _version(api), figures.cpu_seconds(process.pid))
    share = (after[1] - before[1]) / took
    return [
        Figure(f"writes in {IDLE_S:g} idle seconds", 0 if after[0] == before[0] else 1, "writes"),
        Figure("CPU while idle, a sync a second", round(100 * share, 2), "% of a core"),
        Figure("resident memory", round(process.memory_info().rss / (1 << 20), 1), "MiB"),
    ]


async def _admissions(kubelet: Kubelet, arrivals: Arrivals) -> list[float]:
    times = []
    for number in range(PODS):
        # A pause beyond the rate limit of syncs, as between admissions on a real node.
        await asyncio.sleep(0.15)
        since = kubelet.admit(f"new-{number}", number % 8)
        times.append(await arrivals.next(since))
        kubelet.release(f"new-{number}")
        # What the release leaves is published with the next sync and is not measured here.
        await asyncio.sleep(1.1)
    return times


async def _write_times(api: Api, arrivals: Arrivals) -> list[float]:
    """Returns the seconds of request, write and watch event, for applies of the same object with new annotations."""
    path = f"{nrt.PATH}/{NODE}"
    report = msgspec.json.decode(await api.request("GET", path))
    times = []
    for number in range(30):
        body = {
            "apiVersion": nrt.API_VERSION,
            "kind": nrt.KIND,
            "metadata": {"name": NODE, "annotations": {"bench": str(number)}},
            "zones": report["zones"],
            "attributes": report["attributes"],
        }
        since = time.perf_counter()
        query = {"fieldManager": "topowise-exporter", "force": "true"}
        await api.request("PATCH", path, query=query, body=msgspec.json.encode(body), content_type=APPLY_PATCH)
        times.append(await arrivals.next(since))
    return times


async def _version(api: Api) -> str:
    report = msgspec.json.decode(await api.request("GET", f"{nrt.PATH}/{NODE}"))
    return str(report["metadata"]["resourceVersion"])
