"""Kubelet faults: the exporter publishes nothing wrong, logs a single line, and recovers with the kubelet."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from daemons import Daemon, Start, assert_eventually
from exporter_setup import KUBELET_FILE, FakeKubelet, available, published
from faults import assert_said_once
from faults.kubelet import SpoiltKubelet
from sandbox.apiserver import ApiServer
from sandbox.kubelet.holdings import ContainerHoldings, PodHoldings
from sandbox.kubelet.state_files import StateFiles
from sandbox.processes import free_ports
from whole_node import attributes

LONG_S = 60.0
Exporting = Callable[..., Any]


@pytest.fixture
async def exporting(server: ApiServer, start: Start, config: dict[str, Any]) -> Exporting:
    async def begin(free: str = "3") -> Daemon:
        (port,) = free_ports(1)
        config["serving"] = {"address": "127.0.0.1", "port": port}
        server.create("nodes", {"metadata": {"name": "n1"}})
        exporter = await start("topowise_exporter", "run", config=config)
        await assert_eventually(lambda: available(server) == free, within=LONG_S)
        return exporter

    return begin


async def readiness(config: dict[str, Any]) -> str:
    url = f"http://127.0.0.1:{config['serving']['port']}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


def code(name: str, details: str) -> tuple[grpc.StatusCode, str]:
    return grpc.StatusCode[name], details


SOCKETS: dict[str, tuple[dict[str, Any], str]] = {
    "hangs": ({}, "DEADLINE_EXCEEDED"),
    "answers garbage": ({"raw": b"HTTP/1.0 400 Bad Request\r\n\r\n\x00\xff" * 40}, "UNAVAILABLE"),
    "is overrun": (
        {"behaviour": lambda: code("RESOURCE_EXHAUSTED", "rejected by rate limit")},
        "rejected by rate limit",
    ),
    "does not know the method": ({"behaviour": lambda: code("UNIMPLEMENTED", "unknown method")}, "UNIMPLEMENTED"),
    "answers too much": ({"behaviour": lambda: bytes(17 << 20)}, "RESOURCE_EXHAUSTED"),
    "answers something else": ({"behaviour": lambda: b"\xff\xff\xff\xff garbage"}, "is not a"),
}


@pytest.mark.parametrize("how", SOCKETS)
async def test_a_socket_that(
    how: str, server: ApiServer, exporting: Exporting, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    settings, words = SOCKETS[how]
    exporter = await exporting()
    before = published(server)
    lines = len(exporter.log.splitlines())
    await kubelet.stop()
    kubelet.give("p", 1)
    async with SpoiltKubelet(kubelet, **settings) as spoilt:
        await assert_eventually(lambda: exporter.lines(words), within=LONG_S)

        async def is_shown() -> bool:
            return "Cannot read the node" in await readiness(config)

        await assert_eventually(is_shown, within=LONG_S)
        attempts = spoilt.calls + spoilt.connections
        await asyncio.sleep(3)
        # Retries have a back-off; a loop without back-off makes thousands of calls.
        assert spoilt.calls + spoilt.connections - attempts <= 20
        assert published(server) == before
    await kubelet.start()
    await assert_eventually(lambda: available(server) == "2", within=LONG_S)
    await assert_eventually(lambda: exporter.lines("Recovered"), within=LONG_S)
    assert exporter.process.returncode is None
    # Removed, back with the fault, removed, and back: each change may be logged, no change twice.
    assert_said_once(exporter, lines, at_most=2, total=8)
    assert "not ok" not in await readiness(config)


async def test_a_socket_that_a_killed_kubelet_left_and_the_next_kubelet_recreates(
    server: ApiServer, exporting: Exporting, kubelet: FakeKubelet
) -> None:
    exporter = await exporting()
    lines = len(exporter.log.splitlines())
    for number, cpu in enumerate((1, 4, 5)):
        await kubelet.stop()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(kubelet.socket))
        await asyncio.sleep(2 * number)
        kubelet.give(f"p{number}", cpu)
        await kubelet.start()
        await assert_eventually(lambda: available(server) == str(2 - number), within=LONG_S)  # noqa: B023
    assert_said_once(exporter, lines, at_most=3, total=12)


async def test_a_socket_that_is_a_directory_or_a_plain_file(
    server: ApiServer, exporting: Exporting, kubelet: FakeKubelet
) -> None:
    exporter = await exporting()
    before = published(server)
    lines = len(exporter.log.splitlines())
    await kubelet.stop()
    kubelet.give("p", 1)
    kubelet.socket.mkdir()
    await asyncio.sleep(3)
    kubelet.socket.rmdir()
    kubelet.socket.write_text("not a socket")
    await asyncio.sleep(3)
    assert published(server) == before
    kubelet.socket.unlink()
    await kubelet.start()
    await assert_eventually(lambda: available(server) == "2", within=LONG_S)
    assert_said_once(exporter, lines, at_most=3, total=8)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def replaced_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def led_in_a_circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def closed_to_us(path: Path) -> None:
    if not os.geteuid():
        pytest.skip("root reads files of every mode; the link that leads in a circle stands for what nobody can read")
    path.chmod(0)


@pytest.fixture
def state_file(kubelet: FakeKubelet, config: dict[str, Any], tmp_path: Path) -> Path:
    """The CPU manager's state file: only it shows that a finished init container has CPU 5."""
    containers = (ContainerHoldings("setup", "init", frozenset({5})), ContainerHoldings("c", "app", frozenset({2})))
    kubelet.pods = (PodHoldings("u1", "default", "p", containers),)
    files = StateFiles(tmp_path / "root")
    files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
    config["kubeletRoot"] = str(tmp_path / "root")
    return tmp_path / "root/cpu_manager_state"


