"""Clients that misuse a port of the running service, beside a kube-scheduler and a kubelet.

Nothing here depends on speed: what is counted is answers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

import attacker
from daemons import Start, assert_eventually
from sandbox.apiserver import ApiServer
from scheduler_process import Service
from topowise.runtime.probe_server import LIMITS

SECONDS = 2.0


@pytest.fixture
def service(server: ApiServer, tmp_path: Path) -> Service:
    server.create("nodes", {"metadata": {"name": "n1"}})
    service = Service(server, tmp_path)
    service.config["ui"] = {"enabled": True}
    return service


def pod() -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": {"containers": [{"name": "c"}]}}


@asynccontextmanager
async def attacked(kind: str, port: int) -> AsyncIterator[attacker.Got]:
    """Runs the attack inside the context; afterwards yields what the attacker received."""
    got = attacker.Got()
    arguments = (attacker.__file__, kind, str(port), str(SECONDS))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        yield got
        said, _ = await process.communicate()
        for name, count in msgspec.json.decode(said).items():
            setattr(got, name, count)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def most_answers(port: int, service: Service, seconds: float) -> float:
    """By the limits of the ports: connections of one peer, with one answer each; CPU time of people's requests."""
    if port == service.health_port:
        return LIMITS.at_once + LIMITS.per_second * seconds
    return (1.0 + 0.05 * seconds) / 0.0002


@pytest.mark.parametrize("kind", sorted(attacker.ATTACKS))
async def test_kube_scheduler_and_kubelet_are_answered_during(start: Start, service: Service, kind: str) -> None:
    daemon = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    port = {"slow heads": service.port}.get(kind, service.health_port)
    if any(page in kind for page in ("/ui", "/explain", "pages")):
        port = service.pages_port
    since, answers = time.monotonic(), 0
    async with attacked(kind, port) as got, aiohttp.ClientSession() as session:
        while time.monotonic() - since < SECONDS:
            assert (await service.ask("filter", pod(), ["n1"], session))["NodeNames"] == ["n1"]
            for path in ("livez", "readyz"):
                url = f"http://127.0.0.1:{service.health_port}/{path}"
                async with session.get(url, timeout=aiohttp.ClientTimeout(30)) as response:
                    assert response.status == 200
            answers += 1
            await asyncio.sleep(0.1)
    assert answers > 0
    assert got.opened > 0
    assert got.answers <= most_answers(port, service, time.monotonic() - since)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{service.health_port}/metrics") as response,
    ):
        assert "topowise_scheduler_build_info" in await response.text()
    assert await daemon.stop() == 0
    assert not daemon.lines("defect")
