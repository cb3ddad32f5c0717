"""A gRPC server on a unix socket or a TCP port, whose certificates are read again after their files changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from topowise import files
from topowise.errors import SourceError
from topowise.runtime.config import ServingTls
from topowise.runtime.listening import cannot, checked_context, stamps
from topowise.runtime.log import kv

log = logging.getLogger(__name__)

_STOP_S: Final = 2.0
_HANDSHAKE_S: Final = 10
# Owner and group may connect, so that the pod's fsGroup decides who may.
_SOCKET_MODE: Final = 0o660


async def serve(add: Callable[[grpc.aio.Server], None], *, max_message: int, max_streams: int) -> None:
    """Serves until cancelled what `add` adds: services, and addresses to listen on. `max_message`: bytes of a request.
    `max_streams`: requests at once per connection. Raises SourceError."""
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", max_message),
            ("grpc.max_concurrent_streams", max_streams),
            ("grpc.server_handshake_timeout_ms", 1000 * _HANDSHAKE_S),
        ],
    )
    try:
        add(server)
        await server.start()
        await server.wait_for_termination()
    finally:
        await server.stop(_STOP_S)


def listen_on_socket(server: grpc.aio.Server, path: Path) -> None:
    """Adds a unix socket. Raises SourceError."""
    # A killed process leaves its socket behind; any other file at the path belongs to the user.
    if path.exists() and not path.is_socket():
        raise cannot(str(path), "there is a file that is no socket")
    path.unlink(missing_ok=True)
    before = os.umask(0o777 & ~_SOCKET_MODE)
    try:
        listen(server, f"unix:{path}", None)
    finally:
        os.umask(before)


def listen(server: grpc.aio.Server, address: str, tls: ServingTls | None) -> None:
    """Adds an address, with plaintext without `tls`. Raises SourceError."""
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, _credentials(tls))
    except RuntimeError as exc:
        raise cannot(address, "it is taken, or not ours") from exc


def _credentials(tls: ServingTls) -> grpc.ServerCredentials:
    """Returns credentials whose certificates are read again for new connections after their files changed."""
    stamp, current = stamps(tls), read_certificate(tls)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal stamp
        now = stamps(tls)
        if now == stamp:
            return None
        stamp = now
        try:
            return read_certificate(tls)
        except SourceError as exc:
            log.warning("Renewed certificate cannot be used, keeping the old one", extra=kv(why=exc))
            return None

    return grpc.dynamic_ssl_server_credentials(
        current,
        # None means "no change", which the type stubs lack.
        renewed,  # type: ignore[arg-type]
        require_client_authentication=bool(tls.client_ca_file),
    )


def read_certificate(tls: ServingTls) -> grpc.ServerCertificateConfiguration:
    """Returns the certificate for gRPC. Raises SourceError."""
    # gRPC would accept any bytes, and fail at each handshake.
    checked_context(tls)
    try:
        key, certificate = files.read_regular(tls.key_file), files.read_regular(tls.cert_file)
        ca = files.read_regular(tls.client_ca_file) if tls.client_ca_file else None
    except OSError as exc:
        raise SourceError(exc.filename or tls.cert_file, f"cannot be read: {exc.strerror}") from exc
    return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)
