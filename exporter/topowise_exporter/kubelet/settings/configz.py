"""The running kubelet's configuration from its own HTTPS port: GET /configz, as kubectl proxies it.

The answer is {"kubeletconfig": {...}} with flags and defaults applied, so nothing is defaulted here: a map that is
missing is empty (omitempty), evictionHard too. The certificate is always verified, against a CA that is named; a
token sent to whoever answers on port 10250 would be a gift. Redirects are refused for the same reason.

Which version runs is not among it, and no other page of the port is about that; /metrics has it in a line
(kubernetes_build_info). Who may not read that goes by the Node, whose status the kubelet writes.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from topowise import __version__, documents, files, kubeletconfig
from topowise.errors import SourceError
from topowise.kube.api import without_secret
from topowise.kube.credentials import TokenFile
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.kubelet.settings import section

# After a failure, so that a kubelet that comes back is not waited for as long as one that answered.
_RETRY_S: Final = 10.0

_BUILD: Final = re.compile(rb'kubernetes_build_info\{[^}\n]*\bgit_version="([^"\n]{1,64})"')
# Of /metrics: that of a kubelet with many pods has some hundred KiB.
_MOST_METRICS: Final = 16 << 20

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
        self._base = f"https://{host}:{settings.port}"
        self._url = f"{self._base}/configz"
        self._settings = settings
        self._token = TokenFile(Path(settings.token_file), clock)
        self._clock = clock
        self._due = float("-inf")
        self._config: KubeletConfiguration | None = None
        self._failure: SourceError | None = None
        self.version = ""
        """The kubelet's version as it gave it with its configuration, "" if it did not."""

    def expire(self) -> None:
        """The kubelet has restarted: what it said last may not hold."""
        self._due = float("-inf")

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
        self.version = ""
        try:
            self._config = decode(await self._ask(self._url), source=self._url)
            self._failure = None
            self.version = await self._build()
        except SourceError as exc:
            self._failure = exc
        interval = self._settings.interval
        self._due = self._clock() + (min(_RETRY_S, interval) if self._failure else interval)

    async def _build(self) -> str:
        try:
            found = _BUILD.search(await self._ask(f"{self._base}/metrics"))
        except SourceError:
            return ""
        return found[1].decode(errors="replace") if found else ""

    async def _ask(self, url: str) -> bytes:
        """The body of a 200."""
        connector = aiohttp.TCPConnector(ssl=_verifying(self._settings.ca_file))
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
        try:
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                status, body = await self._get(session, url, self._token.read())
                if status == 401:
                    status, body = await self._get(session, url, self._token.read(renew=True))
        except aiohttp.ClientConnectorCertificateError as exc:
            refused = exc.certificate_error
            why = getattr(refused, "verify_message", "") or str(refused)
            raise SourceError(url, f"certificate refused with {self._settings.ca_file}: {why}") from exc
        except TimeoutError as exc:
            raise SourceError(url, f"no answer within {self._settings.timeout}") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise SourceError(url, " ".join(str(exc).split()) or type(exc).__name__) from exc
        if status != 200:
            said = " ".join(body[:200].decode(errors="replace").split())
            raise SourceError(url, f"status {status}{f' {said!r}' if said else ''}{_HINTS.get(status, '')}")
        return body

    async def _get(self, session: aiohttp.ClientSession, url: str, token: str) -> tuple[int, bytes]:
        headers = {
            "Accept": "application/json, text/plain",
            "Authorization": f"Bearer {token}",
            "User-Agent": f"topowise-exporter/{__version__}",
        }
        name = self._settings.server_name or None
        async with session.get(url, headers=headers, server_hostname=name, allow_redirects=False) as response:
            body = await _bounded(response)
            if response.status != 200:
                body = without_secret(body.decode(errors="replace"), headers["Authorization"]).encode()
            return response.status, body


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body, as far as anybody needs it. Raises ValueError for one without end."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MOST_METRICS:
            raise ValueError(f"answer has more than {_MOST_METRICS} bytes")
    return bytes(body)


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
        return files.trusting(ca_file)
    except (OSError, ssl.SSLError) as exc:
        raise SourceError(ca_file, f"is not a usable CA bundle: {exc}") from exc
