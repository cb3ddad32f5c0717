"""A hostile client of a port on loopback, as a process of its own: `python attacker.py KIND PORT S`.

The process ends after S seconds, opens a limited number of connections per second, and prints its counts as JSON. Its
address is 127.0.0.2, so that a server can distinguish it from other clients.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
from typing import Final, NamedTuple

import msgspec

_FROM: Final = "127.0.0.2"
_TICK_S: Final = 0.01
_GET: Final = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_POST: Final = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
_EXPLAINED: Final = b'{"metadata":{"name":"a","namespace":"a","uid":"a"},"spec":{"containers":[{"name":"c"}]}}'


class Attack(NamedTuple):
    """What each of `connections` does. A connection that the server closes is opened again."""

    request: bytes
    """Sent again and again."""
    connections: int = 30
    opens_per_s: float = 200.0
    every_s: float = 0.0
    """Between two parts of `part_bytes` of the request; 0 sends as fast as the server reads."""
    part_bytes: int = 1 << 16
    keeps: bool = True
    """False closes a connection as soon as it is open."""
    waits: bool = False
    """True sends the next request after the answer to the last one."""


def _asking(request: bytes) -> Attack:
    return Attack(request, waits=True)


def _pipelined(request: bytes) -> Attack:
    return Attack(request * 50)


ATTACKS: Final = {
    "pipelined /metrics": _pipelined(_GET % b"/metrics"),
    "pipelined /livez": _pipelined(_GET % b"/livez"),
    "pipelined /readyz": _pipelined(_GET % b"/readyz"),
    "connections": Attack(b"", opens_per_s=5000.0, keeps=False),
    "silent connections": Attack(b"", connections=400, opens_per_s=500.0),
    "slow heads": Attack(b"POST /filter HTTP/1.1\r\nX: " + b"a" * 10_000, 400, 400.0, 0.2, 1),
    "bytes without end": Attack(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (1 << 20)),
    "pipelined /explain": _pipelined(_POST % (b"/explain", len(_EXPLAINED), _EXPLAINED)),
    "/explain": _asking(_POST % (b"/explain", len(_EXPLAINED), _EXPLAINED)),
    "/ui": _asking(_GET % b"/ui"),
    "unknown pages": _asking(_GET % b"/nosuch"),
    "pipelined unknown pages": _pipelined(_GET % b"/nosuch"),
}


class Got(msgspec.Struct):
    """What the attacker has done and received."""

    opened: int = 0
    answers: int = 0
    cpu_s: float = 0.0


class _Client:
    """A connection, and the bytes that remain to send."""

    def __init__(self, attack: Attack) -> None:
        self.left = memoryview(attack.request)
        self.next_at = 0.0


def run(attack: Attack, port: int, seconds: float) -> Got:
    """Attacks for so long."""
    got, poll, clients = Got(), selectors.DefaultSelector(), dict[socket.socket, _Client]()
    started = time.monotonic()
    while (now := time.monotonic()) < started + seconds:
        while len(clients) < attack.connections and got.opened < (now - started) * attack.opens_per_s:
            sock = _open(port)
            got.opened += 1
            if sock is None or not attack.keeps:
                if sock is not None:
                    sock.close()
                continue
            clients[sock] = _Client(attack)
            poll.register(sock, selectors.EVENT_READ)
        for key, _ in poll.select(_TICK_S):
            assert isinstance(key.fileobj, socket.socket)
            answered = got.answers
            is_open = _read(key.fileobj, got)
            if attack.waits and got.answers > answered:
                clients[key.fileobj].left = memoryview(attack.request)
            if not is_open:
                poll.unregister(key.fileobj)
                key.fileobj.close()
                del clients[key.fileobj]
        if not attack.connections or not clients:
            time.sleep(_TICK_S)
        for sock, client in clients.items():
            _write(sock, client, attack, now)
    got.cpu_s = time.process_time()
    return got


def _open(port: int) -> socket.socket | None:
    try:
        sock = socket.create_connection(("127.0.0.1", port), timeout=1.0, source_address=(_FROM, 0))
    except OSError:
        return None
    sock.setblocking(False)
    return sock


def _read(sock: socket.socket, got: Got) -> bool:
    """Returns whether the server has not closed the connection."""
    try:
        received = sock.recv(1 << 18)
    except BlockingIOError:
        return True
    except OSError:
        return False
    got.answers += received.count(b"HTTP/1.1 ")
    return bool(received)


def _write(sock: socket.socket, client: _Client, attack: Attack, now: float) -> None:
    if client.left and now >= client.next_at:
        client.next_at = now + attack.every_s
        with contextlib.suppress(OSError):
            client.left = client.left[sock.send(client.left[: attack.part_bytes]) :]
            if not client.left and not attack.waits:
                client.left = memoryview(attack.request)


if __name__ == "__main__":
    os.nice(19)
    result = run(ATTACKS[sys.argv[1]], int(sys.argv[2]), float(sys.argv[3]))
    sys.stdout.write(msgspec.json.encode(result).decode())
