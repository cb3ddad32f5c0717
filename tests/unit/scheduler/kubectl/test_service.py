"""`explain --service` against a server that answers like the service."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from topowise.errors import SourceError

from .conftest import Ask

HERE = Path(__file__).parent

SHOWN = {
    "node": "metal-a",
    "verdict": "fits",
    "score": 7,
    "precision": "exact",
    "policy": "restricted",
    "scope": "pod",
    "reason": "",
    "message": "",
    "steps": [],
    "text": "the pod goes to NUMA node 1 (cpu 4)",
    "notLookedAt": [],
    "kubelet": "",
    "deviceAffinity": [],
    "otherwise": "",
    "refusal": "",
    "claims": None,
}
# The plug-in names the pod of each row.
ROWS = [{"pod": "prod/web", **SHOWN}]


class Stub(HTTPServer):
    """`queries` are the received queries and bodies, `answer` is the body of every response."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.queries: list[tuple[dict[str, list[str]], Any]] = []
        self.answer = json.dumps([SHOWN])


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = urlsplit(self.path)
        assert parts.path == "/explain"
        self.server.queries.append((parse_qs(parts.query), body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.answer.encode())

    do_POST = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_pod_by_its_name(stub: Stub, ask: Ask) -> None:
    url = f"http://127.0.0.1:{stub.server_port}/"
    answer = ask("explain", "web", "-n", "prod", "--service", url, "--node", "metal-a")
    assert answer.status == 0
    assert "metal-a   fits      7       the pod goes to NUMA node 1 (cpu 4)" in answer.text
    assert stub.queries == [({"pod": ["prod/web"], "view": ["waiting"], "node": ["metal-a"]}, None)]
    assert json.loads(ask("explain", "web", "-n", "prod", "--service", url, "-o", "json").text) == ROWS


def test_the_next_step_of_a_newer_service(stub: Stub, ask: Ask) -> None:
    stub.answer = json.dumps({"cause": "excluded", "nextStep": "uncordon metal-a", "nodes": [SHOWN]})
    url = f"http://127.0.0.1:{stub.server_port}/"
    assert "Next step: uncordon metal-a\n" in ask("explain", "web", "-n", "prod", "--service", url).text
    assert json.loads(ask("explain", "web", "-n", "prod", "--service", url, "-o", "json").text) == ROWS


def test_pods_by_their_manifests(stub: Stub, ask: Ask) -> None:
    url = f"http://127.0.0.1:{stub.server_port}"
    ask("explain", "-f", str(HERE / "manifests.yaml"), "--service", url)
    assert [body["metadata"]["name"] for _, body in stub.queries] == ["trainer-2", "cache", "report"]
    assert stub.queries[0][1]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == 6


def test_a_refusal_of_the_service_is_an_error(stub: Stub, ask: Ask) -> None:
    url = f"http://127.0.0.1:{stub.server_port}"
    for said, message in (('{"error": "not ready: pods"}', "not ready: pods"), ("[", "sent an invalid answer")):
        stub.answer = said
        with pytest.raises(SourceError, match=message):
            ask("explain", "web", "-n", "prod", "--service", url)


@pytest.mark.parametrize(
    ("url", "message"),
    [("http://127.0.0.1:1", "cannot be asked"), ("file:///etc/passwd", "is not an address"), ("x", "is no")],
)
def test_an_unreachable_service(url: str, message: str, ask: Ask) -> None:
    with pytest.raises(SourceError, match=message):
        ask("explain", "web", "-n", "prod", "--service", url)
