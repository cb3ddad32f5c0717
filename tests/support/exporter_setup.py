"""What an exporter needs around it (a machine, a kubelet, a configuration), and how to read what it publishes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sandbox import machines
from sandbox.apiserver import ApiServer
from sandbox.kubelet import podresources
from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings

NRT = "noderesourcetopologies.topology.node.k8s.io"
KUBELET_FILE = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
MACHINE = machines.Machine(
    nodes=(machines.Node(0, 1 << 30, cores=2), machines.Node(4, 1 << 30, socket=1, cores=2)),
    distances=((10, 20), (20, 10)),
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeKubelet:
    """A podresources socket whose holdings a test changes."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: tuple[PodHoldings, ...] = ()
        self.device_nodes: dict[tuple[str, str], tuple[int, ...] | None] = {}
        self._server: grpc.aio.Server | None = None

    def holdings(self) -> NodeHoldings:
        memory = (Block("memory", (0,), 1 << 29), Block("memory", (4,), 1 << 30))
        return NodeHoldings(frozenset(range(1, 8)), memory, frozenset({0}), self.device_nodes, self.pods)

    def give(self, name: str, *cpus: int) -> None:
        self.pods += (PodHoldings(name, "default", name, (ContainerHoldings("c", "app", frozenset(cpus)),)),)

    async def start(self) -> None:
        self._server = await podresources.start(self.socket, self.holdings)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
        self.socket.unlink(missing_ok=True)


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[FakeKubelet]:
    fake = FakeKubelet(tmp_path / "pod-resources/kubelet.sock")
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def config(tmp_path: Path, server: ApiServer, kubelet: FakeKubelet) -> dict[str, Any]:
    sysfs, procfs = machines.write_tree(MACHINE, tmp_path / "machine")
    kubelet_config = tmp_path / "kubelet.yaml"
    kubelet_config.write_text(
        KUBELET_FILE
        + "topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\nmemoryManagerPolicy: Static\n"
    )
    return {
        "apiVersion": "topowise.io/v1alpha1",
        "kind": "ExporterConfiguration",
        "client": {"kubeconfig": str(server.kubeconfig(tmp_path / "kubeconfig"))},
        "nodeName": "n1",
        "sysfsRoot": str(sysfs),
        "procfsRoot": str(procfs),
        "podresourcesSocket": str(kubelet.socket),
        "kubeletRoot": "",
        "kubelet": {"configFile": str(kubelet_config)},
        "serving": {"port": 0},
    }


def published(server: ApiServer) -> dict[str, Any] | None:
    named = (topology for topology in server.store.objects(NRT) if topology["metadata"]["name"] == "n1")
    return next(named, None)


def available(server: ApiServer, zone: str = "node-0", resource: str = "cpu") -> str | None:
    topology = published(server)
    if topology is None:
        return None
    (zones_named,) = [candidate for candidate in topology["zones"] if candidate["name"] == zone]
    return next(amount["available"] for amount in zones_named["resources"] if amount["name"] == resource)
