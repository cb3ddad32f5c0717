"""The scheduler service as a process, and how tests reach it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp

from sandbox.apiserver import ApiServer
from sandbox.processes import free_ports

NRT = "noderesourcetopologies.topology.node.k8s.io"


class Listener:
    """Ports for a service that is not there yet, the configuration to start it with, and whether it is ready."""

    def __init__(self, kubeconfig: Path, **settings: Any) -> None:
        self.port, self.pages_port, self.health_port = free_ports(3)
        self.prefix = f"http://127.0.0.1:{self.port}"
        self.pages = f"http://127.0.0.1:{self.pages_port}"
        self.config: dict[str, Any] = {
            "apiVersion": "topowise.io/v1alpha1",
            "kind": "SchedulerConfiguration",
            "client": {"kubeconfig": str(kubeconfig)},
            "extender": {"port": self.port},
            "readOnly": {"port": self.pages_port},
            "serving": {"address": "127.0.0.1", "port": self.health_port},
            **settings,
        }

    async def is_ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.health_port}/readyz") as response,
            ):
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def metrics(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Samples by name with labels, without the common prefix."""
        async with session.get(f"http://127.0.0.1:{self.health_port}/metrics") as response:
            lines = (await response.text()).splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name.removeprefix("topowise_scheduler_"): float(value) for name, _, value in samples}


class Service(Listener):
    """How a test reaches the process."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        super().__init__(server.kubeconfig(directory / "kubeconfig"))

    async def post(self, verb: str, body: bytes, session: aiohttp.ClientSession) -> tuple[int, Any, Any]:
        url = f"{self.pages if verb.startswith('explain') else self.prefix}/{verb}"
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
            text = await response.text()
            return response.status, response.headers, text

    async def ask(self, verb: str, pod: dict[str, Any], names: list[str], session: aiohttp.ClientSession) -> Any:
        _, _, text = await self.post(
            verb, json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode(), session
        )
        return json.loads(text)
