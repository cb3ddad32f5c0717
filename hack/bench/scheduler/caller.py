"""kube-scheduler's connection to an extender: serial requests, kept alive, Content-Length both ways.

The client is a bare socket, so that its share of the measured times is small.
"""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Self

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
