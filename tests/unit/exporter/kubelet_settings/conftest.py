"""A certificate authority, and kubelets that serve /configz over TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from pki import Authority

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[..., Awaitable[int]]


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `ca.crt`, `other-ca.crt`, and `<name>.crt`/`.key` for good, expired and named kubelets."""
    directory = tmp_path_factory.mktemp("pki")
    Authority(directory, "other-ca")
    authority = Authority(directory, "ca")
    authority.issue("good")
    authority.issue("expired", days=-1)
    authority.issue("named", "DNS:node-1")
    return directory


@pytest.fixture
async def serve(pki: Path) -> AsyncIterator[Serve]:
    """Starts a kubelet with a certificate of that name; returns its port."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler, certificate: str = "good", metrics: Handler | None = None) -> int:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pki / f"{certificate}.crt", pki / f"{certificate}.key")
        application = web.Application()
        application.router.add_get("/configz", handler)
        if metrics is not None:
            application.router.add_get("/metrics", metrics)
        runner = web.AppRunner(application, handler_cancellation=True)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        return int(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()
