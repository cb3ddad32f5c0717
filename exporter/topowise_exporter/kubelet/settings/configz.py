"""The running kubelet's configuration from its HTTPS port: GET /configz, which `kubectl proxy` exposes too.

The answer is {"kubeletconfig": {...}} with flags and defaults applied, so this module adds no defaults: a missing map
is empty (omitempty), evictionHard too. The certificate is always verified against a configured CA: without that, any
process on port 10250 would receive the token. Redirects are refused for the same reason.

The answer has no kubelet version. /metrics has it (kubernetes_build_info). Without the permission to read /metrics the
version comes from the Node, whose status the kubelet writes.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from topowise import documents, files, kubeletconfig
from topowise.errors import ApiError, SourceError
from topowise.kube.api import Api
from topowise.kube.credentials import SERVICE_ACCOUNT, Credentials, TokenFile
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime import clock

# No distribution moves the kubelet's HTTPS port.
PORT: Final = 10250
# The pod's own, which the API server that the kubelet asks knows.
TOKEN_FILE: Final = SERVICE_ACCOUNT / "token"
# A kubelet changes its configuration only when it restarts, which ends the interval (`expire`).
_INTERVAL_S: Final = 60.0
# A kubelet answers from memory.
TIMEOUT_S: Final = 5.0
# Interval after a failure. It is shorter than that after an answer, so that a restarted kubelet is found soon.
_RETRY_S: Final = 10.0

_BUILD: Final = re.compile(rb'kubernetes_build_info\{[^}\n]*\bgit_version="([^"\n]{1,64})"')
# Limit of a body. /metrics of a kubelet with many pods has some hundred KiB.
_MOST_METRICS: Final = 16 << 20

_HINTS: Final = {
    401: "; does the kubelet have webhook authentication?",
    403: "; the service account needs get on nodes/configz, before 1.33 on nodes/proxy",
    404: "; is enableDebuggingHandlers off?",
}


class ConfigzSource:
    """Requests the configuration at most once per interval, and caches a failure as well as an answer."""

    name: Final = "configz"

    def __init__(
        self,
        ca_file: str,
        address: str,
        *,
        port: int = PORT,
        token_file: Path = TOKEN_FILE,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        """`address` is the node's, and a name or address in the kubelet's certificate; `ca_file` verifies that."""
        host = f"[{address}]" if ":" in address else address
        self._base = f"https://{host}:{port}"
        self._ca_file = ca_file
        self._token = TokenFile(token_file, clock)
        self._clock = clock
        self._due = float("-inf")
        self._config: KubeletConfiguration | None = None
        self._failure: SourceError | None = None
        self.version = ""
        """The kubelet's version from /metrics, "" if that could not be read."""

    def expire(self) -> None:
        """Makes the next `read` send a request: the kubelet has restarted."""
        self._due = float("-inf")

    async def read(self, kubelet_version: str | None) -> KubeletConfiguration:
        """Returns the configuration, at most an interval old; `kubelet_version` is not used. Raises SourceError."""
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
            self._config = decode(await self._ask("/configz"), source=f"{self._base}/configz")
            self._failure = None
            self.version = await self._build()
        except SourceError as exc:
            self._failure = exc
        self._due = self._clock() + (_RETRY_S if self._failure else _INTERVAL_S)

    async def _build(self) -> str:
        try:
            match = _BUILD.search(await self._ask("/metrics"))
        except SourceError:
            return ""
        return match[1].decode(errors="replace") if match else ""

    async def _ask(self, path: str) -> bytes:
        """Returns the body of a 200 answer."""
        credentials = Credentials(self._base, _verifying(self._ca_file), self._authorization)
        try:
            async with Api(credentials, "topowise-exporter", timeout=TIMEOUT_S) as kubelet:
                return await kubelet.request("GET", path, accept="application/json, text/plain", most=_MOST_METRICS)
        except ApiError as exc:
            raise SourceError(self._base + path, self._why(exc)) from exc

    async def _authorization(self, renew: bool) -> str:
        return f"Bearer {self._token.read(renew=renew)}"

    def _why(self, exc: ApiError) -> str:
        if isinstance(cause := exc.__cause__, aiohttp.ClientConnectorCertificateError):
            error = cause.certificate_error
            return f"certificate refused with {self._ca_file}: {getattr(error, 'verify_message', '') or error}"
        if exc.status:
            return f"status {exc.status} {' '.join(exc.message.split())!r}{_HINTS.get(exc.status, '')}"
        if exc.reason == "Timeout":
            return f"no answer within {TIMEOUT_S:g} s"
        return exc.message.removeprefix(f"{self._base}: ")


def decode(body: bytes, *, source: str) -> KubeletConfiguration:
    """Returns the configuration in an answer. Raises SourceError."""
    try:
        answer = msgspec.json.decode(body, type=dict[str, Any])
    except documents.UNREADABLE as exc:
        raise SourceError(source, f"answer is not a JSON object: {exc}") from exc
    fields = answer.get("kubeletconfig")
    if not isinstance(fields, dict):
        raise SourceError(source, f"answer has no kubeletconfig, only {', '.join(sorted(answer)) or 'nothing'}")
    config = kubeletconfig.check(kubeletconfig.convert(fields, source=source), source=source)
    return kubeletconfig.with_defaults(kubeletconfig.without_eviction_defaults(config))


def _verifying(ca_file: str) -> ssl.SSLContext:
    try:
        return files.trusting(ca_file)
    except (OSError, ssl.SSLError) as exc:
        raise SourceError(ca_file, f"is not a usable CA bundle: {exc}") from exc
