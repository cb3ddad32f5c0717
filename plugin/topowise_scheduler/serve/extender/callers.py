"""Refuses requests that a web page made: only schedulers and people may call the service.

A browser can use every `kubectl port-forward` of its machine, and sends what a page requests: a form posts text to any
address, and by DNS rebinding a page even has the origin of the service. The browser's headers show this. `Host` has the
name that the browser resolved, `Origin` and `Sec-Fetch-Site` have the page, and without CORS consent, which the service
never gives, no page can send a body as `application/json`. Schedulers send that type, a configured `Host`, and neither
of the other headers.

DNS rebinding needs a name, so a `Host` with an address is accepted. Under TLS every `Host` is accepted: the client has
compared the name with the certificate.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from topowise.bounded import Bounded
from topowise.kube import credentials
from topowise.kube.credentials import SERVICE_ACCOUNT

_JSON: Final = frozenset((b"application/json",))
_MANIFEST: Final = _JSON | {b"application/yaml", b"application/x-yaml", b"text/yaml"}
_SAME: Final = (b"none", b"same-origin")
# Bytes of Host headers that are cached; a service has one or two.
_MAX_HOST_BYTES: Final = 16 << 10


class Refusal(NamedTuple):
    """An HTTP status, and a line of text."""

    status: int
    text: str


class Callers:
    """Decides which requests are refused. `hosts` are the names of the service; None for any, safe only with TLS."""

    def __init__(self, hosts: Iterable[str] | None) -> None:
        self._hosts = None if hosts is None else frozenset(map(_bare, hosts))
        self._known: Bounded[bytes, bool] = Bounded(_MAX_HOST_BYTES, lambda host, _: len(host))

    def refusal(
        self, method: str, headers: Iterable[tuple[bytes, bytes]], scheme: str, *, is_page: bool
    ) -> Refusal | None:
        """Why a request is refused, None if it is not. A page of the service may send requests to its own origin."""
        host = origin = site = content_type = None
        for name, value in headers:
            if name == b"host":
                if host is not None:
                    return Refusal(400, "expected one Host header")
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"content-type":
                content_type = value
        if (host is None or not self._known.get(host)) and (refusal := self._unknown(host)) is not None:
            return refusal
        if origin is not None and not (is_page and origin == b"%s://%s" % (scheme.encode(), host or b"")):
            return Refusal(403, "not from a web page: the request has an Origin")
        if site is not None and site not in _SAME:
            return Refusal(403, "not from a web page: Sec-Fetch-Site is neither none nor same-origin")
        if method == "POST":
            return _wrong_type(content_type, _MANIFEST if is_page else _JSON)
        return None

    def _unknown(self, host: bytes | None) -> Refusal | None:
        if host is None:
            return Refusal(400, "expected a Host header")
        name = _bare(host.decode("latin-1"))
        if not self._is_ours(name):
            return Refusal(403, f"Host is {name!r:.80}, expected an address, localhost or one of the configured hosts")
        self._known.put(host, True)
        return None

    def _is_ours(self, name: str) -> bool:
        if self._hosts is None or name in self._hosts or _is_address(name):
            return True
        return f"*.{name.partition('.')[2]}" in self._hosts


def names(configured: Collection[str], service_account: Path = SERVICE_ACCOUNT) -> frozenset[str]:
    """The configured names, the names of this machine, and in a pod the names of all Services of its namespace."""
    own = {"localhost", "ip6-localhost", socket.gethostname()}
    namespace = credentials.own_namespace(service_account)
    services = {f"*.{namespace}.svc", f"*.{namespace}.svc.cluster.local"} if namespace else set()
    return frozenset(own | services | set(configured))


def _wrong_type(content_type: bytes | None, expected: Collection[bytes]) -> Refusal | None:
    kind = (content_type or b"").partition(b";")[0].strip().lower()
    if kind in expected:
        return None
    return Refusal(415, f"Content-Type is {kind.decode('latin-1')!r:.80}, expected application/json")


def _bare(host: str) -> str:
    """A Host header without its port, as names are compared: "[::1]:8080" is "::1", "Localhost." is "localhost"."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() and ":" not in name else host).lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
