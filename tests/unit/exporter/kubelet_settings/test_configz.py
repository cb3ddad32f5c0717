"""The running kubelet's own word, over TLS that is verified."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from exporter_setup import Clock
from topowise.errors import SourceError
from topowise_exporter.kubelet.settings.configz import ConfigzSource, decode

from .conftest import Serve

ANSWER = {"kubeletconfig": {"topologyManagerPolicy": "restricted", "maxPods": 250, "syncFrequency": "1m0s"}}


class Kubelet:
    """Answers with the given status and text; counts requests and keeps the last headers."""

    def __init__(self, status: int = 200, text: str = json.dumps(ANSWER)) -> None:
        self.status = status
        self.text = text
        self.requests: list[str] = []

    async def configz(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.headers["Authorization"])
        return web.Response(status=self.status, text=self.text)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


def source(port: int, ca_file: Path, token: Path, clock: Clock | None = None) -> ConfigzSource:
    return ConfigzSource(str(ca_file), "127.0.0.1", port=port, token_file=token, clock=clock or Clock())


async def test_what_the_kubelet_does_not_list_it_does_not_have(serve: Serve, pki: Path, token: Path) -> None:
    read = await source(await serve(Kubelet().configz), pki / "ca.crt", token).read(None)
    assert read.evictionHard == {}


@pytest.mark.parametrize(
    ("certificate", "ca", "why"),
    [
        ("good", "other-ca.crt", "certificate refused with .*other-ca.crt: "),
        ("expired", "ca.crt", "certificate has expired"),
        ("named", "ca.crt", "IP address mismatch.*127.0.0.1"),
    ],
)
async def test_a_certificate_that_cannot_be_verified_is_refused_before_the_token_is_sent(
    serve: Serve, pki: Path, token: Path, certificate: str, ca: str, why: str
) -> None:
    kubelet = Kubelet()
    port = await serve(kubelet.configz, certificate)
    with pytest.raises(SourceError, match=f"^https://127.0.0.1:{port}/configz: .*{why}"):
        await source(port, pki / ca, token).read(None)
    assert kubelet.requests == []


async def test_a_renewed_ca_is_used_without_a_restart(serve: Serve, pki: Path, token: Path, tmp_path: Path) -> None:
    clock, bundle = Clock(), tmp_path / "bundle.crt"
    bundle.write_bytes((pki / "other-ca.crt").read_bytes())
    configz = source(await serve(Kubelet().configz), bundle, token, clock)
    with pytest.raises(SourceError, match="certificate refused"):
        await configz.read(None)
    bundle.write_bytes((pki / "ca.crt").read_bytes())
    clock.now += 10
    assert (await configz.read(None)).maxPods == 250


async def test_a_ca_file_that_is_none_is_named(tmp_path: Path, token: Path) -> None:
    for ca_file in (tmp_path / "no.crt", token):
        with pytest.raises(SourceError, match=f"^{ca_file}: is not a usable CA bundle"):
            await source(1, ca_file, token).read(None)


async def test_a_missing_token_is_named(serve: Serve, pki: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="token: cannot be read"):
        await source(await serve(Kubelet().configz), pki / "ca.crt", tmp_path / "token").read(None)


@pytest.mark.parametrize(
    ("status", "text", "why"),
    [
        (401, "Unauthorized", "status 401 'Unauthorized'; does the kubelet have webhook authentication"),
        (
            403,
            "Forbidden (verb=get,\n resource=nodes)",
            r"status 403 'Forbidden \(verb=get, resource=nodes\)'.*nodes/c",
        ),
        (404, "404 page not found", "status 404 .*enableDebuggingHandlers"),
        (500, "", "status 500 'no message'"),
        (302, "", "status 302 'no message'"),
        (200, "<html>", "not a JSON object"),
        (200, "[]", "not a JSON object"),
        (200, "{}", "no kubeletconfig, only nothing"),
        (200, '{"componentconfig": {}}', "no kubeletconfig, only componentconfig"),
        (200, '{"kubeletconfig": []}', "no kubeletconfig"),
        (200, '{"kubeletconfig": {"maxPods": "x"}}', "maxPods.*'x'"),
        (200, '{"kubeletconfig": {"topologyManagerPolicy": "odd"}}', "topologyManagerPolicy 'odd'"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_named(
    serve: Serve, pki: Path, token: Path, status: int, text: str, why: str
) -> None:
    port = await serve(Kubelet(status, text).configz)
    with pytest.raises(SourceError, match=f"^https://127.0.0.1:{port}/configz: .*{why}"):
        await source(port, pki / "ca.crt", token).read(None)


async def test_a_redirect_is_not_followed_with_the_token(serve: Serve, pki: Path, token: Path) -> None:
    elsewhere = Kubelet()
    other_port = await serve(elsewhere.configz)

    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"https://127.0.0.1:{other_port}/configz")

    with pytest.raises(SourceError, match="status 302"):
        await source(await serve(redirect), pki / "ca.crt", token).read(None)
    assert elsewhere.requests == []


@pytest.mark.own_time
async def test_silence_ends_with_the_timeout(serve: Serve, pki: Path, token: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    configz = source(await serve(silent), pki / "ca.crt", token)
    with pytest.raises(SourceError, match="no answer within 5 s"):
        await configz.read(None)


async def test_an_unreachable_kubelet_is_reported(pki: Path, token: Path, unused_port: int) -> None:
    with pytest.raises(SourceError, match="Connect call failed"):
        await source(unused_port, pki / "ca.crt", token).read(None)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


async def test_a_refused_token_is_read_again_at_once(serve: Serve, pki: Path, token: Path) -> None:
    seen: list[str] = []

    async def rotating(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.json_response(ANSWER, status=200 if seen[-1] == "Bearer renewed" else 401)

    clock = Clock()
    configz = source(await serve(rotating), pki / "ca.crt", token, clock)
    with pytest.raises(SourceError, match="status 401"):
        await configz.read(None)
    token.write_text("renewed")
    clock.now += 10
    assert (await configz.read(None)).maxPods == 250
    assert seen == ["Bearer secret", "Bearer secret", "Bearer secret", "Bearer renewed"]


async def test_a_rotated_token_is_used_within_a_minute(serve: Serve, pki: Path, token: Path) -> None:
    kubelet, clock = Kubelet(), Clock()
    configz = source(await serve(kubelet.configz), pki / "ca.crt", token, clock)
    await configz.read(None)
    token.write_text("renewed")
    clock.now += 60
    await configz.read(None)
    assert kubelet.requests == ["Bearer secret", "Bearer renewed"]


async def test_an_answer_is_valid_for_the_interval_and_a_failure_for_ten_seconds(
    serve: Serve, pki: Path, token: Path
) -> None:
    kubelet, clock = Kubelet(), Clock()
    configz = source(await serve(kubelet.configz), pki / "ca.crt", token, clock)
    first = await configz.read(None)
    clock.now += 59
    assert await configz.read(None) is first
    clock.now += 1
    kubelet.status = 500
    for _ in range(3):
        with pytest.raises(SourceError, match="status 500"):
            await configz.read(None)
    assert len(kubelet.requests) == 2
    kubelet.status = 200
    clock.now += 10
    assert await configz.read(None) == first


async def test_a_reading_can_be_cancelled(serve: Serve, pki: Path, token: Path) -> None:
    arrived = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        arrived.set()
        await asyncio.sleep(30)
        return web.Response()

    reading = asyncio.create_task(source(await serve(silent), pki / "ca.crt", token).read(None))
    await arrived.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


def test_addresses_of_version_six_are_written_with_brackets(pki: Path, token: Path) -> None:
    configz = ConfigzSource(str(pki / "ca.crt"), "fd00::1")
    assert configz._base == "https://[fd00::1]:10250"


def test_an_older_kubelets_answer_without_kind_is_taken() -> None:
    body = b'{"kubeletconfig": {"evictionHard": {"memory.available": "100Mi"}, "mergeDefaultEvictionSettings": true}}'
    assert decode(body, source="x").evictionHard == {"memory.available": "100Mi"}


METRICS = """# HELP kubernetes_build_info [BETA] A metric with a constant '1' value.
# TYPE kubernetes_build_info gauge
kubernetes_build_info{build_date="2026-04-01T00:00:00Z",compiler="gc",git_version="v1.36.2",minor="36"} 1
process_cpu_seconds_total 12
"""


@pytest.mark.parametrize(
    ("status", "text", "version"),
    [(200, METRICS, "v1.36.2"), (403, "", ""), (200, "up 1", ""), (200, "x" * (17 << 20), "")],
)
async def test_the_version_is_the_kubelets_own_word(
    status: int, text: str, version: str, serve: Serve, pki: Path, token: Path
) -> None:
    async def metrics(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    configz = source(await serve(Kubelet().configz, metrics=metrics), pki / "ca.crt", token)
    assert (await configz.read(None)).maxPods == 250
    assert configz.version == version


async def test_a_kubelet_that_restarted_is_asked_at_once(serve: Serve, pki: Path, token: Path) -> None:
    kubelet = Kubelet()
    configz = source(await serve(kubelet.configz), pki / "ca.crt", token)
    await configz.read(None)
    await configz.read(None)
    assert len(kubelet.requests) == 1
    configz.expire()
    await configz.read(None)
    assert len(kubelet.requests) == 2
