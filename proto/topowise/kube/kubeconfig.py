"""Kubeconfigs with static credentials: token, client certificate, password, or no credentials.

Daemons outside a pod, tests and sandboxes use these, and reading them here avoids the import of the official client.
For credentials from a helper (exec plug-ins, auth providers such as OIDC, several merged files) `read` returns None,
and the official client is used.
"""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
from yarl import URL

from topowise import documents, files
from topowise.errors import ConfigError

# kubectl supports SOCKS proxies too, aiohttp does not.
_SCHEMES: Final = ("http", "https")


class Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class User(msgspec.Struct, frozen=True):
    token: str = ""
    tokenFile: str = ""
    username: str = ""
    password: str = ""
    client_certificate: str = msgspec.field(default="", name="client-certificate")
    client_certificate_data: str = msgspec.field(default="", name="client-certificate-data")
    client_key: str = msgspec.field(default="", name="client-key")
    client_key_data: str = msgspec.field(default="", name="client-key-data")
    impersonate: str = msgspec.field(default="", name="as")
    exec: dict[str, Any] | None = None
    auth_provider: dict[str, Any] | None = msgspec.field(default=None, name="auth-provider")


class Static(msgspec.Struct, frozen=True):
    """The cluster and user of a context. File names are absolute."""

    server: str
    cluster: Cluster
    user: User
    directory: Path

    def context(self) -> ssl.SSLContext | None:
        """Returns the TLS context, None for plain HTTP. Raises ConfigError if a certificate cannot be used."""
        if not self.server.startswith("https:"):
            return None
        cluster, user = self.cluster, self.user
        try:
            authority = self._path(cluster.certificate_authority)
            data = _text(cluster.certificate_authority_data) or None
            context = files.trusting(authority) if authority else files.as_go(ssl.create_default_context(cadata=data))
            if authority and data:
                context.load_verify_locations(cadata=data)
            if cluster.insecure_skip_tls_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if user.client_certificate_data:
                _load_chain(context, user)
            elif user.client_certificate:
                files.load_chain(context, self._path(user.client_certificate) or "", self._path(user.client_key))
        except (OSError, ssl.SSLError, ValueError) as exc:
            raise ConfigError("kubeconfig", f"certificates of {self.server} cannot be used: {exc}") from exc
        return context

    def token_file(self) -> Path | None:
        """Returns the path of the token file if the kubeconfig names one."""
        path = self._path(self.user.tokenFile)
        return Path(path) if path else None

    def tls_files(self) -> list[str]:
        """Returns the paths of the files from which the TLS context is made."""
        names = self.cluster.certificate_authority, self.user.client_certificate, self.user.client_key
        return [path for path in map(self._path, names) if path is not None]

    def header(self) -> str:
        """Returns the Authorization header of static credentials, "" for none."""
        if self.user.token:
            return f"Bearer {self.user.token}"
        if self.user.username:
            pair = f"{self.user.username}:{self.user.password}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return ""

    def _path(self, name: str) -> str | None:
        # Relative names are relative to the kubeconfig, as for kubectl.
        return str(self.directory / name) if name else None


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""


class _Named(msgspec.Struct, frozen=True):
    """An entry of one of the three lists, each of which has only its own field."""

    name: str
    cluster: Cluster | None = None
    user: User | None = None
    context: _Context | None = None


class _Kubeconfig(msgspec.Struct, frozen=True):
    current_context: str = msgspec.field(default="", name="current-context")
    clusters: tuple[_Named, ...] | None = None
    users: tuple[_Named, ...] | None = None
    contexts: tuple[_Named, ...] | None = None


def read(path: str) -> Static | None:
    """Returns the current context; None if it needs the official client. Raises ConfigError."""
    if ":" in path:
        return None
    try:
        config = msgspec.convert(documents.load(files.read_regular(path)) or {}, _Kubeconfig)
    except OSError as exc:
        raise ConfigError(f"kubeconfig {path}", f"cannot be read: {exc.strerror}") from exc
    except (msgspec.ValidationError, documents.DocumentError) as exc:
        raise ConfigError(f"kubeconfig {path}", str(exc)) from exc
    context_name = config.current_context
    entry = next((named.context for named in config.contexts or () if named.name == context_name), None)
    if entry is None:
        raise ConfigError(f"kubeconfig {path}", f"has no context {context_name!r}")
    cluster = next((named.cluster for named in config.clusters or () if named.name == entry.cluster), None)
    if cluster is None or not cluster.server:
        raise ConfigError(f"kubeconfig {path}", f"context {context_name!r} names no cluster with a server")
    user = next((named.user for named in config.users or () if named.name == entry.user), None) or User()
    if user.impersonate:
        # Without impersonation, our requests would have the impersonating user's rights, which are usually wider.
        problem = f"user {entry.user!r} impersonates {user.impersonate!r}, expected a user without impersonation"
        raise ConfigError(f"kubeconfig {path}", problem)
    checked_proxy(cluster.proxy_url, path)
    if user.exec is not None or user.auth_provider is not None:
        return None
    is_secured = cluster.certificate_authority or cluster.certificate_authority_data or cluster.insecure_skip_tls_verify
    is_secured = is_secured or user.client_certificate or user.client_certificate_data
    server = checked_server(cluster.server, path, otherwise="https" if is_secured else "http")
    return Static(server, cluster, user, Path(path).resolve().parent)


def checked_server(server: str, path: str, *, otherwise: str = "") -> str:
    """Returns the server's URL without trailing slash. A host without a scheme gets the scheme `otherwise`: kubectl
    uses https if there is a certificate to verify or to present. Raises ConfigError."""
    full_url = f"{otherwise}://{server}" if otherwise and "://" not in server else server
    try:
        url = URL(full_url)
        is_valid = url.scheme in _SCHEMES and bool(url.host) and bool(url.port)
    except ValueError:
        is_valid = False
    if not is_valid:
        # The part before an @ may contain a password.
        shown = server.rpartition("@")[2]
        raise ConfigError(f"kubeconfig {path}", f"server {shown!r:.100}: expected a URL such as https://10.0.0.1:6443")
    return full_url.rstrip("/")


def checked_proxy(url: str, path: str) -> str:
    """Returns the proxy's URL, "" for none. Raises ConfigError."""
    scheme, separator, _ = url.partition("://")
    if url and not (separator and scheme in _SCHEMES):
        # The rest of the URL may contain a password.
        shown_scheme = scheme if separator else ""
        raise ConfigError(
            f"kubeconfig {path}", f"proxy-url of scheme {shown_scheme!r:.40}: expected http:// or https://"
        )
    return url


def _text(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise ValueError(f"data that is not base64 of PEM: {exc}") from exc


def _load_chain(context: ssl.SSLContext, user: User) -> None:
    # OpenSSL loads a chain from files only. This file is readable by this user only, and deleted at once.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(_text(user.client_key_data) + "\n" + _text(user.client_certificate_data))
        file.flush()
        context.load_cert_chain(file.name)
