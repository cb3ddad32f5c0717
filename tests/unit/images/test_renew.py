"""The base is named by digest, and the target that renews it asks a registry for nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from images import engines, renew
from images.application import ImageError

OLD, NEW = "sha256:" + "0" * 64, "sha256:" + "1" * 64


class Registry(ThreadingHTTPServer):
    """Like a public registry: an anonymous token, then the digest in a header."""

    digest = NEW

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_HEAD(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        if self.headers.get("Authorization") != "Bearer given":
            self.send_response(401)
            realm = f"http://127.0.0.1:{self.server.server_port}/token"
            scope = "repository:library/python:pull"
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="here",scope="{scope}"')
        elif self.path == "/v2/library/python/manifests/3.11-slim" and "image.index" in self.headers["Accept"]:
            self.send_response(200)
            self.send_header("Docker-Content-Digest", self.server.digest)
        else:
            self.send_response(404)
        self.end_headers()

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        body = json.dumps({"token": "given"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not on stderr."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def dockerfile(tmp_path: Path, registry: Registry) -> Path:
    path = tmp_path / "Dockerfile"
    path.write_text(f"ARG BASE=127.0.0.1:{registry.server_port}/library/python:3.11-slim@{OLD}\nFROM ${{BASE}}\n")
    return path


def test_the_base_is_named_by_digest() -> None:
    assert renew.pinned() == engines.BASE
    assert engines.BASE.startswith("docker.io/library/python:3.11-slim-bookworm@sha256:")


def test_the_current_digest_replaces_the_old_digest(registry: Registry, dockerfile: Path) -> None:
    before = dockerfile.read_text()
    assert renew.renew(dockerfile, scheme="http").endswith(f"@{NEW}")
    assert dockerfile.read_text() == before.replace(OLD, NEW)
    assert registry.requests == [
        "HEAD /v2/library/python/manifests/3.11-slim",
        "GET /token?service=here&scope=repository:library/python:pull",
        "HEAD /v2/library/python/manifests/3.11-slim",
    ]


def test_an_answer_that_is_no_digest_changes_nothing(registry: Registry, dockerfile: Path) -> None:
    registry.digest = "latest"
    before = dockerfile.read_text()
    with pytest.raises(ImageError, match="named no digest but 'latest'; the base stays as it is"):
        renew.renew(dockerfile, scheme="http")
    dockerfile.write_text(before.replace("3.11-slim", "3.9-slim"))
    with pytest.raises(ImageError, match="answered 404; the base stays as it is"):
        renew.renew(dockerfile, scheme="http")
