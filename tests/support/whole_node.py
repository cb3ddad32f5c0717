"""A whole node: emulated kubelet, exporter, scheduler service, and kube-scheduler's cycles.

The node has two NUMA nodes with six CPUs and two GPUs each; CPU 0 is reserved for the system. The kubelet and the
exporter are processes that a test can kill, or hollow, for tests of other exporters.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import yaml

from daemons import Daemon, Start, assert_eventually
from sandbox import machines
from sandbox.apiserver import ApiServer
from sandbox.hollow import Fleet, Pace, Pause, Reporting
from sandbox.kubescheduler import Extender, KubeScheduler
from scheduler_process import Service
from topowise import nrt
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.config import API_VERSION

Json = dict[str, Any]

NAME: Final = "n1"
GPU: Final = "nvidia.com/gpu"
LONG_S: Final = 60.0
_SCHEDULER: Final = "numa-scheduler"
_GIB: Final = 1 << 30
_MACHINE: Final = machines.Machine(
    nodes=(machines.Node(0, 8 * _GIB, cores=6), machines.Node(1, 8 * _GIB, socket=1, cores=6)),
    distances=((10, 20), (20, 10)),
    threads_per_core=1,
    pci=tuple(
        function
        for number in range(4)
        for function in machines.gpu(f"0000:{0x20 + number:02x}:00.0", number // 2, f"0000:{0x10 + number:02x}:00.0")
    ),
)
_KUBELET: Final[Json] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "topologyManagerPolicy": "single-numa-node",
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "924Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
}


class WholeNode:
    """`versions` are all objects that were published of the node, oldest first."""

    def __init__(self, server: ApiServer, api: Api, service: Service, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.api = api
        self.service = service
        self._session = session
        self.versions: list[Json] = []
        self.start_kubelet: Callable[..., Any] = _nothing
        self.kubelet: Daemon | None = None
        self.kubelet_root = Path()
        """The kubelet's folder, if it is a process."""

    # As Consumer of the node's objects

    def replace(self, items: list[Json]) -> None:
        for item in items:
            self.apply("ADDED", item)

    def apply(self, event: EventType, item: Json) -> None:
        if event != "DELETED" and item["metadata"]["name"] == NAME:
            self.versions.append(item)

    # Pods

    def create(self, name: str, *containers: Json) -> None:
        """A pod for the scheduler to place."""
        spec = {"schedulerName": _SCHEDULER, "containers": list(containers)}
        self.server.create("pods", {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    def phase(self, name: str) -> str:
        """Of a pod; "" if it is gone."""
        named = (document for document in self.server.store.objects("pods") if document["metadata"]["name"] == name)
        return next((document["status"].get("phase", "Pending") for document in named), "")

    def is_bound(self, name: str) -> bool:
        named = (document for document in self.server.store.objects("pods") if document["metadata"]["name"] == name)
        return any(document["spec"].get("nodeName") for document in named)

    async def becomes(self, name: str, phase: str) -> None:
        """Waits for it; a pod that is refused by its kubelet never becomes anything else."""
        await assert_eventually(lambda: self.phase(name) in (phase, "Failed"), within=LONG_S)
        assert self.phase(name) == phase, f"{name} is {self.phase(name)}"

    async def delete(self, *names: str) -> None:
        """Returns when they are gone and nothing published has them any more."""
        for name in names:
            await self.api.request("DELETE", f"/api/v1/namespaces/default/pods/{name}")
        await assert_eventually(lambda: not any(map(self.phase, names)), within=LONG_S)
        await assert_eventually(lambda: not set(names) & holdings_of(self.versions[-1]).keys(), within=LONG_S)

    async def predictions(self) -> Mapping[str, int]:
        """Returns the counts by precision."""
        prefix = 'predictions_total{precision="'
        samples = await self.service.metrics(self._session)
        return {name[len(prefix) : -2]: int(count) for name, count in samples.items() if name.startswith(prefix)}


def container(name: str, cpus: int) -> Json:
    """Guaranteed."""
    amounts = {"cpu": str(cpus), "memory": "64Mi"}
    return {"name": name, "image": "i:1", "resources": {"requests": amounts, "limits": amounts}}


def attributes(topology: Json) -> dict[str, str]:
    """Of the object itself."""
    return {entry["name"]: entry["value"] for entry in topology.get("attributes", ())}


def holdings_of(topology: Json) -> dict[str, list[Any]]:
    """By pod what its containers hold."""
    holdings = json.loads(attributes(topology).get("topowise.io/holdings", "[]"))
    return {name: containers for _, name, containers, *_ in holdings}


def allocatable(topology: Json) -> dict[tuple[str, str], str]:
    """By zone and resource."""
    return {
        (zone["name"], resource["name"]): resource["allocatable"]
        for zone in topology["zones"]
        for resource in zone["resources"]
    }


@asynccontextmanager
async def whole_node(
    server: ApiServer,
    api: Api,
    start: Start,
    directory: Path,
    *,
    pause: tuple[float, float] = (0.001, 0.03),
    reporting: Reporting | None = None,
) -> AsyncIterator[WholeNode]:
    """`pause` is between two checkpoints of the kubelet. With `reporting` the node is hollow. Returns when all is
    published."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        service = Service(server, directory)
        node = WholeNode(server, api, service, session)
        if reporting is None:
            # Not under pytest's directory: the path of a socket has at most 107 characters.
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topowise-node-")))
            await _start_processes(node, start, directory, root, pause)
        else:
            fleet = Fleet(api, pace=Pace(pause=Pause(pause, pause)), reporting=reporting)
            fleet.add(NAME, _MACHINE, msgspec.convert(_KUBELET, KubeletConfiguration))
            await stack.enter_async_context(fleet)
        await start("topowise_scheduler", "serve", config=service.config)
        await assert_eventually(service.is_ready, within=LONG_S)
        scheduler = KubeScheduler(api, _SCHEDULER, Extender(session, service.prefix))
        watch = Reflector(api, nrt.PATH, msgspec.json.decode, node)
        loops = [asyncio.create_task(runner.run()) for runner in (scheduler, watch)]
        stack.push_async_callback(asyncio.gather, *loops, return_exceptions=True)
        for loop in loops:
            stack.callback(loop.cancel)
        whole = {f"node-{number}": 2 for number in (0, 1)}
        await assert_eventually(lambda: node.versions and _gpus(node.versions[-1]) == whole, within=LONG_S)
        yield node


async def _start_processes(
    node: WholeNode, start: Start, directory: Path, root: Path, pause: tuple[float, float]
) -> None:
    sysfs, procfs = machines.write_tree(_MACHINE, root)
    kubelet = node.kubelet_root = root / "kubelet"
    kubelet.mkdir()
    (kubelet / "config.yaml").write_text(yaml.safe_dump(_KUBELET))
    kubeconfig = str(node.server.kubeconfig(directory / "kubeconfig"))

    async def start_kubelet(**options: str) -> None:
        switches = {"pause": f"{pause[0]}-{pause[1]}", **options}
        arguments = [part for option, value in switches.items() for part in (f"--{option}", value)]
        node.kubelet = await start(
            "sandbox.kubelet", "--kubeconfig", kubeconfig, "--node", f"{NAME}={root}", *arguments
        )

    node.start_kubelet = start_kubelet
    await start_kubelet()
    config = {
        "apiVersion": API_VERSION,
        "kind": "ExporterConfiguration",
        "client": {"kubeconfig": kubeconfig},
        "nodeName": NAME,
        "sysfsRoot": str(sysfs),
        "procfsRoot": str(procfs),
        "podresourcesSocket": str(kubelet / "pod-resources/kubelet.sock"),
        "kubeletRoot": str(kubelet),
        "kubelet": {"configFile": str(kubelet / "config.yaml")},
        "serving": {"port": 0},
    }
    await start("topowise_exporter", "run", config=config)


def _gpus(topology: Json) -> dict[str, int]:
    return {zone: int(amount) for (zone, name), amount in allocatable(topology).items() if name == GPU}


async def _nothing(**options: str) -> None:
    raise AssertionError("a hollow node has no process")
