"""No credential of the daemons appears in a log, an error, a metric, a probe or a page, at any verbosity."""

from __future__ import annotations

import asyncio
import base64
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from daemons import Start, assert_eventually
from exporter_setup import published
from sandbox.apiserver import ApiServer
from sandbox.processes import free_ports
from scheduler_process import Listener

pytestmark = pytest.mark.own_time

TOKEN = "eyJhbGciOiJub25lIn0.c2VjcmV0LW9mLXRoZS10ZXN0.c2lnbmF0dXJl"
PASSWORD = "correct-horse-battery-staple"
PAIR = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
SECRETS = (TOKEN, PASSWORD, PAIR)

USERS = {"token": {"token": TOKEN}, "password": {"username": "alice", "password": PASSWORD}}


def kubeconfig(path: Path, server: str, user: dict[str, Any]) -> str:
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "clusters": [{"name": "k", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            }
        )
    )
    return str(path)


def listener(directory: Path, server: str, user: dict[str, Any], **settings: Any) -> Listener:
    """The configuration of a service that logs everything."""
    access = kubeconfig(directory / "config", server, user)
    return Listener(Path(access), **{"logging": {"verbosity": 9}, **settings})


@pytest.fixture
async def echo() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that refuses every request and repeats it in the answer; its address and the received requests."""
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            received.append(head)
            authorization = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"authorization"))
            body = b"denied: " + authorization
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
            )
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, StopIteration):
            pass
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", received


def clean(*texts: str) -> None:
    for text in texts:
        assert text
        for secret in SECRETS:
            assert secret not in text


async def get(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


@pytest.mark.parametrize("user", USERS)
async def test_the_scheduler_shows_none(echo: tuple[str, list[bytes]], start: Start, tmp_path: Path, user: str) -> None:
    url, received = echo
    election = {"enabled": True}
    service = listener(tmp_path, url, USERS[user], ui={"enabled": True}, leaderElection=election)
    daemon = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(lambda: daemon.lines("Cannot list and watch"))
    assert any(secret.encode() in received[0] for secret in SECRETS)
    pages = [await get(f"http://127.0.0.1:{service.health_port}/{page}") for page in ("metrics", "readyz", "livez")]
    pages += [await get(f"{service.prefix}/{page}") for page in ("ui", "ui?resource=memory", "explain?pod=a/b")]
    await daemon.stop()
    assert "[redacted]" in daemon.log
    assert "Effective configuration" in daemon.log
    clean(daemon.log, *pages)


@pytest.mark.parametrize("user", USERS)
async def test_the_exporter_shows_none(
    echo: tuple[str, list[bytes]], start: Start, config: dict[str, Any], tmp_path: Path, user: str
) -> None:
    url, received = echo
    (health_port,) = free_ports(1)
    config["client"]["kubeconfig"] = kubeconfig(tmp_path / "config", url, USERS[user])
    config["serving"] = {"address": "127.0.0.1", "port": health_port}
    config["logging"] = {"verbosity": 9}
    daemon = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: "[redacted]" in daemon.log)
    assert any(secret.encode() in received[0] for secret in SECRETS)
    pages = [await get(f"http://127.0.0.1:{health_port}/{page}") for page in ("metrics", "readyz", "livez")]
    await daemon.stop()
    clean(daemon.log, *pages)


async def test_what_is_published_has_none(
    server: ApiServer, start: Start, config: dict[str, Any], tmp_path: Path
) -> None:
    config["client"]["kubeconfig"] = kubeconfig(tmp_path / "config", server.url, USERS["token"])
    daemon = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: published(server))
    await daemon.stop()
    clean(daemon.log, yaml.safe_dump(published(server)))


PLUGIN = """#!{python}
import sys
{body}
"""
GARBAGE = {
    "fails": f"print('{TOKEN}'); sys.exit(1)",
    "answers something else": f'print(\'{{"token": "{TOKEN}"\')',
    "answers another kind": f'print(\'{{"apiVersion": "v1", "kind": "{TOKEN[:5]}", "status": {{}}}}\')',
}


@pytest.mark.parametrize("how", GARBAGE)
@pytest.mark.real_time
async def test_what_an_exec_plug_in_prints_is_not_shown(start: Start, tmp_path: Path, how: str) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN.format(python=sys.executable, body=GARBAGE[how]))
    plugin.chmod(stat.S_IRWXU)
    called = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    service = listener(tmp_path, "https://127.0.0.1:1", {"exec": called})
    daemon = await start("topowise_scheduler", "serve", config=service.config)
    # The official client goes on without credentials.
    await assert_eventually(lambda: daemon.lines("Cannot list and watch"), within=20)
    await daemon.stop()
    assert "Traceback" not in daemon.log
    clean(daemon.log)


@pytest.mark.parametrize(
    "text",
    [
        f"users: [{{name: u, user: {{token: {TOKEN}, client-key-data: 5}}}}]",
        f"users: [{{name: u, user: {{token: {TOKEN}",
        f"users:\n- name: u\n user:\n  token: {TOKEN}\n",
        f"users: {TOKEN}",
        f"current-context: c\nusers: [{{name: u, user: {{token: [{TOKEN}]}}}}]",
        f"a: !x {TOKEN}",
    ],
)
async def test_a_broken_kubeconfig_is_not_quoted(start: Start, tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    configuration = tmp_path / "scheduler.yaml"
    configuration.write_text(
        f"apiVersion: topowise.io/v1alpha1\nkind: SchedulerConfiguration\nclient: {{kubeconfig: {file}}}\n"
    )
    daemon = await start("topowise_scheduler", "serve", "--config", str(configuration))
    async with asyncio.timeout(20):
        assert await daemon.process.wait() == 1
    assert "error: kubeconfig" in daemon.log
    clean(daemon.log)


async def test_a_password_in_the_address_of_the_server_is_not_shown(start: Start, tmp_path: Path) -> None:
    service = listener(tmp_path, f"http://alice:{PASSWORD}@127.0.0.1:{free_ports(1)[0]}", {}, logging={})
    daemon = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(lambda: daemon.lines("Cannot list and watch"))
    await daemon.stop()
    clean(daemon.log)
