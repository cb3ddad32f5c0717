"""A web server for probes and scrapes that uses a fixed share of the event loop, whatever its clients do.

The port is open to every pod by default, and its work runs in the thread that answers kube-scheduler. If it served
clients as fast as they ask, a storm of requests would stop the scheduler. So this server works in turns:

- A connection gets a single answer and is closed. There is no pipelining, and no connection is worth keeping.
- A turn takes little CPU time, and the next turn waits until the allowance is above zero again. All work for clients is
  charged: accepts, TLS handshakes, reads, answers. While the server waits, clients wait in the kernel.
- A peer address has a limited rate and number of connections. A connection beyond the rate is closed as soon as it is
  accepted. When there are too many connections, the peer with the most loses its oldest.
- Connections that are not accepted yet wait in queues by peer (`listening.listen_by_peer`), and each queue gets the
  same share of the accepts. So a kubelet and a Prometheus get through while other peers flood the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from topowise.bounded import Bounded
from topowise.runtime import clock
from topowise.runtime.backoff import TokenBucket
from topowise.runtime.cpu_allowance import Allowance
from topowise.runtime.log import kv

log = logging.getLogger(__name__)

_SWEEP_S: Final = 1.0
_TELL_S: Final = 60.0
# The kernel returns ready sockets in rotation; a short list per call keeps the rotation when a turn ends early.
_EVENTS_PER_POLL: Final = 8
_MOST_PEERS: Final = 4096
_PEER_BYTES: Final = 4 << 20
_RESET: Final = struct.pack("ii", 1, 0)
_END_OF_HEAD: Final = b"\r\n\r\n"
_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    500: b"Internal Server Error",
}


class Limits(NamedTuple):
    """Seconds, bytes, and numbers of connections."""

    share: float = 0.03
    """Share of the CPU time of the event loop's thread, for all clients together."""
    burst_s: float = 0.02
    """CPU time that is available at once after a time without requests."""
    turn_s: float = 0.001
    """CPU time after which a turn ends; other work of the loop waits for as long."""
    accepts: int = 4
    """Connections that a turn accepts from a queue."""
    per_second: float = 50.0
    """Connections of a peer address in the long run."""
    at_once: float = 100.0
    """Connections of a peer address at once, after a time without any."""
    connections: int = 64
    of_one_peer: int = 8
    head_bytes: int = 8192
    lifetime_s: float = 30.0
    """From the accept to the last byte of the answer."""


LIMITS: Final = Limits()


class Response(NamedTuple):
    """The answer of a page."""

    status: int
    body: bytes
    content_type: bytes = b"text/plain; charset=utf-8"


Page = Callable[[], Response]


class _Peer:
    """A peer address: its tokens for connections, and its open connections, oldest first."""

    __slots__ = ("connections", "tokens")

    def __init__(self, tokens: TokenBucket) -> None:
        self.tokens = tokens
        self.connections: dict[int, _Connection] = {}


class _Connection:
    """A client connection, from its accept to the end of its answer."""

    __slots__ = ("born", "left", "peer", "received", "shaken", "sock")

    def __init__(self, sock: socket.socket, peer: _Peer, born: float) -> None:
        self.sock = sock
        self.peer = peer
        self.born = born
        self.received = b""
        self.left = memoryview(b"")
        self.shaken = not isinstance(sock, ssl.SSLSocket)


