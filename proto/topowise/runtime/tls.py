"""TLS for served ports: 1.2 and later, HTTP/1.1 only, client certificates if a CA for them is configured.

Certificates and CAs are renewed while the process runs (cert-manager writes new files some weeks before the old
certificates expire), so a port must reload them without a restart. A context cannot drop a CA, nor the sessions of
clients of that CA. So a new context is made, and every new connection uses it from the start.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

from topowise import files
from topowise.errors import SourceError
from topowise.runtime.config import ServingTls
from topowise.runtime.log import kv

log = logging.getLogger(__name__)


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
