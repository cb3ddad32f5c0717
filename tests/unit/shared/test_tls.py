"""Ports with TLS: who may come in, and what happens when certificates are renewed under them."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from pki import Authority
from topowise.errors import SourceError
from topowise.runtime import health
from topowise.runtime.config import Serving, ServingTls
from topowise.runtime.listening import Certificate
from topowise.runtime.probe_server import LIMITS, ProbeServer, Response


class Files:
    """The files a port is configured with; tests put other content into them."""

    def __init__(self, directory: Path) -> None:
        self.settings = ServingTls(
            cert_file=str(directory / "tls.crt"),
            key_file=str(directory / "tls.key"),
            client_ca_file=str(directory / "ca.crt"),
        )

    def put(self, pair: tuple[Path, Path], client_authority: Authority) -> None:
        shutil.copy(pair[0], self.settings.cert_file)
        shutil.copy(pair[1], self.settings.key_file)
        shutil.copy(client_authority.certificate, self.settings.client_ca_file)


@asynccontextmanager
async def listening(certificate: Certificate) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"ok\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=certificate.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def ask(port: int, trusted: Authority, client: tuple[Path, Path] | None, newest: bool = True) -> bytes:
    context = ssl.create_default_context(cafile=str(trusted.certificate))
    if client is not None:
        context.load_cert_chain(*client)
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"hello\n")
        return await reader.readline()
    finally:
        writer.close()


REFUSED = (ssl.SSLError, ConnectionError)


async def refused(port: int, trusted: Authority, client: tuple[Path, Path] | None, newest: bool = True) -> bool:
    try:
        return await ask(port, trusted, client, newest) == b""
    except REFUSED:
        return True


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> Files:
    """With a certificate of the server and the authority of its clients."""
    files = Files(tmp_path)
    files.put(authority.issue("server"), authority)
    return files


async def test_only_clients_of_the_right_authority_come_in(
    files: Files, authority: Authority, other_authority: Authority
) -> None:
    async with listening(Certificate(files.settings)) as port:
        assert await ask(port, authority, authority.issue("client")) == b"ok\n"
        assert await refused(port, authority, None)
        assert await refused(port, authority, other_authority.issue("unknown"))
        assert await refused(port, authority, authority.issue("late", days=-1))
        assert await refused(port, authority, authority.issue_later("early"))
        assert await ask(port, authority, authority.issue("for-clients", usage="clientAuth")) == b"ok\n"
        assert await refused(port, authority, authority.issue("for-servers", usage="serverAuth"))
        assert await refused(port, authority, authority.issue("client"), newest=False)


async def test_renewed_certificate_and_client_authority_apply_at_once(
    files: Files, authority: Authority, other_authority: Authority
) -> None:
    certificate = Certificate(files.settings)
    async with listening(certificate) as port:
        assert not certificate.renew()
        files.put(other_authority.issue("server"), other_authority)
        assert certificate.renew()
        assert await ask(port, other_authority, other_authority.issue("client")) == b"ok\n"
        assert await refused(port, other_authority, authority.issue("client"))
        assert await refused(port, authority, other_authority.issue("client"))


async def test_the_client_authority_may_be_intermediate(tmp_path: Path, authority: Authority) -> None:
    between, files = authority.subordinate("clients"), Files(tmp_path)
    files.put(authority.issue("server"), between)
    async with listening(Certificate(files.settings)) as port:
        assert await ask(port, authority, between.issue("client")) == b"ok\n"
        assert await refused(port, authority, authority.issue("client"))


def resumed(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
    """What a client is answered that shows the session of an earlier connection, and the session it has then."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secured,
    ):
        secured.sendall(b"hello\n")
        return secured.recv(10), secured.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_of_a_replaced_authority_does_not_come_in_by_an_earlier_session(
    files: Files, authority: Authority, other_authority: Authority, version: ssl.TLSVersion
) -> None:
    certificate = Certificate(files.settings)
    client = ssl.create_default_context(cafile=str(authority.certificate))
    client.maximum_version = version
    client.load_cert_chain(*authority.issue("client"))
    async with listening(certificate) as port:
        answer, session = await asyncio.to_thread(resumed, port, client, None)
        assert answer == b"ok\n"
        files.put(authority.issue("server"), other_authority)
        assert certificate.renew()
        with pytest.raises(REFUSED):
            answer, _ = await asyncio.to_thread(resumed, port, client, session)
            raise ConnectionError if answer == b"" else AssertionError(f"was answered {answer!r}")


