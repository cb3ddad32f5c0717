"""The running kubelet's configuration from its own HTTPS port: GET /configz, as kubectl proxies it.

The answer is {"kubeletconfig": {...}} with flags and defaults applied, so nothing is defaulted here: a map that is
missing is empty (omitempty), evictionHard too. The certificate is always verified, against a CA that is named; a
token sent to whoever answers on port 10250 would be a gift. Redirects are refused for the same reason.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from topowise import __version__, documents, kubeletconfig
from topowise.errors import SourceError
from topowise.kube.api import without_secret
from topowise.kube.credentials import TokenFile
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.kubelet.settings import section

# After a failure, so that a kubelet that comes back is not waited for as long as one that answered.
_RETRY_S: Final = 10.0

_HINTS: Final = {
    401: "; does the kubelet have webhook authentication?",
    403: "; the service account needs get on nodes/configz, before 1.33 on nodes/proxy",
    404: "; is enableDebuggingHandlers off?",
}


class ConfigzSource:
    """Asks at most once per interval, and remembers a failure as well as an answer."""

    name: Final = "configz"

    def __init__(self, settings: section.Configz, address: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        host = f"[{address}]" if ":" in address else address
        self._url = f"https://{host}:{settings.port}/configz"
        self._settings = settings
        self._token = TokenFile(Path(settings.token_file), clock)
        self._clock = clock
        self._due = float("-inf")
        self._config: KubeletConfiguration | None = None
        self._failure: SourceError | None = None

    async def read(self, kubelet_version: str | None) -> KubeletConfiguration:
        """The configuration, at most an interval old; a kubelet's version changes nothing here. Raises SourceError."""
        if self._clock() >= self._due:
            await self._renew()
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._config is None:
            raise AssertionError("unreachable: a request without failure has an answer")
        return self._config

    async def _renew(self) -> None:
        try:
            self._config = decode(await self._ask(), source=self._url)
            self._failure = None
        except SourceError as exc:
            self._failure = exc
        interval = self._settings.interval
        self._due = self._clock() + (min(_RETRY_S, interval) if self._failure else interval)

    async def _ask(self) -> bytes:
        """The body of a 200."""
        connector = aiohttp.TCPConnector(ssl=_verifying(self._settings.ca_file))
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
        try:
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                status, body = await self._get(session, self._token.read())
                if status == 401:
                    status, body = await self._get(session, self._token.read(renew=True))
        except aiohttp.ClientConnectorCertificateError as exc:
            refused = exc.certificate_error
            why = getattr(refused, "verify_message", "") or str(refused)
            raise SourceError(self._url, f"certificate refused with {self._settings.ca_file}: {why}") from exc
        except TimeoutError as exc:
            raise SourceError(self._url, f"no answer within {self._settings.timeout}") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise SourceError(self._url, " ".join(str(exc).split()) or type(exc).__name__) from exc
        if status != 200:
            said = " ".join(body[:200].decode(errors="replace").split())
            raise SourceError(self._url, f"status {status}{f' {said!r}' if said else ''}{_HINTS.get(status, '')}")
        return body

    async def _get(self, session: aiohttp.ClientSession, token: str) -> tuple[int, bytes]:
        headers = {
            "Accept": "application/json",
            "Authorization": f"Bearer {token}",
            "User-Agent": f"topowise-exporter/{__version__}",
        }
        name = self._settings.server_name or None
        async with session.get(self._url, headers=headers, server_hostname=name, allow_redirects=False) as response:
            body = await response.read()
            if response.status != 200:
                body = without_secret(body.decode(errors="replace"), headers["Authorization"]).encode()
            return response.status, body


def decode(body: bytes, *, source: str) -> KubeletConfiguration:
    """The configuration in an answer. Raises SourceError."""
    try:
        answer = msgspec.json.decode(body, type=dict[str, Any])
    except documents.UNREADABLE as exc:
        raise SourceError(source, f"answer is not a JSON object: {exc}") from exc
    given = answer.get("kubeletconfig")
    if not isinstance(given, dict):
        raise SourceError(source, f"answer has no kubeletconfig, only {', '.join(sorted(answer)) or 'nothing'}")
    config = kubeletconfig.check(kubeletconfig.convert(given, source=source), source=source)
    return kubeletconfig.with_defaults(kubeletconfig.without_eviction_defaults(config))


def _verifying(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as exc:
        raise SourceError(ca_file, f"is not a usable CA bundle: {exc}") from exc
