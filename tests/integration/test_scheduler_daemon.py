"""The scheduler service as a process, with the requests of kube-scheduler."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemons import Start, assert_eventually
from sandbox.apiserver import ApiServer
from scheduler_process import NRT, Service

pytestmark = pytest.mark.own_time


@pytest.fixture
def service(server: ApiServer, tmp_path: Path) -> Service:
    for name, free in (("n1", "4"), ("n2", "8")):
        server.create("nodes", {"metadata": {"name": name}})
        report(server, name, free)
    return Service(server, tmp_path)


def report(server: ApiServer, name: str, free: str) -> None:
    cpu = {"name": "cpu", "capacity": "8", "allocatable": "8", "available": free}
    topology = {
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
    }
    server.create(NRT, topology)


def pod(cpu: str, name: str = "p") -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]},
    }


async def test_filter_and_prioritize_answer_as_go_expects(start: Start, service: Service) -> None:
    process = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    async with aiohttp.ClientSession() as session:
        answer = await service.ask("filter", pod("6"), ["n1", "n2", "unknown"], session)
        assert answer["NodeNames"] == ["n2", "unknown"]
        assert list(answer["FailedNodes"]) == ["n1"]
        scores = await service.ask("v1/prioritize", pod("2"), ["n1", "n2"], session)
        # The default strategy prefers the tighter node, so that the larger free capacity stays contiguous.
        assert scores == [{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 0}]
        _, headers, text = await service.post("filter", b"{}", session)
        assert int(headers["Content-Length"]) == len(text.encode())
        assert "Transfer-Encoding" not in headers
    assert await process.stop() == 0


@pytest.mark.parametrize("body", [b"", b"nonsense", b"{}", b'{"Pod":5,"NodeNames":["n1"]}', b" " * (65 << 20)])
async def test_a_bad_request_is_200_with_an_error_and_one_log_line(start: Start, service: Service, body: bytes) -> None:
    process = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            status, _, text = await service.post("filter", body, session)
            assert status == 200
            assert '"Error":"re' in text
            assert '"NodeNames":null' in text
        status, _, text = await service.post("prioritize", body, session)
        assert (status, text) == (200, "[]")
        assert (await service.ask("filter", pod("1"), ["n1"], session))["NodeNames"] == ["n1"]
    assert len(process.lines("Request refused")) == 1


async def test_before_the_first_list_it_is_not_ready_and_says_so(
    start: Start, server: ApiServer, service: Service
) -> None:
    refusal = server.levers.answer(503, path="/api/v1/pods")
    await start("topowise_scheduler", "serve", config=service.config)
    async with aiohttp.ClientSession() as session:

        async def listed_all_but_pods() -> bool:
            try:
                answer = await service.ask("filter", pod("1"), ["n1"], session)
            except aiohttp.ClientError:
                return False
            assert answer["NodeNames"] is None
            return str(answer["Error"]) == "not ready: not yet listed: pods"

        await assert_eventually(listed_all_but_pods)
        assert not await service.is_ready()
        server.levers.release(refusal.id)
        await assert_eventually(service.is_ready)
        assert (await service.ask("filter", pod("1"), ["n1"], session))["Error"] == ""


@pytest.mark.parametrize("taken", ["extender", "pages", "health", "grpc"])
async def test_a_port_that_is_taken_ends_it_with_one_line(start: Start, service: Service, taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        section = {"extender": "extender", "pages": "readOnly", "health": "serving", "grpc": "grpc"}[taken]
        service.config.setdefault(section, {})["port"] = port
        process = await start("topowise_scheduler", "serve", config=service.config)
        assert await process.process.wait() == 1
    assert "Traceback" not in process.log
    # gRPC writes further lines itself.
    (line,) = [
        line for line in process.log.splitlines() if not line.startswith("I") and (taken != "grpc" or "task" in line)
    ]
    assert f'task="{taken}"' in line
    assert f"127.0.0.1:{port}: cannot be listened on" in line


async def test_what_is_forwarded_for_people_neither_books_nor_binds(start: Start, service: Service) -> None:
    await start("topowise_scheduler", "serve", config={**service.config, "ui": {"enabled": True}})
    await assert_eventually(service.is_ready)
    async with aiohttp.ClientSession() as session:
        for verb in ("filter", "prioritize", "preempt", "bind", "volcano/predicate", "volcano/allocateFunc"):
            async with session.post(f"{service.pages}/{verb}", json={}) as response:
                assert response.status == 404
        body = {"pods": [pod("1")], "reserveSeconds": 60}
        async with session.post(f"{service.pages}/fit-together", json=body) as response:
            assert "expected 0 at the most" in await response.text()
        async with session.post(f"{service.pages}/fit-together", json={"pods": [pod("1")]}) as response:
            assert "fits" in json.loads(await response.text())
        for path in ("explain?pod=a/b", "ui", "ui/app.js"):
            async with session.get(f"{service.pages}/{path}") as response:
                assert response.status == 200
            async with session.get(f"{service.prefix}/{path}") as response:
                assert response.status == 404
                assert "pages and verbs have a port each" in await response.text()