@pytest.mark.parametrize("damage", [truncated, emptied, replaced_by_a_directory, led_in_a_circle, closed_to_us])
async def test_a_state_file_that_is(
    damage: Callable[[Path], None],
    server: ApiServer,
    exporting: Exporting,
    config: dict[str, Any],
    kubelet: FakeKubelet,
    state_file: Path,
) -> None:
    exporter = await exporting("2")
    lines = len(exporter.log.splitlines())
    state = state_file.read_bytes()
    damage(state_file)
    # The exporter publishes the socket's content anyway, and keeps the file's last content.
    kubelet.give("q", 3)
    await assert_eventually(lambda: available(server, "node-4") == "2", within=LONG_S)
    assert available(server) == "2"
    assert len(exporter.lines("CPU manager state cannot be read")) == 1
    assert "not ok" not in await readiness(config)
    await asyncio.sleep(2)
    if state_file.is_symlink() or state_file.is_file():
        state_file.unlink()
    else:
        state_file.rmdir()
    # As the kubelet writes it.
    whole = state_file.with_name(".new")
    whole.write_bytes(state)
    whole.replace(state_file)
    await assert_eventually(lambda: available(server) == "2", within=LONG_S)
    assert exporter.process.returncode is None
    assert_said_once(exporter, lines, at_most=2, total=6)


@pytest.mark.parametrize(
    "text", [None, "", "topologyManagerPolicy: [", "- a\n- list\n", f"{KUBELET_FILE}cpuManagerPolicy: {{}}\n"]
)
async def test_a_configuration_file_that_is_gone_or_damaged_for_a_while(
    text: str | None, server: ApiServer, exporting: Exporting, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    exporter = await exporting()
    lines = len(exporter.log.splitlines())

    def policy() -> str:
        topology = published(server) or {}
        named = attributes(topology)
        return str(named.get("topologyManagerPolicy"))

    file = Path(config["kubelet"]["configFile"])
    original = file.read_text()
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    await asyncio.sleep(2)
    kubelet.give("p", 1)
    await assert_eventually(lambda: available(server) == "2", within=LONG_S)
    # The kubelet continues with the configuration that it has read, and so does the exporter.
    assert policy() == "single-numa-node"
    file.write_text(original)
    await assert_eventually(lambda: policy() == "single-numa-node", within=LONG_S)
    # A line at the begin and a line at the end.
    await assert_eventually(lambda: len(exporter.lines("cannot be read, using file")) == 2, within=LONG_S)
    assert exporter.process.returncode is None
    assert_said_once(exporter, lines, at_most=1, total=6)
