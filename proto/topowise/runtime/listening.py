"""Sockets to listen on, with an error that names the address: a port that is taken is somebody's mistake, not ours."""

from __future__ import annotations

import os
import socket

from topowise.errors import SourceError


def listen(address: str, port: int) -> socket.socket:
    """A TCP socket that listens. Raises SourceError if the address is taken, or not ours."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=2048)
    except OSError as exc:
        # The text of create_server says the address once more.
        raise cannot(f"{address}:{port}", os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc)) from exc


def cannot(where: str, why: str) -> SourceError:
    """What to raise for an address on which we cannot listen."""
    return SourceError(where, f"cannot be listened on: {why}; name another address or port in the configuration")
