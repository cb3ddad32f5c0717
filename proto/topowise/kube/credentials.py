"""Credentials for the API server, and its address.

Inside a pod these are the service account: an address from the environment, a CA and a token that the kubelet rotates.
Reading the three takes thirty lines, and a kubeconfig with static credentials not many more. The official client would
cost every node 46 MB and 0.35 s of CPU, so it is imported only for kubeconfigs with exec plug-ins or OIDC.
docs/adr/0002 has measurements.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from topowise import files
from topowise.errors import ConfigError, SourceError
from topowise.kube import kubeconfig
from topowise.runtime import clock
from topowise.runtime.log import kv

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
"""Environment variable that every container of a cluster has."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NAMESPACE = "POD_NAMESPACE"
"""Environment variable for the pod's namespace, for pods without a service account (static pods)."""

# The kubelet rotates a projected token at 80 % of its lifetime (an hour by default); client-go reads it again each
# minute.
_TOKEN_MAX_AGE_S = 60.0
_TLS_MAX_AGE_S = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credentials:
    """`server` is a base URL without trailing slash. `tls` is None for plain HTTP (tests on loopback); `tls_files`
    keeps it current. `authorization` returns the value of the Authorization header, "" for none; with `renew` (after a
    401) it looks for a newer token. Raises SourceError. `certified_name` is the server's name in its certificate if it
    differs from the address; `proxy` is the URL of an HTTP proxy."""

    server: str
    tls: ssl.SSLContext | None
    authorization: Callable[[bool], Awaitable[str]]
    certified_name: str | None = None
    proxy: str | None = None
    tls_files: TlsFiles | None = None

    def context(self, renew: bool) -> ssl.SSLContext | None:
        """Returns the TLS context for the next request; with `renew` (after a 401) changed files are read at once."""
        return self.tls if self.tls_files is None else self.tls_files.current(renew)


class TlsFiles:
    """A TLS context made from files that are replaced while the process runs: a CA bundle, a client certificate.
    Renewal makes a new context, because a context cannot drop a CA; aiohttp then makes new connections. While the new
    files do not match each other, the old context stays in use."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], ssl.SSLContext | None],
        paths: Sequence[str | os.PathLike[str]],
        clock: Callable[[], float],
    ) -> None:
        """`make` raises ConfigError or SourceError for files that cannot be used, and returns None to keep the old
        context."""
        self._context, self._make, self._names, self._clock = context, make, paths, clock
        self._seen = files.stamps(*paths)
        self._looked_at = clock()

    def current(self, renew: bool) -> ssl.SSLContext:
        """Returns a context of the files, which are checked every few seconds."""
        now = self._clock()
        if not renew and now - self._looked_at < _TLS_MAX_AGE_S:
            return self._context
        self._looked_at = now
        stamps = files.stamps(*self._names)
        if stamps == self._seen:
            return self._context
        self._seen = stamps
        try:
            self._context = self._make() or self._context
        except (ConfigError, SourceError) as exc:
            log.warning("Renewed certificates cannot be used, keeping the old certificates", extra=kv(why=exc))
        else:
            log.info("Using renewed certificates for the API server", extra=kv(files=len(self._names)))
        return self._context


async def load(config_file: str = "", *, clock: Callable[[], float] = clock.monotonic) -> Credentials:
    """Returns the credentials of the kubeconfig named here or by $KUBECONFIG, else of the pod's service account, else
    of ~/.kube/config. Raises ConfigError or SourceError."""
    named = config_file or os.environ.get("KUBECONFIG", "")
    if named:
        return await _from_kubeconfig(named, clock)
    if IN_CLUSTER in os.environ:
        return in_cluster(SERVICE_ACCOUNT)
    return await _from_kubeconfig(str(Path("~/.kube/config").expanduser()), clock)


def own_namespace(directory: Path = SERVICE_ACCOUNT) -> str:
    """Returns the pod's namespace, from $POD_NAMESPACE or the service account; "" if neither has it."""
    if named := os.environ.get(NAMESPACE, ""):
        return named
    try:
        return files.read_regular(directory / "namespace").decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def needed_namespace(section: str) -> str:
    """As `own_namespace`. Raises ConfigError, which names the section of the configuration that needs the namespace, if
    it is unknown."""
    if not (namespace := own_namespace()):
        raise ConfigError(section, f"needs the own namespace, which only pods know: set ${NAMESPACE}")
    return namespace


