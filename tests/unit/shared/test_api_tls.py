"""The API server's certificate decides whether the client sends its token."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pki import Authority
from topowise.errors import ApiError
from topowise.kube import credentials
from topowise.kube.api import Api

TOKEN = "not-for-others"


class Server:
    """Answers every request, and keeps what it was sent."""

    def __init__(self) -> None:
        self.received = b""

    @asynccontextmanager
    async def listening(self, pair: tuple[Path, Path], newest: ssl.TLSVersion) -> AsyncIterator[int]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A server of long ago, which offers old versions whatever OpenSSL thinks of them today.
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = newest
        context.load_cert_chain(*pair)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.received += await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        async with server:
            yield server.sockets[0].getsockname()[1]


async def ask(tmp_path: Path, port: int, trusted: Authority, **more: str) -> bytes:
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(trusted.certificate), **more}
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "clusters": [{"name": "k", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": TOKEN}}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            }
        )
    )
    async with Api(await credentials.load(str(kubeconfig)), "test", timeout=5) as api:
        return await api.request("GET", "/version")


async def test_a_server_of_the_right_authority_is_asked(tmp_path: Path, authority: Authority) -> None:
    server = Server()
    async with server.listening(authority.issue("server"), ssl.TLSVersion.TLSv1_3) as port:
        assert await ask(tmp_path, port, authority) == b"{}"
    assert TOKEN.encode() in server.received


@pytest.mark.parametrize("wrong", ["authority", "name", "expired", "not yet valid", "a client's", "TLS 1.1"])
async def test_another_server_gets_no_token(
    tmp_path: Path, authority: Authority, other_authority: Authority, wrong: str
) -> None:
    pair = {
        "authority": lambda: other_authority.issue("server"),
        "name": lambda: authority.issue("other", names="DNS:kubernetes.default,IP:127.0.0.2"),
        "expired": lambda: authority.issue("late", days=-1),
        "not yet valid": lambda: authority.issue_later("early"),
        "a client's": lambda: authority.issue("client", usage="clientAuth"),
        "TLS 1.1": lambda: authority.issue("server"),
    }[wrong]()
    newest = ssl.TLSVersion.TLSv1_1 if wrong == "TLS 1.1" else ssl.TLSVersion.TLSv1_3
    server = Server()
    async with server.listening(pair, newest) as port:
        with pytest.raises(ApiError) as caught:
            await ask(tmp_path, port, authority)
    assert caught.value.status == 0
    assert caught.value.reason == "Unreachable"
    assert TOKEN not in str(caught.value)
    assert server.received == b""


@pytest.mark.parametrize("inline", [False, True], ids=["file", "data"])
async def test_a_cluster_may_have_a_ca_of_basic_constraints_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    # As Python does from 3.13 on.
    as_before = ssl.create_default_context

    def strict(*arguments: Any, **named: Any) -> ssl.SSLContext:
        context = as_before(*arguments, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    bare = Authority(tmp_path / "bare", "bare", bare=True)
    async with Server().listening(bare.issue("server"), ssl.TLSVersion.TLSv1_3) as port:
        assert await ask(tmp_path, port, bare, **_inline(bare) if inline else {}) == b"{}"


@pytest.mark.parametrize("inline", [False, True], ids=["file", "data"])
async def test_an_intermediate_ca_may_be_all_that_is_trusted(
    tmp_path: Path, authority: Authority, inline: bool
) -> None:
    between = authority.subordinate("between")
    async with Server().listening(between.issue("server"), ssl.TLSVersion.TLSv1_3) as port:
        assert await ask(tmp_path, port, between, **_inline(between) if inline else {}) == b"{}"


async def test_a_server_that_is_away_is_said_in_the_same_words_by_every_process(
    tmp_path: Path, authority: Authority
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(ApiError) as caught:
        await ask(tmp_path, port, authority)
    refused = f"[Errno 111] Connect call failed ('127.0.0.1', {port})"
    assert str(caught.value) == f"GET /version: https://127.0.0.1:{port}: {refused}"


def _inline(trusted: Authority) -> dict[str, str]:
    data = base64.b64encode(trusted.certificate.read_bytes()).decode()
    return {"certificate-authority": "", "certificate-authority-data": data}


async def test_the_certificate_may_have_the_name_that_the_kubeconfig_says(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("named", names="DNS:kubernetes.default")
    async with Server().listening(pair, ssl.TLSVersion.TLSv1_3) as port:
        assert await ask(tmp_path, port, authority, **{"tls-server-name": "kubernetes.default"}) == b"{}"
        with pytest.raises(ApiError, match="other"):
            await ask(tmp_path, port, authority, **{"tls-server-name": "other.default"})
