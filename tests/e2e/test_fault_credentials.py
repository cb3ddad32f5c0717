"""Tokens and certificates that end, are revoked, and are replaced under running daemons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet
from faults import FaultProxy, assert_said_once
from faults.site import LONG_S, Site, pod, site
from faults.tls_front import TlsFront
from pki import Authority
from sandbox.apiserver import ApiServer


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("first")
    return file


@pytest.fixture
async def place(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path, token_file: Path
) -> AsyncIterator[Site]:
    async def access(_cluster: dict[str, Any], user: dict[str, Any], proxy: FaultProxy) -> None:
        user["tokenFile"] = str(token_file)
        proxy.accepted = {token_file.read_text()}

    async with site(server, start, config, kubelet, tmp_path, access=access) as place:
        yield place


def replace(file: Path, text: str) -> None:
    """Replaces a file as the kubelet does: writes a temporary file, then renames it."""
    aside = file.with_name(f".{file.name}")
    aside.write_text(text)
    aside.replace(file)


async def test_a_token_that_is_revoked_until_another_token_comes(place: Site, token_file: Path) -> None:
    place.server.create("pods", pod("new", 1))
    uid = next(pod["metadata"]["uid"] for pod in place.server.store.objects("pods"))
    lines = place.log_lengths()
    place.proxy.accepted = {"second"}
    place.proxy.close_watches()
    began = time.monotonic()
    await asyncio.sleep(3)
    place.change_everything()
    await asyncio.sleep(6)
    requests = place.proxy.count(began)
    # Each request is retried once with the token in the file.
    assert requests <= 24 * 12, f"{requests} requests"
    assert await place.room("n2") == 6
    refused = await place.bind("new", uid, "n2")
    assert "401" in refused
    # A pod whose bind certainly failed has no booking.
    assert await place.room("n2") == 6
    # A second invalid token, then a valid token.
    replace(token_file, "wrong")
    await asyncio.sleep(2)
    replace(token_file, "second")
    await place.has_caught_up()
    place.assert_said_once(lines)
    for daemon in (place.exporter, place.scheduler):
        assert "second" not in daemon.log


async def test_the_same_token_is_taken_again(place: Site) -> None:
    lines = place.log_lengths()
    place.proxy.accepted = set()
    place.proxy.close_watches()
    await asyncio.sleep(5)
    place.change_everything()
    await asyncio.sleep(2)
    place.proxy.accepted = {"first"}
    await place.has_caught_up()
    place.assert_said_once(lines)


async def test_a_token_that_is_rotated_is_not_noticed(place: Site, token_file: Path) -> None:
    lines = place.log_lengths()
    replace(token_file, "second")
    place.proxy.accepted = {"second"}
    place.proxy.close_watches()
    place.change_everything()
    await place.has_caught_up()
    place.assert_said_once(lines, 1)
    for daemon in (place.exporter, place.scheduler):
        assert "Unauthorized" not in daemon.log


async def test_certificates_and_their_ca_are_replaced_on_both_sides(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    first, second = Authority(tmp_path / "first", "first"), Authority(tmp_path / "second", "second")
    names = {"certificate-authority": "ca.crt", "client-certificate": "client.crt", "client-key": "client.key"}
    files = {key: tmp_path / name for key, name in names.items()}

    def issue(authority: Authority) -> None:
        certificate, key = authority.issue("client", usage="clientAuth")
        for name, source in zip(names, (authority.certificate, certificate, key), strict=True):
            replace(files[name], source.read_text())

    async with AsyncExitStack() as stack:

        async def access(cluster: dict[str, Any], user: dict[str, Any], proxy: FaultProxy) -> None:
            front = await stack.enter_async_context(TlsFront(("127.0.0.1", URL(proxy.url).port or 0)))
            await front.serve(*first.issue("server"), first.certificate)
            fronts.append(front)
            issue(first)
            cluster["server"] = front.url
            for name in names:
                (cluster if name == "certificate-authority" else user)[name] = str(files[name])

        fronts: list[TlsFront] = []
        place = await stack.enter_async_context(site(server, start, config, kubelet, tmp_path, access=access))
        lines = place.log_lengths()
        # The server's certificate is new and the files are old: client and server do not trust each other.
        await fronts[0].serve(*second.issue("server"), second.certificate)
        place.change_everything()
        await assert_eventually(lambda: place.exporter.lines("certificate verify failed"), within=LONG_S)
        await assert_eventually(lambda: place.scheduler.lines("certificate verify failed"), within=LONG_S)
        assert await place.room("n2") == 6
        replace(files["certificate-authority"], "not yet written")
        issue(second)
        await place.has_caught_up()
        assert_said_once(place.exporter, lines[0], at_most=2)
        assert_said_once(place.scheduler, lines[1], at_most=2, total=30)
