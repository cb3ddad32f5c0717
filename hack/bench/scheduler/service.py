"""The scheduler service as a child process, and kube-scheduler's connection to it: serial requests, kept alive,
Content-Length both ways. The client is a bare socket, so that its share of the measured times is small."""

from __future__ import annotations

import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import yaml

from bench import figures
from sandbox.apiserver import documents
from sandbox.processes import Process, free_ports

_START_LIMIT_S: Final = 180.0
_IDLE_S: Final = 0.1
# No proxy from the environment: this is loopback.
_opener: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str, body: bytes | None = None) -> bytes:
    """Sends a GET, or a POST with a body, and returns the answer. Raises URLError and OSError."""
    with _opener.open(urllib.request.Request(url, data=body), timeout=10) as response:
        answer: bytes = response.read()
        return answer


class Service:
    """The scheduler service as a child process. `start_s` is the time from its start until it was ready."""

    def __init__(self, stack: ExitStack, work: Path, api: str) -> None:
        self.port, self.health_port = free_ports(2)
        name = f"service-{self.port}"
        access = documents.write_kubeconfig(work / f"{name}.kubeconfig", api)
        document = {
            "apiVersion": "topowise.io/v1alpha1",
            "kind": "SchedulerConfiguration",
            "client": {"kubeconfig": str(access)},
            "extender": {"port": self.port},
            "serving": {"address": "127.0.0.1", "port": self.health_port},
        }
        file = work / f"{name}.yaml"
        file.write_text(yaml.safe_dump(document))
        # As the container image has it: gRPC's threads would have an arena of the allocator each.
        serve = [sys.executable, "-m", "topowise_scheduler", "serve", "--config", str(file)]
        arguments = ["env", "MALLOC_ARENA_MAX=2", *serve]
        process = Process(name, arguments, work / f"{name}.log")
        since = time.perf_counter()
        stack.enter_context(process)
        self.pid = process.pid
        while self._get("/readyz") is None:
            process.check()
            if time.perf_counter() - since > _START_LIMIT_S:
                raise RuntimeError(f"{name} is not ready:\n{process.tail()}")
            time.sleep(0.05)
        self.start_s = time.perf_counter() - since

    def cpu_ms(self) -> float:
        """Returns the CPU time since the start, in milliseconds."""
        return figures.cpu_seconds(self.pid) * 1e3

    def wait_until_idle(self, most_s: float = 5.0) -> None:
        """Waits until the service is nearly idle."""
        until, before = time.perf_counter() + most_s, self.cpu_ms()
        while time.perf_counter() < until:
            time.sleep(_IDLE_S)
            now = self.cpu_ms()
            if now - before < _IDLE_S * 1e3 / 20:
                return
            before = now

    def metric(self, name: str) -> float:
        """Returns a sample by its name with labels, without the common prefix; at most a second old."""
        while (text := self._get("/metrics")) is None:
            time.sleep(_IDLE_S)
        for line in text.decode().splitlines():
            if line.startswith(f"topowise_scheduler_{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def _get(self, path: str) -> bytes | None:
        try:
            return fetch(f"http://127.0.0.1:{self.health_port}{path}")
        except (urllib.error.URLError, OSError):
            return None


_HEADERS = (
    b"POST /%s HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: %d\r\n"
    b"Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
)


class Caller:
    """A connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def post(self, verb: str, body: bytes) -> tuple[float, bytes]:
        """Returns the milliseconds until the end of the answer, and the answer. Raises OSError for an error status."""
        since = time.perf_counter()
        self._socket.sendall(_HEADERS % (verb.encode(), len(body)) + body)
        head, _, rest = self._until(b"\r\n\r\n").partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = bytearray(length)
        answer[: len(rest)] = rest
        view, got = memoryview(answer), len(rest)
        while got < length:
            got += self._socket.recv_into(view[got:])
        took = time.perf_counter() - since
        if not head.startswith(b"HTTP/1.1 20"):
            raise OSError(f"{verb}: {head[:40]!r}")
        return took * 1e3, bytes(answer)

    def _until(self, mark: bytes) -> bytes:
        received = b""
        while mark not in received:
            part = self._socket.recv(1 << 16)
            if not part:
                raise OSError("the service closed the connection")
            received += part
        return received