async def test_files_that_become_usable_without_being_written_again_are_taken_up(
    files: Files, authority: Authority, other_authority: Authority
) -> None:
    certificate = Certificate(files.settings)
    files.put(other_authority.issue("server"), other_authority)
    key = Path(files.settings.key_file)
    written, times = key.read_bytes(), key.stat()
    # Like a file that is readable only after a chown: tests may run as root, which reads it anyway.
    key.write_bytes(b"")
    os.utime(key, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not certificate.renew()
    # Kernels before 6.13 round file times to their tick.
    await asyncio.sleep(0.02)
    key.write_bytes(written)
    os.utime(key, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert certificate.renew()


async def test_open_connections_go_on_while_the_certificate_is_renewed(
    files: Files, authority: Authority, other_authority: Authority
) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()

    certificate = Certificate(files.settings)
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=certificate.context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(*authority.issue("client"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"before\n")
        assert await reader.readline() == b"before\n"
        files.put(other_authority.issue("server"), other_authority)
        assert certificate.renew()
        writer.write(b"after\n")
        assert await reader.readline() == b"after\n"
        writer.close()
        assert await ask(port, other_authority, other_authority.issue("client")) == b"hello\n"


@pytest.mark.parametrize("broken", ["cert_file", "key_file", "client_ca_file"])
async def test_a_broken_new_file_is_logged_once_and_the_old_files_stay(
    files: Files, authority: Authority, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = Certificate(files.settings)
    Path(getattr(files.settings, broken)).write_text("-----BEGIN CERTIFICATE-----\nbroken\n")
    task = asyncio.create_task(certificate.keep_current(interval=0.01))
    async with listening(certificate) as port:
        await asyncio.sleep(0.1)
        assert await ask(port, authority, authority.issue("client")) == b"ok\n"
        assert await refused(port, authority, None)
    task.cancel()
    assert [record.getMessage() for record in caplog.records] == [
        "Renewed certificate cannot be used, keeping the old certificate"
    ]


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"tls\.crt"):
        Certificate(Files(tmp_path).settings)


async def test_metrics_are_served_to_clients_with_a_certificate_only(
    files: Files, authority: Authority, unused_tcp_port: int
) -> None:
    serving = Serving(address="127.0.0.1", port=unused_tcp_port, tls=files.settings)
    task = asyncio.create_task(health.serve(serving, health.Health(), CollectorRegistry()))
    await asyncio.sleep(0.1)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    url = f"https://127.0.0.1:{unused_tcp_port}/metrics"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(url, ssl=context)
        context.load_cert_chain(*authority.issue("scraper"))
        async with session.get(url, ssl=context) as answer:
            assert answer.status == 200
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_clients_that_end_no_handshake_keep_no_scraper_out(files: Files, authority: Authority) -> None:
    """A large answer, so that TLS has to wait for its reader as well."""
    body = b"x" * (16 << 20)
    limits = LIMITS._replace(share=1.0, burst_s=60.0, connections=4, of_one_peer=4)
    certificate = Certificate(files.settings)
    server = ProbeServer({"/metrics": lambda: Response(200, body)}, limits, lambda: certificate.context.current)
    (listening,) = sockets = [socket.create_server(("127.0.0.1", 0))]
    port = listening.getsockname()[1]
    task = asyncio.create_task(server.run(sockets))
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
    for _, writer in silent:
        writer.write(b"\x16\x03\x01")
    _, garbage = await asyncio.open_connection("127.0.0.1", port)
    garbage.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(*authority.issue("scraper"))
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.05)
        assert (await reader.read()).endswith(body)
    assert server.served == 1
    for _, stream_writer in (*silent, (reader, writer), (reader, garbage)):
        stream_writer.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_renewal_that_ends_by_a_defect_ends_the_port_too(
    files: Files,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    unused_tcp_port: int,
) -> None:

    async def broken(certificate: Certificate) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Certificate, "keep_current", broken)
    serving = Serving(address="127.0.0.1", port=unused_tcp_port, tls=files.settings)
    # Or the certificate would run out some day, unseen.
    with pytest.raises(RuntimeError, match="a defect"):
        async with asyncio.timeout(5):
            await health.serve(serving, health.Health(), CollectorRegistry())
