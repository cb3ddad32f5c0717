"""TLS for the ports we serve: 1.2 and later, HTTP/1.1 only, client certificates if a CA for them is named."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from topowise.errors import SourceError
from topowise.runtime.config import ServingTls
from topowise.runtime.log import kv

log = logging.getLogger(__name__)


def server_context(settings: ServingTls) -> ssl.SSLContext:
    """Raises SourceError naming the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Go takes HTTP/2 wherever it is offered, and it is the slower one here.
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, settings)
    if settings.client_ca_file:
        try:
            context.load_verify_locations(settings.client_ca_file)
        except (OSError, ssl.SSLError) as exc:
            raise SourceError(settings.client_ca_file, f"is not a usable CA bundle: {exc}") from exc
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(context: ssl.SSLContext, settings: ServingTls) -> None:
    """(Re-)reads certificate and key into a context in use; new connections get them. Raises SourceError."""
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    except (OSError, ssl.SSLError) as exc:
        raise SourceError(settings.cert_file, f"is not a usable certificate with {settings.key_file}: {exc}") from exc


async def keep_current(context: ssl.SSLContext, settings: ServingTls, *, interval: float = 10.0) -> None:
    """Loads certificate and key again whenever a file of them changed, until cancelled.

    A pair that does not fit yet, because only one file was renewed so far, leaves the old one in use.
    """
    seen = _stamps(settings)
    while True:
        await asyncio.sleep(interval)
        now = _stamps(settings)
        if now == seen:
            continue
        try:
            load_certificate(context, settings)
        except SourceError as exc:
            log.warning("Renewed certificate cannot be used, keeping the old one", extra=kv(why=exc))
        else:
            log.info("Serving the renewed certificate", extra=kv(file=settings.cert_file))
        seen = now


def _stamps(settings: ServingTls) -> tuple[int, ...]:
    stamps = []
    for name in (settings.cert_file, settings.key_file):
        try:
            stamps.append(Path(name).stat().st_mtime_ns)
        except OSError:
            stamps.append(0)
    return tuple(stamps)
