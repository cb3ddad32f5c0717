"""Closes connections whose client is too slow, and limits the number of connections.

uvicorn with httptools waits forever: for the first byte, for the rest of a head or body, and for a client that does not
read its answer. A single byte now and then even cancels the keep-alive timer, and a head may have any length (seen with
0.54). So each connection records since when it waits for the client, and a sweep every second closes connections that
wait too long.

Idle connections are allowed for longer. Go keeps an idle connection for 90 s, also a dialled connection that it has not
used yet, and a POST that arrives as the service closes the connection is a failed scheduling attempt. Above the maximum
number, a connection without any request is closed first, then the connection that has been idle for longest, and the
new connection only if all are busy. So a client that opens hundreds does not displace kube-scheduler.

A pipelined request closes the connection. Go's client, browsers and curl do not pipeline; uvicorn would parse thousands
of requests, stop reading, and not notice that the client has gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from topowise.runtime.log import kv

log = logging.getLogger(__name__)

_SWEEP_S: Final = 1.0
_TELL_S: Final = 60.0
# Old clients send a line break after a body, and no client sends more.
_MAX_BETWEEN: Final = 64
_SEPARATORS: Final = len(": \r\n")
# In an ASGI scope: whether the client still waits for the answer.
IS_OPEN: Final = "topowise.is_open"


class Limits(NamedTuple):
    """Seconds, bytes, and a number of connections."""

    head_s: float = 10.0
    """From the first byte of a request to the end of its head."""
    body_s: float = 60.0
    """From the end of the head to the end of the body: 64 MiB at 10 Mbit/s."""
    silence_s: float = 10.0
    """Between two parts of a body."""
    idle_s: float = 120.0
    """Between two requests, and before the first."""
    unread_s: float = 30.0
    """Until the client reads an answer."""
    head_bytes: int = 1 << 16
    connections: int = 512


LIMITS: Final = Limits()


class _Joined:
    """A transport on which the head of an answer waits for its body.

    uvicorn writes head and body separately, which wakes the client twice and costs another system call.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Sends, or keeps the head of an answer."""
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head += data
            return
        head, self._head = self._head, b""
        self._transport.write(head + data if head else data)

    def flush(self) -> None:
        """An answer without a body is over."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Sends what is kept, then as Transport.close."""
        self.flush()
        self._transport.close()


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which records since when it waits for the client."""

    transport: Any

    def __init__(self, *arguments: Any, limits: Limits, closed: Counter[str], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._closed = closed
        # When the request that is being read began, and when its body began; None between requests.
        self._head_at: float | None = None
        self._body_at: float | None = None
        self._heard_at = self._idle_at = self.loop.time()
        # When uvicorn stopped writing because the client does not read.
        self._stalled_at: float | None = None
        # Bytes of the head that is being read: parsed, and received since the last request.
        self._head_bytes = self._unparsed = 0
        self._has_asked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _Joined(transport)
        if len(self.connections) > self._limits.connections:
            idle = [each for each in self.connections if isinstance(each, Connection) and each._is_idle]
            victim = min(idle, key=lambda each: (each is self, each._has_asked, each._idle_at), default=self)
            victim._drop("too many")

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        if self._body_at is None:
            self._unparsed += len(data)
        super().data_received(data)
        # A field is counted when it is complete; until then, its received bytes count. Between requests, line breaks
        # are the only bytes that may precede the next request.
        most = self._limits.head_bytes if self._head_at is not None else _MAX_BETWEEN
        if self._body_at is None and self._unparsed > most:
            self._drop("long head")

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        """Counts heads and trailers. A head that arrives together with its body is measured only here."""
        self._head_bytes += size + _SEPARATORS
        if self._head_bytes > self._limits.head_bytes:
            self._closed["long head"] += 1
            # The parser stops and answers 400, and the request is not handled.
            raise ValueError("head is too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_at = self.loop.time()

    def on_headers_complete(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._drop("pipelined")
            # Otherwise its body would become part of the request that is being answered.
            raise ValueError("a request before the answer to the last one")
        self.scope[IS_OPEN] = self._is_open  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        self._unparsed = 0
        self._body_at = self.loop.time()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_at = self._body_at = None
        self._head_bytes = self._unparsed = 0
        self._has_asked = True

    def on_response_complete(self) -> None:
        self.transport.flush()
        super().on_response_complete()
        self._idle_at = self.loop.time()
        # This module's timer replaces it, because single bytes cancel uvicorn's.
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_at = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_at = None

    def sweep(self, now: float) -> None:
        """Closes the connection if it has waited for the client for too long."""
        reason = self._overdue(now)
        if reason:
            self._drop(reason)

    def _overdue(self, now: float) -> str:
        limits = self._limits
        if self._stalled_at is not None:
            return "unread answer" if now - self._stalled_at > limits.unread_s else ""
        if self._head_at is not None:
            # The service itself may have stopped reading.
            if self.flow.read_paused:
                self._heard_at = now
                return ""
            if self._body_at is None:
                return "slow head" if now - self._head_at > limits.head_s else ""
            if now - self._body_at > limits.body_s or now - self._heard_at > limits.silence_s:
                return "slow body"
            return ""
        return "idle" if self._is_idle and now - self._idle_at > limits.idle_s else ""

    def _is_open(self) -> bool:
        return not self.transport.is_closing()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is being read or answered."""
        return self._head_at is None and (self.cycle is None or self.cycle.response_complete)

    def _drop(self, reason: str) -> None:
        self._closed[reason] += 1
        # close() would wait for a client that does not read.
        if self.transport.get_write_buffer_size() or not self._is_idle:
            self.transport.abort()
        else:
            self.transport.close()


class Guard:
    """The connections of one server. `protocol` is what uvicorn takes for its `http`."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._closed: Counter[str] = Counter()
        self._logged_at = float("-inf")
        self._open: set[Any] = set()

    def protocol(self, **named: Any) -> Connection:
        """A new connection."""
        self._open = named["server_state"].connections
        return Connection(limits=self._limits, closed=self._closed, **named)

    async def run(self) -> None:
        """Sweeps until cancelled."""
        loop = asyncio.get_running_loop()
        interval = min(_SWEEP_S, min(self._limits[:5]) / 2)
        while True:
            await asyncio.sleep(interval)
            now = loop.time()
            for connection in list(self._open):
                if isinstance(connection, Connection) and not connection.transport.is_closing():
                    connection.sweep(now)
            # An idle client is no reason for a warning.
            self._closed.pop("idle", None)
            if self._closed and now - self._logged_at > _TELL_S:
                log.warning("Closed connections of clients that keep us waiting", extra=kv(**self._named()))
                self._closed.clear()
                self._logged_at = now

    def _named(self) -> dict[str, int]:
        return {reason.replace(" ", "_"): count for reason, count in self._closed.items()}