class ProbeServer:
    """Serves `pages` by path. `context` returns the TLS context for a new connection, None for plain HTTP. `served`,
    `accepted` and `closed` (by reason) count connections; `turns` counts turns."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        limits: Limits = LIMITS,
        context: Callable[[], ssl.SSLContext] | None = None,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._pages = {path.encode(): page for path, page in pages.items()}
        self._limits = limits
        self._context = context
        self._clock = clock
        self._allowance = Allowance(limits.share, limits.burst_s, clock=clock)
        self._poll = select.epoll()
        self._listening: dict[int, socket.socket] = {}
        # Oldest first, because all connections have the same lifetime.
        self._open: dict[int, _Connection] = {}
        self._peers: Bounded[str, _Peer] = Bounded(_PEER_BYTES, lambda *_: 500, _MOST_PEERS)
        self._logged_at = float("-inf")
        self._unlogged: Counter[str] = Counter()
        self.turns = self.accepted = self.served = 0
        self.closed: Counter[str] = Counter()

    async def run(self, listening: Sequence[socket.socket]) -> None:
        """Serves until cancelled, then closes everything."""
        for sock in listening:
            self.listen_on(sock)
        try:
            while True:
                await self._wait()
                self.turn()
                # Yield even with allowance left: other work of the loop runs between two turns.
                await asyncio.sleep(self._allowance.delay())
        finally:
            self.close()

    def listen_on(self, sock: socket.socket) -> None:
        """Accepts from this socket from the next turn on; `close` closes it."""
        sock.setblocking(False)
        self._listening[sock.fileno()] = sock
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Closes everything."""
        for connection in list(self._open.values()):
            self._close(connection)
        for sock in self._listening.values():
            sock.close()
        self._poll.close()

    async def _wait(self) -> None:
        """Waits until a client is ready, or until it is time to check lifetimes."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        # A permanent reader would be called in every iteration of the loop while the server waits.
        loop.add_reader(self._poll.fileno(), woken.set)
        timer = loop.call_later(_SWEEP_S, woken.set) if self._open else None
        try:
            await woken.wait()
        finally:
            loop.remove_reader(self._poll.fileno())
            if timer is not None:
                timer.cancel()

    def turn(self) -> None:
        """Does some of the clients' work, and charges it."""
        self.turns += 1
        started = time.thread_time()
        self._sweep()
        while events := self._poll.poll(0, _EVENTS_PER_POLL):
            for fd, _ in events:
                if fd in self._listening:
                    self._accept(self._listening[fd])
                elif (connection := self._open.get(fd)) is not None:
                    self._serve(connection)
            if time.thread_time() - started > self._limits.turn_s:
                break
        self._tell()
        self._allowance.charge(time.thread_time() - started)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(self._limits.accepts):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                # No file descriptor is left. The connection stays in the queue, so the next turn is delayed.
                self._allowance.charge(self._limits.share * _SWEEP_S)
                return
            self.accepted += 1
            self._admit(sock, address[0])

    def _admit(self, sock: socket.socket, address: str) -> None:
        limits = self._limits
        # Open connections keep their reference to a peer that is dropped here.
        peer = self._peers.once(address, lambda: _Peer(TokenBucket(limits.per_second, limits.at_once, self._clock)))
        if peer.tokens.left() < 1.0:
            self._count("too many a second")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.close()
            return
        peer.tokens.take()
        if len(peer.connections) >= limits.of_one_peer:
            self._evict(peer)
        elif len(self._open) >= limits.connections:
            self._evict(
                max((connection.peer for connection in self._open.values()), key=lambda owner: len(owner.connections))
            )
        sock.setblocking(False)
        if self._context is not None:
            try:
                sock = self._context().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:
                sock.close()
                return
        connection = _Connection(sock, peer, peer.tokens.at)
        self._open[sock.fileno()] = peer.connections[sock.fileno()] = connection
        self._poll.register(sock.fileno(), select.EPOLLIN)
        # A well-behaved client has sent its request already.
        self._serve(connection)

    def _evict(self, peer: _Peer) -> None:
        self._count("too many at once")
        self._close(next(iter(peer.connections.values())))

    def _serve(self, connection: _Connection) -> None:
        try:
            events = self._step(connection)
        except (BlockingIOError, ssl.SSLWantReadError):
            events = select.EPOLLOUT if connection.left else select.EPOLLIN
        except ssl.SSLWantWriteError:
            events = select.EPOLLOUT
        except (OSError, ValueError):
            # The client is gone or does not use TLS, which is not worth a log line.
            events = 0
        if events:
            self._poll.modify(connection.sock.fileno(), events)
        else:
            self._close(connection)

    def _step(self, connection: _Connection) -> int:
        """Returns the poll event to wait for next, 0 at the end. Raises the socket's errors."""
        sock = connection.sock
        if not connection.shaken:
            assert isinstance(sock, ssl.SSLSocket)
            sock.do_handshake()
            connection.shaken = True
        if not connection.left:
            received = sock.recv(self._limits.head_bytes + 1)
            connection.received += received
            if not received:
                return 0
            if _END_OF_HEAD not in connection.received:
                if len(connection.received) <= self._limits.head_bytes:
                    return select.EPOLLIN
                self._count("long head")
                return 0
            connection.left = memoryview(self._answer(connection.received))
            connection.received = b""
        connection.left = connection.left[sock.send(connection.left) :]
        if connection.left:
            return select.EPOLLOUT
        self.served += 1
        if isinstance(sock, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                sock.unwrap()
        return 0

    def _answer(self, head: bytes) -> bytes:
        method, target, version = (*head.partition(b"\r\n")[0].split(b" "), b"", b"", b"")[:3]
        page = self._pages.get(target.partition(b"?")[0])
        if not version.startswith(b"HTTP/1."):
            answer = Response(400, b"expected a request of HTTP/1.1\n")
        elif method not in (b"GET", b"HEAD"):
            answer = Response(405, b"expected GET\n")
        elif page is None:
            answer = Response(404, b"no such page, expected one of %s\n" % b", ".join(self._pages))
        else:
            answer = _answer_of(page)
        reason = _REASONS.get(answer.status, b"Service Unavailable")
        return b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s" % (
            answer.status,
            reason,
            answer.content_type,
            len(answer.body),
            b"Allow: GET, HEAD\r\n" if answer.status == 405 else b"",
            b"" if method == b"HEAD" else answer.body,
        )

    def _sweep(self) -> None:
        oldest = self._clock() - self._limits.lifetime_s
        while self._open and (connection := next(iter(self._open.values()))).born < oldest:
            self._count("slow")
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        fd = connection.sock.fileno()
        del self._open[fd], connection.peer.connections[fd]
        # Closing removes the socket from the poll too.
        connection.sock.close()

    def _count(self, reason: str) -> None:
        self.closed[reason] += 1
        self._unlogged[reason] += 1

    def _tell(self) -> None:
        now = self._clock()
        if self._unlogged and now - self._logged_at > _TELL_S:
            counts = {reason.replace(" ", "_"): count for reason, count in self._unlogged.items()}
            log.warning("Closed connections to the port of metrics and probes", extra=kv(**counts))
            self._unlogged.clear()
            self._logged_at = now


def _answer_of(page: Page) -> Response:
    try:
        return page()
    except Exception:
        log.exception("A page of the port of metrics and probes cannot be made, which is a defect")
        return Response(500, b"this page has a defect, the log says more\n")
