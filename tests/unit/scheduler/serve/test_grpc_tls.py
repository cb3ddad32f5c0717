"""gRPC over TLS: accepted clients, and certificates that are renewed while the server runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest

from pki import Authority
from scheduling import Service, counts, pod
from topowise.errors import SourceError
from topowise.runtime.config import ServingTls
from topowise.wire import scoring_pb2, scoring_pb2_grpc
from topowise_scheduler.configuration import Grpc
from topowise_scheduler.serve import grpc_api


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    directory = tmp_path_factory.mktemp("authorities")
    return Authority(directory / "first", "first"), Authority(directory / "second", "second")


def put(tls: ServingTls, authority: Authority, name: str) -> None:
    certificate, key = authority.issue(name)
    for source, target in (
        (certificate, tls.cert_file),
        (key, tls.key_file),
        (authority.certificate, tls.client_ca_file),
    ):
        shutil.copy(source, target)
        os.utime(target, (time.time() + len(name), time.time() + len(name)))


def _scoring() -> grpc_api.ScoringService:
    service = Service()
    return grpc_api.ScoringService(service.answers, service.view, service.fitting(), lambda: None)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@asynccontextmanager
async def serving(tls: ServingTls, not_ready: str | None = None) -> AsyncIterator[int]:
    service = Service()
    service.report(counts("n1", "8", included=()))
    port = _free_port()
    scoring = grpc_api.ScoringService(service.answers, service.view, service.fitting(), lambda: not_ready)
    task = asyncio.create_task(grpc_api.serve(Grpc(port=port, tls=tls), scoring))
    try:
        yield port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask(port: int, trusted: Authority, client: tuple[Path, Path] | None) -> list[int]:
    chain, key = (None, None) if client is None else (client[0].read_bytes(), client[1].read_bytes())
    credentials = grpc.ssl_channel_credentials(trusted.certificate.read_bytes(), key, chain)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        stub = scoring_pb2_grpc.ScoringStub(channel)
        request = scoring_pb2.FilterRequest(pod=msgspec.json.encode(pod("p")), nodes=["n1"])
        answer = await stub.Filter(request, timeout=3, wait_for_ready=True)
        return list(answer.verdicts)


@pytest.fixture
def tls(tmp_path: Path, authorities: tuple[Authority, Authority]) -> ServingTls:
    serving_tls = ServingTls(
        cert_file=str(tmp_path / "tls.crt"), key_file=str(tmp_path / "tls.key"), client_ca_file=str(tmp_path / "ca.crt")
    )
    put(serving_tls, authorities[0], "server")
    return serving_tls


async def test_only_clients_of_the_ca_come_in(tls: ServingTls, authorities: tuple[Authority, Authority]) -> None:
    authority, untrusted = authorities
    async with serving(tls) as port:
        assert await ask(port, authority, authority.issue("client")) == [scoring_pb2.VERDICT_FITS]
        assert await ask(port, authority, authority.issue("for-clients", usage="clientAuth"))
        refused = (
            None,
            untrusted.issue("client"),
            authority.issue("late", days=-1),
            authority.issue_later("early"),
            authority.issue("for-servers", usage="serverAuth"),
        )
        answers = await asyncio.gather(*(ask(port, authority, client) for client in refused), return_exceptions=True)
        assert [type(answer) for answer in answers] == [grpc.aio.AioRpcError] * len(refused)


async def test_a_renewed_certificate_and_ca_are_taken_up(
    tls: ServingTls, authorities: tuple[Authority, Authority]
) -> None:
    first, second = authorities
    async with serving(tls) as port:
        assert await ask(port, first, first.issue("client"))
        put(tls, second, "another-server")
        assert await ask(port, second, second.issue("client"))
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(port, first, first.issue("client"))


async def test_files_that_do_not_fit_leave_the_old_certificate(
    tls: ServingTls, authorities: tuple[Authority, Authority], caplog: pytest.LogCaptureFixture
) -> None:
    authority, _ = authorities
    async with serving(tls) as port:
        assert await ask(port, authority, authority.issue("client"))
        Path(tls.key_file).unlink()
        for _ in range(3):
            assert await ask(port, authority, authority.issue("client"))
    shown = [line for line in caplog.records if line.getMessage().startswith("Renewed certificate cannot be used")]
    assert len(shown) == 1


async def test_a_key_that_does_not_fit_yet_is_said_and_waited_for(
    tls: ServingTls, authorities: tuple[Authority, Authority], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = authorities
    async with serving(tls) as port:
        assert await ask(port, first, first.issue("client"))
        key = Path(tls.key_file).read_bytes()
        put(tls, second, "half")
        fitting = Path(tls.key_file).read_bytes()
        Path(tls.key_file).write_bytes(key)
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(port, second, second.issue("client"))
        (shown,) = (
            entry for entry in caplog.records if entry.getMessage().startswith("Renewed certificate cannot be used")
        )
        assert "is not a usable certificate" in str(shown.kv["why"])  # type: ignore[attr-defined]
        Path(tls.key_file).write_bytes(fitting)
        assert await ask(port, second, second.issue("client"))


async def test_a_key_of_another_certificate_is_named_at_the_start(
    tls: ServingTls, authorities: tuple[Authority, Authority]
) -> None:
    shutil.copy(authorities[1].issue("another")[1], tls.key_file)
    with pytest.raises(SourceError, match="is not a usable certificate with"):
        async with asyncio.timeout(5):
            await grpc_api.serve(Grpc(port=_free_port(), tls=tls), _scoring())


async def test_tls_1_1_is_refused(tls: ServingTls, authorities: tuple[Authority, Authority]) -> None:
    authority, _ = authorities
    async with serving(tls) as port:
        assert await ask(port, authority, authority.issue("client"))
        for newest, is_served in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = ssl.create_default_context(cafile=str(authority.certificate))
            context.load_cert_chain(*authority.issue("client"))
            context.set_alpn_protocols(["h2"])
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.TLSv1_1
            context.maximum_version = newest
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
                writer.close()
                assert is_served
            except (ssl.SSLError, ConnectionError):
                assert not is_served


async def test_the_socket_is_for_the_owner_and_the_group(tmp_path: Path) -> None:
    path = tmp_path / "scoring.sock"
    scoring = _scoring()
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    task = asyncio.create_task(grpc_api.serve(Grpc(socket=str(path)), scoring))
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 5)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_file_in_the_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "scoring.sock"
    path.write_text("somebody's")
    scoring = _scoring()
    with pytest.raises(SourceError, match="no socket"):
        await grpc_api.serve(Grpc(socket=str(path)), scoring)
    assert path.read_text() == "somebody's"


async def test_before_the_first_sync_it_is_unavailable(
    tls: ServingTls, authorities: tuple[Authority, Authority]
) -> None:
    authority, _ = authorities
    async with serving(tls, "not yet listed: pods") as port:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(port, authority, authority.issue("client"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "not yet listed: pods" in (caught.value.details() or "")
