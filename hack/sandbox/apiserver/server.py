"""The server as an object: start, stop, and the handles a test needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from aiohttp import web

from sandbox.apiserver import documents
from sandbox.apiserver.errors import Json
from sandbox.apiserver.http import MAX_BODY, Front
from sandbox.apiserver.levers import Entry, Journal, Levers
from sandbox.apiserver.registry import Registry, WriteOptions, new_uid
from sandbox.apiserver.resources import BUILTIN, Catalog
from sandbox.apiserver.store import Store
from sandbox.apiserver.strategy import Site
from sandbox.apiserver.watches import OpenStreams

_NAMESPACES: Final = ("default", "kube-system")


class ApiServer:
    """An API server on loopback. Use as an async context manager, or `start()` and `stop()`.

    `port` 0 picks a free port. `token` is the bearer token of every request. `window` bounds the watch events kept
    for each resource, `bookmark_every` is the seconds between bookmarks (a real server takes about 60), `log` bounds
    the requests remembered. `new_uid` gives the uids of objects.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        token: str | None = None,
        window: int = 4096,
        bookmark_every: float = 60.0,
        log: int = 1000,
        new_uid: Callable[[], str] = new_uid,
    ) -> None:
        self.token = token
        self.store = Store(window)
        self.catalog = Catalog(BUILTIN)
        self.registry = Registry(self.catalog, self.store, new_uid=new_uid)
        self.journal = Journal(log)
        self.streams = OpenStreams()
        self.levers = Levers(self.streams, self.store)
        self._port = port
        self._front = Front(
            self.registry, self.levers, self.journal, self.streams, token=token, bookmark_every=bookmark_every
        )
        self._runner: web.AppRunner | None = None
        for name in _NAMESPACES:
            self.create("namespaces", {"metadata": {"name": name}})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._front.handle)
        # aiohttp cancels a watch whose client has gone; otherwise stalled watches would pile up.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Ends every watch and closes the socket; leaves no task behind. The store stays readable."""
        self.levers.clear()
        self.streams.end(lambda info: True, abort=False)
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def front(self) -> Front:
        """What answers requests, with or without a socket."""
        return self._front

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig for kubectl and client libraries."""
        return documents.write_kubeconfig(path, self.url, token=self.token)

    def create(self, resource_key: str, obj: Json, *, manager: str = "sandbox") -> Json:
        """Creates an object without HTTP, by the same rules. `resource_key` is `plural.group`. Raises StatusError."""
        resource = self.catalog[resource_key]
        namespace = (obj.get("metadata") or {}).get("namespace", "default") if resource.namespaced else ""
        site = Site(resource, resource.versions[0].name, namespace)
        # A custom object may be in any served version; the first is taken for objects that do not say.
        version = (obj.get("apiVersion") or site.api_version).rpartition("/")[2]
        site = Site(resource, version, namespace)
        obj = {"kind": resource.kind} | obj
        return self.registry.create(site, obj, WriteOptions(manager=manager)).revision.object

    def install_crds(self, *paths: Path) -> None:
        """Serves the CustomResourceDefinitions of files or directories."""
        for path in paths:
            for obj in documents.load_all(path):
                self.create("customresourcedefinitions.apiextensions.k8s.io", obj)

    def requests(self) -> Counter[tuple[str, str, str]]:
        """Requests so far by (verb, resource, user agent)."""
        return self.journal.requests()

    def log(self) -> list[Entry]:
        """Returns the newest requests, oldest first."""
        return list(self.journal.log)

    def writes(self, *, resource: str = "*", user_agent: str = "*") -> int:
        """Requests so far that change something, by globs."""
        return self.journal.writes(resource=resource, user_agent=user_agent)
