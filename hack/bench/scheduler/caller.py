"""kube-scheduler's connection to an extender: serial requests, kept alive, Content-Length both ways.

The client is a bare socket, so that its share of the measured times is small; `cpu` has that share.
"""

from __future__ import annotations

import socket
import ssl
import time
from types import TracebackType
from typing import Self

_HEADERS = (
    b"POST /%s HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: %d\r\n"
    b"Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
)


class Caller:
    """A connection. `cpu` is this thread's CPU time in `calls` calls, in seconds, including the kernel's share."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="127.0.0.1")
        self.cpu = 0.0
        self.calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def post(self, verb: str, body: bytes) -> tuple[float, bytes]:
        """Returns the milliseconds until the end of the answer, and the answer. Raises OSError for an error status."""
        cpu = time.thread_time()
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
        self.cpu += time.thread_time() - cpu
        self.calls += 1
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
