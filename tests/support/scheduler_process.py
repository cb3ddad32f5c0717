"""The scheduler service as a process, and how tests reach it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import aiohttp

from sandbox.apiserver import ApiServer

NRT = "noderesourcetopologies.topology.node.k8s.io"


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Service:
    """How a test reaches the process."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.port, self.health_port = free_ports(2)
        self.config: dict[str, Any] = {
            "apiVersion": "topowise.io/v1alpha1",
            "kind": "SchedulerConfiguration",
            "client": {"kubeconfig": str(server.kubeconfig(directory / "kubeconfig"))},
            "extender": {"port": self.port, "maxBodyBytes": 1 << 20},
            "serving": {"address": "127.0.0.1", "port": self.health_port},
        }

    async def post(self, verb: str, body: bytes, session: aiohttp.ClientSession) -> tuple[int, Any, Any]:
        url = f"http://127.0.0.1:{self.port}/{verb}"
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
            text = await response.text()
            return response.status, response.headers, text

    async def ask(self, verb: str, pod: dict[str, Any], names: list[str], session: aiohttp.ClientSession) -> Any:
        _, _, text = await self.post(
            verb, json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode(), session
        )
        return json.loads(text)

    async def is_ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.health_port}/readyz") as response,
            ):
                return response.status == 200
        except aiohttp.ClientError:
            return False
