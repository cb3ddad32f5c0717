"""A cluster of hollow nodes with the marker plug-in as a process, the service with steering, and kube-scheduler."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import msgspec
import yaml

from burst.nodes import Kind
from burst.service import Process
from real_cluster import LEASES, PODS, SCHEDULER, Cluster, Json
from sandbox import machines
from sandbox.controlplane import ControlPlane
from sandbox.hollow import HollowNode
from sandbox.kubelet import podresources
from sandbox.kubelet.plugin_sockets import PluginSockets
from sandbox.kubelet.registration import register
from sandbox.machines import GIB
from topowise import steering
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.steering.daemon import DEVICE_PLUGINS
from topowise_scheduler.kubelet import Device

MACHINE: Final = machines.Machine(
    (machines.Node(0, 16 * GIB, socket=0, cores=8), machines.Node(1, 16 * GIB, socket=1, cores=8)), ((10, 21), (21, 10))
)
CONFIG: Final = msgspec.convert(
    {
        "topologyManagerPolicy": "restricted",
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0,1",
        "memoryManagerPolicy": "Static",
        "systemReserved": {"memory": "924Mi"},
        "evictionHard": {"memory.available": "100Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
    },
    KubeletConfiguration,
)
MARKERS: Final = 64
_NODE_NUMA: Final = "topowise.io/numa-node"


class Plugin:
    """The marker plug-in of a node, its kubelet's sockets, and its process."""

    def __init__(self, cluster: SteeredCluster, node: HollowNode, directory: Path) -> None:
        self._cluster, self._node = cluster, node
        # The path of a socket has at most 107 bytes, which a directory of pytest may exceed.
        self._root = Path(tempfile.mkdtemp(prefix="kubelet-"))
        self._sockets = self._root / DEVICE_PLUGINS.name
        self._sockets.mkdir()
        self.sockets = PluginSockets(self._sockets, self._listed, self._gone)
        self._podresources = self._root / "pod-resources/kubelet.sock"
        self.process = Process(directory / f"steer-{node.name}.log")
        self._config = directory / f"steer-{node.name}.yaml"
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, kubeconfig: Path, sysfs: Path, procfs: Path) -> None:
        self._server = await podresources.start(self._podresources, self._node.kubelet.holdings)
        await self.sockets.start()
        self._node.lifecycle.plugins = self.sockets
        configuration = {
            "apiVersion": "topowise.io/v1alpha1",
            "kind": "ExporterConfiguration",
            "nodeName": self._node.name,
            "sysfsRoot": str(sysfs),
            "procfsRoot": str(procfs),
            "podresourcesSocket": str(self._podresources),
            "kubeletRoot": str(self._root),
            "client": {"kubeconfig": str(kubeconfig)},
            "steering": {"enabled": True, "markers": MARKERS},
        }
        self._config.write_text(yaml.safe_dump(configuration))
        await self.run()

    async def run(self) -> None:
        """Starts the process."""
        await self.process.start("topowise_exporter", "steer", "--config", str(self._config))

    async def stop(self) -> None:
        await self.process.kill()
        await self.sockets.stop()
        await self._server.stop(None)
        shutil.rmtree(self._root)

    def _listed(self, resource: str, devices: Sequence[Device]) -> None:
        """Shows the markers in podresources, and their number in the Node."""
        before = self._node.kubelet.allocatable().get(resource)
        self._node.kubelet.list_devices(resource, devices)
        if before != self._node.kubelet.allocatable().get(resource):
            self._register()

    def _gone(self, resource: str) -> None:
        self._node.kubelet.unplug(resource)
        self._register()

    def _register(self) -> None:
        task = asyncio.create_task(register(self._cluster.api, self._node.name, self._node.kubelet))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class SteeredCluster(Cluster):
    """The nodes n0, n1, …, of which `without` have no plug-in."""

    cleared = (*Cluster.cleared, LEASES.format("default"))
    extender: ClassVar[Json] = {"httpTimeout": "10s"}
    profile: ClassVar[Json] = {
        "pluginConfig": [{"name": "NodeResourcesFit", "args": {"ignoredResources": [steering.RESOURCE]}}],
    }

    def __init__(
        self, plane: ControlPlane, directory: Path, nodes: int = 2, without: Collection[str] = (), **options: Any
    ) -> None:
        settings = {"steering": {"enabled": True}}
        kind = Kind(MACHINE, CONFIG)
        super().__init__(
            plane, directory, [(f"n{number}", kind) for number in range(nodes)], settings=settings, **options
        )
        self._work = directory
        self._without = without
        self.plugins: dict[str, Plugin] = {}

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        sysfs, procfs = machines.write_tree(MACHINE, self._work / "machine")
        for name, node in self.fleet.nodes.items():
            if name not in self._without:
                plugin = self.plugins[name] = Plugin(self, node, self._work)
                self._stack.push_async_callback(plugin.stop)
                await plugin.start(self._kubeconfig, sysfs, procfs)
        # A pod that comes before the markers may request any number: the kubelet ignores it, and counts it later.
        for name in self.plugins:
            while steering.RESOURCE not in await self._allocatable(name):
                self.check()
                await asyncio.sleep(0.05)
        return self

    async def _allocatable(self, name: str) -> Json:
        node: Json = json.loads(await self.api.request("GET", f"/api/v1/nodes/{name}"))
        return dict(node["status"]["allocatable"])

    def numa(self, name: str) -> set[int]:
        """Returns the NUMA nodes of the CPUs of a pod that its kubelet has admitted."""
        return self.numa_of_all().get(name, set())

    def numa_of_all(self) -> dict[str, set[int]]:
        """Returns the NUMA nodes of the CPUs of each pod that its kubelet has admitted."""
        numa = {cpu.id: cpu.node for cpu in machines.layout(MACHINE)}
        return {
            pod.name: {numa[cpu] for container in pod.containers for cpu in container.cpus}
            for node in self.fleet.nodes.values()
            for pod in node.kubelet.holdings().pods
        }

    async def until_bound(self, name: str, seconds: float = 120.0) -> Json:
        """Returns the pod when it runs."""

        async def running() -> Json | None:
            self.check()
            pod: Json = json.loads(await self.api.request("GET", f"{PODS}/{name}"))
            return pod if pod.get("status", {}).get("phase") == "Running" else None

        ends = asyncio.get_running_loop().time() + seconds
        while (pod := await running()) is None:
            if asyncio.get_running_loop().time() > ends:
                pod = json.loads(await self.api.request("GET", f"{PODS}/{name}"))
                explained = [await self.service.explain(self.session, f"default/{name}", node) for node in self.plugins]
                raise AssertionError(f"{name} does not run: {pod['spec'].get('nodeName')} {pod['status']} {explained}")
            await asyncio.sleep(0.05)
        return pod

    async def delete(self, name: str) -> None:
        await self.api.request("DELETE", f"{PODS}/{name}", query={"gracePeriodSeconds": "1"})

    async def request_of(self, node: str) -> steering.Request | None:
        """Returns the request in the Lease of a node."""
        leases = json.loads(await self.api.request("GET", LEASES.format("default")))["items"]
        for lease in leases:
            if lease["metadata"]["name"] == steering.lease_name(node):
                text = (lease["metadata"].get("annotations") or {}).get(steering.REQUEST)
                return None if text is None else steering.decode_request(text)
        return None

    def signal(self, node: str, number: signal.Signals) -> None:
        """Sends a signal to the plug-in of a node."""
        os.kill(self.plugins[node].process.pid, number)


def steered(name: str, cpus: int = 1, numa: int | None = None, *, markers: int = 1, **spec: Any) -> Json:
    """Returns a Guaranteed pod with markers in its container."""
    sizes = {"cpu": str(cpus), "memory": "256Mi", steering.RESOURCE: str(markers)}
    container = {"name": "app", "image": "none", "resources": {"requests": dict(sizes), "limits": sizes}}
    metadata: Json = {"name": name, "namespace": "default"}
    if numa is not None:
        metadata["annotations"] = {_NODE_NUMA: str(numa)}
    fields = {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": fields}
