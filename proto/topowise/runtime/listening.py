"""Sockets to listen on, with an error that names the address: a port that is taken is somebody's mistake, not ours."""

from __future__ import annotations

import os
import socket

from topowise.errors import SourceError


def listen(address: str, port: int) -> socket.socket:
    """A TCP socket that listens; "::" is every address of both families. Raises SourceError if it cannot be had."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = address == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((address, port), family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as exc:
        # The text of create_server says the address once more.
        raise cannot(
            endpoint(address, port), os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc)
        ) from exc


def endpoint(address: str, port: int) -> str:
    """As URLs and gRPC have it."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def cannot(where: str, why: str) -> SourceError:
    """What to raise for an address on which we cannot listen."""
    return SourceError(where, f"cannot be listened on: {why}; name another address or port in the configuration")
