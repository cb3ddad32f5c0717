"""Sockets to listen on, with an error that names the address: a port that is taken is somebody's mistake, not ours."""

from __future__ import annotations

import ctypes
import logging
import os
import random
import socket
import struct
from typing import Final

from topowise.errors import SourceError
from topowise.runtime.log import kv

log = logging.getLogger(__name__)

_BACKLOG: Final = 2048
# A power of two; the program takes as many bits of the hash.
_QUEUE_BITS: Final = 4
# Together as many: each connection that waits takes memory of the kernel, which counts for the container.
_BACKLOG_BY_PEER: Final = _BACKLOG >> _QUEUE_BITS
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
# linux/filter.h, linux/bpf_common.h: offsets from here on count from the header of the network layer.
_NETWORK_HEADER: Final = 0x100000000 - 0x100000
_LOAD_WORD, _LOAD_BYTE, _MULTIPLY, _SHIFT_RIGHT, _IF_EQUAL, _RETURN = 0x20, 0x30, 0x24, 0x74, 0x15, 0x16
_IPV4_SOURCE, _IPV6_SOURCE_END = 12, 20


def listen(address: str, port: int) -> socket.socket:
    """A TCP socket that listens; "::" is every address of both families. Raises SourceError if it cannot be had."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = address == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as exc:
        # The text of create_server says the address once more.
        raise cannot(
            endpoint(address, port), os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc)
        ) from exc


def listen_by_peer(address: str, port: int, multiplier: int = 0) -> list[socket.socket]:
    """TCP sockets that listen on one address; the kernel puts all connections of one peer address into one of them.

    Connections wait in the queue of a socket until they are accepted. A peer that opens more connections than the
    process accepts fills one queue, and connections of most other peers wait in other queues. One socket alone where
    the kernel cannot do that. `multiplier` is an odd number of 32 bits for the hash, 0 for a random number. Raises
    SourceError if the address cannot be listened on.
    """
    # Bound alone: with SO_REUSEPORT from the start, a second process of this user could listen here unnoticed.
    first = listen(address, port)
    sockets = [first]
    try:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        both = first.family == socket.AF_INET6 and not first.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        for _ in range((1 << _QUEUE_BITS) - 1):
            sockets.append(_beside(first, dualstack=both))  # noqa: PERF401 - what is made is closed after a failure
        _attach(first, _by_peer(multiplier or random.getrandbits(32) | 1))
        first.listen(_BACKLOG_BY_PEER)
    except OSError as exc:
        log.info("The kernel does not queue connections by peer", extra=kv(port=port, why=exc))
        for extra in sockets[1:]:
            extra.close()
        return [first]
    return sockets


def _beside(first: socket.socket, *, dualstack: bool) -> socket.socket:
    """Another socket on the same address. Raises OSError."""
    where = first.getsockname()[:2]
    return socket.create_server(
        where, family=first.family, backlog=_BACKLOG_BY_PEER, reuse_port=True, dualstack_ipv6=dualstack
    )


def _by_peer(multiplier: int) -> bytes:
    """A classic BPF program: the number of the socket, by a hash of the peer's address."""
    program = (
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_IF_EQUAL, 2, 0, 6),
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + _IPV4_SOURCE),
        # A jump over the next instruction, whatever was loaded.
        (_IF_EQUAL, 1, 1, 0),
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + _IPV6_SOURCE_END),
        (_MULTIPLY, 0, 0, multiplier),
        (_SHIFT_RIGHT, 0, 0, 32 - _QUEUE_BITS),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _attach(listening: socket.socket, program: bytes) -> None:
    """Raises OSError."""
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(held))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, described)


def endpoint(address: str, port: int) -> str:
    """As URLs and gRPC have it."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def cannot(where: str, why: str) -> SourceError:
    """What to raise for an address on which we cannot listen."""
    return SourceError(where, f"cannot be listened on: {why}; name another address or port in the configuration")
