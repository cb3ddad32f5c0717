"""A small cluster with both daemons as processes behind a fault proxy, and how a test sees that all is true again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from daemons import Daemon, Start, assert_eventually
from exporter_setup import KUBELET_FILE, FakeKubelet, available
from faults.logs import assert_said_once
from faults.proxy import FaultProxy
from sandbox.apiserver import ApiServer
from scheduler_process import NRT, Service
from scheduling import NODE_STATUS

# Back-offs end at 30 s, and the machine may be busy.
LONG_S: Final = 90.0

Access = Callable[[dict[str, Any], dict[str, Any], FaultProxy], Awaitable[None]]
"""Changes cluster and user of a kubeconfig that leads to the proxy."""


@dataclass
class Site:
    """`exporter` reports the node n1 (see exporter_setup); the nodes beside it are reported by the test."""

    server: ApiServer
    proxy: FaultProxy
    kubelet: FakeKubelet
    exporter: Daemon
    scheduler: Daemon
    service: Service
    session: aiohttp.ClientSession

    def add_node(self, name: str, free: int) -> None:
        """Creates a node with a zone with `free` CPUs."""
        self.server.create("nodes", {"metadata": {"name": name}, "status": NODE_STATUS})
        self.report(name, free)

    def report(self, name: str, free: int) -> None:
        """Writes the node's NRT object."""
        # Nothing is in use, so that the service cannot attribute used CPUs to a pod.
        cpu = {"name": "cpu", "capacity": "8", "allocatable": str(free), "available": str(free)}
        topology = {
            "metadata": {"name": name},
            "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
            "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
        }
        self.server.create(NRT, topology)

    def bound(self, name: str, node: str, cpus: int) -> None:
        """A pod that some scheduler has put there."""
        document = pod(name, cpus)
        document["spec"]["nodeName"] = node
        self.server.create("pods", document)

    async def takes(self, node: str, cpus: int) -> bool:
        """Returns whether the service would send a pod of so many CPUs there; nothing is reserved by the question."""
        body = json.dumps(pod("asked", cpus)).encode()
        _, _, text = await self.service.post(f"explain?node={node}", body, self.session)
        return [verdict["verdict"] for verdict in json.loads(text)] == ["fits"]

    async def room(self, node: str) -> int:
        """Returns the largest pod that the service would send there, in CPUs."""
        for cpus in range(8, 0, -1):
            if await self.takes(node, cpus):
                return cpus
        return 0

    async def bind(self, name: str, uid: str, node: str) -> str:
        """By the service; what went wrong, "" if the pod is bound."""
        named = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
        _, _, text = await self.service.post("bind", json.dumps(named).encode(), self.session)
        return str(json.loads(text)["Error"])

    async def delete(self, path: str) -> None:
        """Behind the daemons' back."""
        async with self.session.delete(f"{self.server.url}{path}?gracePeriodSeconds=0") as response:
            assert response.status == 200, await response.text()

    async def has(self, rooms: dict[str, int]) -> None:
        """Waits until the service knows the room of these nodes."""

        async def shown() -> bool:
            return {name: await self.room(name) for name in rooms} == rooms

        try:
            await assert_eventually(shown, within=LONG_S)
        except AssertionError:
            free = {name: await self.room(name) for name in rooms}
            raise AssertionError(f"the service knows {free}, expected {rooms}\n{self.scheduler.log[-3000:]}") from None

    async def publishes(self, free: int) -> None:
        """Waits until the exporter's object says that n1's first zone has so many CPUs."""
        try:
            await assert_eventually(lambda: available(self.server) == str(free), within=LONG_S)
        except AssertionError:
            raise AssertionError(f"{available(self.server)}, expected {free}\n{self.exporter.log[-3000:]}") from None

    async def metrics(self) -> dict[str, float]:
        """Returns the service's samples by name with labels, without the common prefix."""
        return await self.service.metrics(self.session)

    def log_lengths(self) -> tuple[int, int]:
        """Lines so far, of the exporter and the scheduler."""
        return len(self.exporter.log.splitlines()), len(self.scheduler.log.splitlines())

    def assert_said_once(self, lines: tuple[int, int], at_most: int = 2) -> None:
        """No daemon has logged a line more often since `lines`."""
        for daemon, since in zip((self.exporter, self.scheduler), lines, strict=True):
            assert_said_once(daemon, since, at_most=at_most)

    def change_everything(self) -> None:
        """Changes that both daemons must learn after a fault."""
        self.kubelet.give("p", 1)
        self.bound("p", "n1", 1)
        self.bound("q", "n2", 2)
        self.add_node("n3", 5)

    async def has_caught_up(self) -> None:
        """Waits until both daemons know what `change_everything` has changed."""
        await self.publishes(2)
        await self.has({"n1": 4, "n2": 4, "n3": 5})
        self.assert_alive()

    def assert_alive(self) -> None:
        """Neither has ended, by itself or otherwise."""
        for daemon in (self.exporter, self.scheduler):
            assert daemon.process.returncode is None, daemon.log[-3000:]


def pod(name: str, cpus: int) -> dict[str, Any]:
    """Returns a Guaranteed pod with a container."""
    amounts = {"cpu": str(cpus), "memory": "1Mi"}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
    }


@asynccontextmanager
async def site(
    server: ApiServer,
    start: Start,
    config: dict[str, Any],
    kubelet: FakeKubelet,
    directory: Path,
    *,
    under: Sequence[str] = (),
    access: Access | None = None,
    **settings: Any,
) -> AsyncIterator[Site]:
    """`under` is a command that runs the daemons, `settings` are the service's. Returns when both are ready.

    `access` changes the kubeconfig of both daemons before they start.

    n1 has three CPUs in its first zone and four in the other, n2 has six.
    """
    async with FaultProxy(server.url) as proxy, aiohttp.ClientSession() as session:
        kubeconfig = str(proxy.kubeconfig(directory / "proxied"))
        if access is not None:
            document = yaml.safe_load(Path(kubeconfig).read_text())
            await access(document["clusters"][0]["cluster"], document["users"][0]["user"], proxy)
            Path(kubeconfig).write_text(yaml.safe_dump(document))
        config["client"]["kubeconfig"] = kubeconfig
        # The kubelet of these tests gives out CPUs alone.
        text = (
            KUBELET_FILE
            + "topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
        )
        Path(config["kubelet"]["configFile"]).write_text(text)
        service = Service(server, directory)
        service.config["client"]["kubeconfig"] = kubeconfig
        service.config |= settings
        server.create("nodes", {"metadata": {"name": "n1"}, "status": NODE_STATUS})
        exporter = await start("topowise_exporter", "run", config=config, under=under)
        scheduler = await start("topowise_scheduler", "serve", config=service.config, under=under)
        started = Site(server, proxy, kubelet, exporter, scheduler, service, session)
        started.add_node("n2", 6)
        await assert_eventually(service.is_ready, within=LONG_S)
        await started.publishes(3)
        await started.has({"n1": 4, "n2": 6})
        yield started
