"""A certificate authority, and kubelets that serve /configz over TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[..., Awaitable[int]]


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=30)


def _new_key(name: str, subject: str) -> list[str]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    return ["req", *curve, "-keyout", f"{name}.key", "-subj", f"/CN={subject}"]


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `ca.crt`, `other-ca.crt`, and `<name>.crt`/`.key` for good, expired and named kubelets."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")
    directory = tmp_path_factory.mktemp("pki")
    for authority in ("ca", "other-ca"):
        _openssl(directory, *_new_key(authority, authority), "-x509", "-days", "2", "-out", f"{authority}.crt")
    for name, names, days in (
        ("good", "IP:127.0.0.1", "2"),
        ("expired", "IP:127.0.0.1", "-1"),
        ("named", "DNS:node-1", "2"),
    ):
        request = ["-addext", f"subjectAltName={names}", "-out", f"{name}.csr"]
        _openssl(directory, *_new_key(name, name), *request)
        signing = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy"]
        _openssl(directory, "x509", "-req", "-in", f"{name}.csr", *signing, "-days", days, "-out", f"{name}.crt")
    return directory


@pytest.fixture
async def serve(pki: Path) -> AsyncIterator[Serve]:
    """Starts a kubelet with a certificate of that name; returns its port."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler, certificate: str = "good") -> int:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pki / f"{certificate}.crt", pki / f"{certificate}.key")
        application = web.Application()
        application.router.add_get("/configz", handler)
        runner = web.AppRunner(application, handler_cancellation=True)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        return int(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()
