"""Connections that cost us something and bring nothing are closed.

uvicorn with httptools waits for ever: for the first byte, for the rest of a head or of a body, and for a client that
does not read its answer; one byte now and then even takes the keep-alive timer away, and a head may be of any length
(seen with 0.54). So each connection notes since when the client owes us something, and a sweep every second closes
those that owe it for too long.

An idle connection is no such debt. Go keeps one for 90 s, also one that it dialled and has not used yet, and a POST
that meets our closing it is a failed scheduling attempt; so these live longer than that. When there are too many
connections, one that has never asked anything goes first, then the one that has been idle for longest, and only if all
others are at work the new one: whoever opens hundreds does not keep out kube-scheduler, who uses the ones it has.

A request before the answer to the last one closes the connection. Go's client, browsers and curl send none; uvicorn
would parse thousands, stop to read, and so not notice that their client has gone.
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
# Old clients send a line break after a body; nobody sends more.
_MAX_BETWEEN: Final = 64
_SEPARATORS: Final = len(": \r\n")
# In an ASGI scope: whether anybody still waits for the answer.
IS_OPEN: Final = "topowise.is_open"


class Limits(NamedTuple):
    """Seconds, bytes, and a number of connections."""

    head_s: float = 10.0
    """From the first byte of a request to the end of its head."""
    body_s: float = 60.0
    """From there to the end of its body: 64 MiB at 10 Mbit/s."""
    silence_s: float = 10.0
    """Between two parts of a body."""
    idle_s: float = 120.0
    """Between two requests, and before the first."""
    unread_s: float = 30.0
    """For an answer to be taken."""
    head_bytes: int = 1 << 16
    connections: int = 512


LIMITS: Final = Limits()


class _Joined:
    """A transport on which the head of an answer waits for its body.

    uvicorn writes them apart, which wakes the client twice and costs a system call more.
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
    """uvicorn's connection, which knows since when it waits for what."""

    transport: Any

    def __init__(self, *arguments: Any, limits: Limits, closed: Counter[str], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._closed = closed
        # When the request that is being read began, and its body if it is that far; None between requests.
        self._head_at: float | None = None
        self._body_at: float | None = None
        self._heard_at = self._idle_at = self.loop.time()
        # When the answers that the client does not take became too many to write more.
        self._stalled_at: float | None = None
        # Of the head that is being read: what is parsed, and all that has come since the last request.
        self._head_bytes = self._unparsed = 0
        self._has_asked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _Joined(transport)
        if len(self.connections) > self._limits.connections:
            idle = [one for one in self.connections if isinstance(one, Connection) and one._is_idle]
            victim = min(idle, key=lambda one: (one is self, one._has_asked, one._idle_at), default=self)
            victim._drop("too many")

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        if self._body_at is None:
            self._unparsed += len(data)
        super().data_received(data)
        # A field is counted when it is complete; until then, what has come of it counts. Between requests there is
        # nothing to wait for but the next one, and line breaks before it are none.
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
        """Heads and trailers; one that came in one go with other parts of its request is measured here alone."""
        self._head_bytes += size + _SEPARATORS
        if self._head_bytes > self._limits.head_bytes:
            self._closed["long head"] += 1
            # The parser gives up and says 400, and what the head was for is not done.
            raise ValueError("head is too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_at = self.loop.time()

    def on_headers_complete(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._drop("pipelined")
            # Or its body would become part of the request that is being answered.
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
        # Ours is the one that a byte now and then does not take away.
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_at = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_at = None

    def sweep(self, now: float) -> None:
        """Closes the connection if the client owes us something for too long."""
        reason = self._debt(now)
        if reason:
            self._drop(reason)

    def _debt(self, now: float) -> str:
        limits = self._limits
        if self._stalled_at is not None:
            return "unread answer" if now - self._stalled_at > limits.unread_s else ""
        if self._head_at is not None:
            # We may have asked the client to wait.
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
        """A new connection's."""
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
            # A client that has gone idle is nothing to tell.
            self._closed.pop("idle", None)
            if self._closed and now - self._logged_at > _TELL_S:
                log.warning("Closed connections of clients that keep us waiting", extra=kv(**self._named()))
                self._closed.clear()
                self._logged_at = now

    def _named(self) -> dict[str, int]:
        return {reason.replace(" ", "_"): count for reason, count in self._closed.items()}
