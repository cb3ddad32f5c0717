"""Listening sockets, and TLS for served ports: 1.2 and later, HTTP/1.1 only, client certificates if a CA is configured.

An error names the address, because a taken port is a mistake of the configuration. Certificates and CAs are renewed
while the process runs (cert-manager writes new files some weeks before the old certificates expire), so a port must
reload them without a restart. A context cannot drop a CA, nor the sessions of clients of that CA. So a new context is
made, and every new connection uses it from the start.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import random
import socket
import ssl
import struct
from typing import Any, Final

from topowise import files
from topowise.errors import SourceError
from topowise.runtime.config import ServingTls
from topowise.runtime.log import kv

log = logging.getLogger(__name__)

_BACKLOG: Final = 2048
# A power of two; the program uses this many bits of the hash.
_QUEUE_BITS: Final = 4
# All queues together have _BACKLOG entries: each waiting connection uses kernel memory, which counts for the container.
_BACKLOG_BY_PEER: Final = _BACKLOG >> _QUEUE_BITS
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
# linux/filter.h, linux/bpf_common.h: offsets from here on count from the header of the network layer.
_NETWORK_HEADER: Final = 0x100000000 - 0x100000
_LOAD_WORD, _LOAD_BYTE, _MULTIPLY, _SHIFT_RIGHT, _IF_EQUAL, _RETURN = 0x20, 0x30, 0x24, 0x74, 0x15, 0x16
_IPV4_SOURCE, _IPV6_SOURCE_END = 12, 20


def listen(address: str, port: int) -> socket.socket:
    """Returns a listening TCP socket; "::" is every address of both families. Raises SourceError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = address == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as exc:
        # create_server's text has the address too.
        raise cannot(
            endpoint(address, port), os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc)
        ) from exc


def listen_by_peer(address: str, port: int, multiplier: int = 0) -> list[socket.socket]:
    """Returns TCP sockets that listen on an address; the kernel assigns all connections of a peer address to the same
    socket.

    Connections wait in the queue of a socket until they are accepted. A peer that opens more connections than the
    process accepts fills only its queue; connections of most other peers wait in other queues. Returns a single socket
    where the kernel does not support this. `multiplier` is an odd 32-bit number for the hash, 0 for a random number.
    Raises SourceError if it cannot listen on the address.
    """
    # Bind without SO_REUSEPORT: otherwise a second process of this user could listen here unnoticed.
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
    """Returns another socket on the same address. Raises OSError."""
    address = first.getsockname()[:2]
    return socket.create_server(
        address, family=first.family, backlog=_BACKLOG_BY_PEER, reuse_port=True, dualstack_ipv6=dualstack
    )


def _by_peer(multiplier: int) -> bytes:
    """Returns a classic BPF program that selects the socket by a hash of the peer's address."""
    program = (
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_IF_EQUAL, 2, 0, 6),
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + _IPV4_SOURCE),
        # Jump over the next instruction, whatever was loaded.
        (_IF_EQUAL, 1, 1, 0),
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + _IPV6_SOURCE_END),
        (_MULTIPLY, 0, 0, multiplier),
        (_SHIFT_RIGHT, 0, 0, 32 - _QUEUE_BITS),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _attach(listening: socket.socket, program: bytes) -> None:
    """Attaches the program to the sockets of the address. Raises OSError."""
    buffer = ctypes.create_string_buffer(program, len(program))
    program_header = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program_header)


def endpoint(address: str, port: int) -> str:
    """Returns address and port as in URLs and gRPC targets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def cannot(where: str, why: str) -> SourceError:
    """Returns the error for an address that cannot be listened on."""
    return SourceError(where, f"cannot be listened on: {why}; name another address or port in the configuration")


class _Listening(ssl.SSLContext):
    """The context that the event loop listens with; the loop makes connections by `wrap_bio` only."""

    current: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*arguments, **named)


class Certificate:
    """The certificate of a port. Listen with `context`; it always serves the current files. Raises SourceError with the
    file that cannot be used."""

    def __init__(self, settings: ServingTls) -> None:
        self._settings = settings
        self._seen = stamps(settings)
        self.context = _Listening(ssl.PROTOCOL_TLS_SERVER)
        self.context.current = checked_context(settings)

    async def keep_current(self, interval: float = 10.0) -> None:
        """Checks for changed files until cancelled."""
        while True:
            await asyncio.sleep(interval)
            self.renew()

    def renew(self) -> bool:
        """Loads changed files. While they do not match each other, the old files stay in use."""
        now = stamps(self._settings)
        if now == self._seen:
            return False
        self._seen = now
        try:
            self.context.current = checked_context(self._settings)
        except SourceError as exc:
            log.warning("Renewed certificate cannot be used, keeping the old certificate", extra=kv(why=exc))
            return False
        log.info("Serving the renewed certificate", extra=kv(file=self._settings.cert_file))
        return True


def checked_context(settings: ServingTls) -> ssl.SSLContext:
    """Returns a context of the present files. Raises SourceError with the file that cannot be used."""
    context = files.as_go(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Go clients use HTTP/2 if it is offered, and it is slower here.
    context.set_alpn_protocols(["http/1.1"])
    try:
        files.load_chain(context, settings.cert_file, settings.key_file)
    except (OSError, ssl.SSLError) as exc:
        raise SourceError(settings.cert_file, f"is not a usable certificate with {settings.key_file}: {exc}") from exc
    if settings.client_ca_file:
        try:
            with files.regular(settings.client_ca_file) as name:
                context.load_verify_locations(name)
        except (OSError, ssl.SSLError) as exc:
            raise SourceError(settings.client_ca_file, f"is not a usable CA bundle: {exc}") from exc
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def stamps(settings: ServingTls) -> tuple[tuple[int, int], ...]:
    """Returns a value that changes when a file changes."""
    return files.stamps(*filter(None, (settings.cert_file, settings.key_file, settings.client_ca_file)))