def in_cluster(directory: Path = SERVICE_ACCOUNT) -> Credentials:
    """Returns the credentials of this pod's service account. Raises SourceError if one of its files is missing."""
    host = os.environ.get(IN_CLUSTER, "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = TokenFile(directory / "token")
    token.read()
    bundle = directory / "ca.crt"

    def trusting() -> ssl.SSLContext:
        try:
            return files.trusting(bundle)
        except (OSError, ssl.SSLError) as exc:
            raise SourceError(str(bundle), f"is not a usable CA bundle: {exc}") from exc

    tls = trusting()

    async def authorization(renew: bool) -> str:
        return f"Bearer {token.read(renew=renew)}"

    renewed = TlsFiles(tls, trusting, (bundle,), clock.monotonic)
    return Credentials(f"https://{f'[{host}]' if ':' in host else host}:{port}", tls, authorization, tls_files=renewed)


class TokenFile:
    """A token in a file that another process rotates."""

    def __init__(self, path: Path, clock: Callable[[], float] = clock.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at = 0.0

    def read(self, *, renew: bool = False) -> str:
        """Returns the token, at most a minute old. While the file is unreadable, the old token stays in use. Raises
        SourceError if there is no token yet."""
        if self._token and not renew and self._clock() - self._read_at < _TOKEN_MAX_AGE_S:
            return self._token
        try:
            self._token = files.read_regular(self._path).decode().strip() or self._token
        except (OSError, UnicodeDecodeError) as exc:
            if not self._token:
                raise SourceError(str(self._path), f"cannot be read: {exc}") from exc
        self._read_at = self._clock()
        return self._token


async def _from_kubeconfig(path: str, clock: Callable[[], float]) -> Credentials:
    static = kubeconfig.read(path)
    if static is None:
        return await _from_official_client(path, clock)
    file = static.token_file()
    token = None if file is None else TokenFile(file, clock)

    header = static.header()

    async def authorization(renew: bool) -> str:
        nonlocal header
        if token is not None:
            return f"Bearer {token.read(renew=renew)}"
        if renew and (renewed_config := kubeconfig.read(path)) is not None:
            header = renewed_config.header()
        return header

    def context_anew() -> ssl.SSLContext | None:
        # The kubeconfig itself may contain the certificates, as kubeadm renews them.
        renewed_config = kubeconfig.read(path)
        return None if renewed_config is None else renewed_config.context()

    cluster, tls = static.cluster, static.context()
    renewed = None if tls is None else TlsFiles(tls, context_anew, (path, *static.tls_files()), clock)
    return Credentials(
        static.server, tls, authorization, cluster.tls_server_name or None, cluster.proxy_url or None, renewed
    )


async def _from_official_client(path: str, clock: Callable[[], float]) -> Credentials:
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.client.rest import RESTClientObject
    from kubernetes.aio.config import load_kube_config

    configuration = Configuration()

    async def read() -> None:
        try:
            await load_kube_config(path, client_configuration=configuration, persist_config=False)
        # The official loader raises the errors of its YAML, exec and OIDC helpers.
        except Exception as exc:
            raise ConfigError(f"kubeconfig {path}", " ".join(str(exc).split()) or type(exc).__name__) from exc

    await read()
    read_at = clock()

    async def authorization(renew: bool) -> str:
        nonlocal read_at
        # A single load serves all requests that were refused at the same time.
        if renew and clock() - read_at > 1:
            await read()
            read_at = clock()
        token = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            return str(token)
        basic = configuration.username and configuration.get_basic_auth_token()
        return str(basic or "")

    server = kubeconfig.checked_server(str(configuration.host), path)
    tls = files.as_go(RESTClientObject(configuration).ssl_context) if server.startswith("https:") else None
    proxy = kubeconfig.checked_proxy(configuration.proxy or "", path) or None
    return Credentials(server, tls, authorization, configuration.tls_server_name or None, proxy)
