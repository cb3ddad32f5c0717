"""A reflector: a local copy of a collection that stays consistent through everything that an API server does.

Three nested loops with a duty each: `run` never ends (back-off between failures), `_list_and_watch` lists the
collection and then follows it until the server reports that history is lost, `_watch_once` is a single connection. The
consumer implements `replace` (all objects) and `apply` (an event), and needs no knowledge of the protocol.

It avoids the traps of the official informer. It drops a peer that is silent for `silence` seconds; a quiet watch sends
its first bookmark after up to two minutes. After a 410 it lists again with back-off. Lists are paged. An object that
does not decode is skipped and logged. An event older than the copy is ignored, also for an object that was deleted
since.
Rules: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from topowise import digits, documents
from topowise.bounded import Bounded
from topowise.errors import ApiError, TopowiseError
from topowise.kube.api import Api, decoded
from topowise.runtime.backoff import Backoff
from topowise.runtime.event_loop import SLICE_S
from topowise.runtime.log import V2, OncePerChange, kv

log = logging.getLogger(__name__)

Object = TypeVar("Object")
EventType = Literal["ADDED", "MODIFIED", "DELETED"]

# Objects in a page. A page is decoded in a single step, so pages of large objects have fewer objects.
_FIRST_PAGE = 50
_MOST_IN_PAGE = 500
_PAGE_BYTES = 2 << 20
# Less than the API server's own 5..10 minutes; random, so that clients do not reconnect to a restarted server at once.
_WATCH_SECONDS = (240.0, 290.0)
_SILENCE_SECONDS = 150.0
# Time for the server to end a watch before the client does.
_MARGIN_S = 15.0
# No answer, or "later": the watch can resume. Other refusals below 500 concern our rights or the resource.
_RESUMABLE = (0, 429)
# Number of remembered deletions, so that no event from before a deletion brings the object back.
_MOST_GONE = 1024
_GONE_BYTES = 1 << 20


class Consumer(Protocol[Object]):
    """Receives the copy. Called in the event loop; must not block."""

    def replace(self, items: list[Object]) -> Iterable[None] | None:
        """The collection has exactly these objects. A large collection may be processed in steps: other tasks run
        between two steps, and no event of this collection arrives before the last step."""

    def apply(self, event: EventType, item: Object) -> None:
        """An object was added, changed or deleted."""


class _Meta(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""


class _Envelope(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    code: int = 0
    reason: str = ""
    message: str = ""


class _ListMeta(msgspec.Struct, frozen=True, gc=False, rename={"more": "continue"}):
    resourceVersion: str = ""
    more: str = ""


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_PREFIXES = tuple((b'{"type":"%b","object":' % kind.encode(), kind) for kind in ("MODIFIED", "ADDED", "DELETED"))

_decode_event = msgspec.json.Decoder(_Event).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


class _Versions:
    """The version of each object in the copy, by namespace and name, as texts that are shared with the objects."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[str, str]] = {}

    def of(self, meta: _Meta) -> int | None:
        """Returns the version, None for an object that is not in the copy."""
        version = self._by_namespace.get(meta.namespace, {}).get(meta.name)
        return None if version is None else _number(version)

    def put(self, meta: _Meta, item: object) -> None:
        # There may be 450,000 objects: keep the item's own strings instead of the envelope's copies.
        name, version = getattr(item, "name", ""), getattr(item, "version", "")
        self._by_namespace.setdefault(meta.namespace, {})[name if name == meta.name else meta.name] = (
            version if version == meta.resourceVersion else meta.resourceVersion
        )

    def drop(self, meta: _Meta) -> None:
        versions = self._by_namespace.get(meta.namespace)
        if versions is not None:
            versions.pop(meta.name, None)
            if not versions:
                del self._by_namespace[meta.namespace]


class HistoryLostError(TopowiseError):
    """The server cannot continue the watch from our version; a new list is necessary."""


class Reflector(Generic[Object]):
    """Keeps `consumer` consistent with the collection at `path`. A single task runs `run()`."""

    def __init__(
        self,
        api: Api,
        path: str,
        decode: Callable[[bytes | msgspec.Raw], Object],
        consumer: Consumer[Object],
        *,
        query: dict[str, str] | None = None,
        backoff: Backoff | None = None,
        watch_seconds: tuple[float, float] = _WATCH_SECONDS,
        silence: float = _SILENCE_SECONDS,
        missing_is_empty: bool = False,
        gives_up_on: Collection[int] = (),
        instead: Sequence[str] = (),
    ) -> None:
        """`missing_is_empty`: a collection that the server does not have (CRD not installed) counts as synced and
        empty. `gives_up_on`: statuses of refusals that end `run` with their ApiError. `instead`: paths of the same
        collection in older versions. The first served path is used; after each watch the reflector checks whether
        `path` is served by now."""
        self._api = api
        self._paths = (path, *instead)
        self._path = path
        self._decode = decode
        self._consumer = consumer
        self._query = query or {}
        self._backoff = backoff or Backoff()
        self._watch_seconds = watch_seconds
        self._silence = silence
        self._missing_is_empty = missing_is_empty
        self._gives_up_on = gives_up_on
        self._version = ""
        self._versions = _Versions()
        self._listed = 0
        self._is_listing = False
        self._deleted: Bounded[tuple[str, str], int] = Bounded(
            _GONE_BYTES, lambda key, _: 2 * sum(map(len, key)), _MOST_GONE
        )
        self._failures, self._losses = OncePerChange(), OncePerChange()
        self._yielded_at = 0.0
        self.synced = False
        self.lists = 0
        self.failures = 0

    @property
    def name(self) -> str:
        """The collection's name, for logs and readiness."""
        return self._path.rpartition("/")[2]

    @property
    def path(self) -> str:
        """The path in use, once `synced` a path that the server has."""
        return self._path

    async def run(self) -> None:
        """Lists and watches until cancelled; every failure is logged once per change and retried with back-off. Raises
        ApiError for the statuses in `gives_up_on`."""
        while True:
            try:
                await self._list_and_watch()
            except HistoryLostError as exc:
                if self._losses.is_change(str(exc)):
                    log.info("Watch lost its place, listing anew", extra=kv(resource=self.name, why=exc))
                await asyncio.sleep(self._backoff.next_delay())
            except ApiError as exc:
                if exc.status in self._gives_up_on:
                    raise
                self.failures += 1
                if exc.status == 404 and self._missing_is_empty and not self.synced:
                    await self._replace([])
                    self.synced = True
                self._log_failure(exc)
                await asyncio.sleep(self._backoff.next_delay(at_least=exc.retry_after))

    async def _list_and_watch(self) -> None:
        await self._list()
        while True:
            has_lasted = await self._watch_once()
            if self._path != self._paths[0] and await self._is_served(self._paths[0]):
                # Objects that were read in an older version may lack fields.
                await self._list()
            if has_lasted:
                self._backoff.reset()
                self._losses.clear()
                continue
            # A server that closes every watch at once is in trouble: do not add load.
            await asyncio.sleep(self._backoff.next_delay())

    async def _list(self) -> None:
        has_failed, self._is_listing = self._is_listing, True
        items: list[Object] = []
        versions = _Versions()
        query = {**self._query, "limit": str(_FIRST_PAGE)}
        page, size = await self._first_page(query)
        while True:
            for raw in page.items or ():
                self._take(raw, items, versions)
                await self._yield_if_due()
            if not page.metadata.more:
                break
            query["continue"] = page.metadata.more
            query["limit"] = str(_next_limit(size, len(page.items or ())))
            page, size = await self._page(self._path, query)
        self._version, self._versions = page.metadata.resourceVersion, versions
        # Objects deleted until then are missing in the list.
        self._listed = _number(self._version)
        self._deleted.clear()
        self.lists += 1
        await self._replace(items)
        self._is_listing = False
        self._recovered(len(items), has_failed=has_failed)

    async def _replace(self, items: list[Object]) -> None:
        for _ in self._consumer.replace(items) or ():
            await self._yield_if_due()

    async def _first_page(self, query: dict[str, str]) -> tuple[_Page, int]:
        """Requests the first page from the first served path; if no path is served, raises the first path's error."""
        missing: list[ApiError] = []
        for path in self._paths:
            try:
                page, size = await self._page(path, query)
            except ApiError as exc:
                if exc.status != 404:
                    raise
                missing.append(exc)
                continue
            if path != self._path:
                log.info("Reading another version", extra=kv(resource=self.name, path=path, was=self._path))
                self._path = path
            return page, size
        raise missing[0]

    async def _page(self, path: str, query: dict[str, str]) -> tuple[_Page, int]:
        """Returns a page of the list, and its size in bytes."""
        body = await self._api.request("GET", path, query=query, timeout=60.0)
        return decoded(body, _Page, "a list", f"GET {path}"), len(body)

    async def _is_served(self, path: str) -> bool:
        try:
            await self._api.request("GET", path, query={**self._query, "limit": "1"})
        except ApiError as exc:
            if exc.status == 404:
                return False
            raise
        return True

    async def _yield_if_due(self) -> None:
        """Lets other tasks run after some time."""
        now = time.monotonic()
        if now - self._yielded_at > SLICE_S:
            await asyncio.sleep(0)
            self._yielded_at = time.monotonic()

    def _take(self, raw: msgspec.Raw, items: list[Object], versions: _Versions) -> None:
        try:
            meta = _decode_envelope(raw).metadata
            item = self._decode(raw)
        except Exception as exc:
            self._skip(raw, exc)
            return
        items.append(item)
        versions.put(meta, item)

    async def _watch_once(self) -> bool:
        """Follows a watch to its end. Returns True if it lasted or brought an event, so that the next watch may start
        at once."""
        events = 0
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            # The request's time limit may cancel this task between two lines as well. Then the cancellation has to
            # leave the request here: a generator around it would be closed without it.
            async with self._watch() as chunks, aclosing(_lines(chunks)) as lines:
                async for line in lines:
                    self._on_line(line)
                    events += 1
                    await self._yield_if_due()
        except ApiError as exc:
            if exc.status == 410:
                raise HistoryLostError(exc.message) from exc
            if exc.status not in _RESUMABLE and exc.status < 500:
                raise
            self._on_broken_watch(exc, lasted=loop.time() - started)
            await asyncio.sleep(exc.retry_after or 0)
        return events > 0 or loop.time() - started > 1.0

    def _watch(self) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        seconds = random.uniform(*self._watch_seconds)
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(seconds)),
        }
        return self._api.stream(self._path, query=query, timeout=seconds + _MARGIN_S, silence=self._silence)

    def _on_broken_watch(self, exc: ApiError, *, lasted: float) -> None:
        # The copy is a consistent past state, so the next watch continues from it without a list.
        if lasted > 1.0:
            log.log(V2, "Watch broke, resuming", extra=kv(resource=self.name, why=exc))
        else:
            self.failures += 1
            self._log_failure(exc)

    def _on_line(self, line: bytes) -> None:
        try:
            kind, raw, envelope = _event(line)
        except documents.UNREADABLE as exc:
            raise HistoryLostError(f"an event is not JSON of an object: {exc}") from exc
        if self._failures.clear():
            log.info("Watching again", extra=kv(resource=self.name, version=self._version))
        if kind == "ERROR":
            raise HistoryLostError(f"{envelope.code} {envelope.reason}: {envelope.message}")
        meta = envelope.metadata
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._on_object(kind, raw, meta)  # type: ignore[arg-type]
        # An event from the past does not change our version.
        if meta.resourceVersion and not 0 < _number(meta.resourceVersion) < _number(self._version):
            self._version = meta.resourceVersion

    def _on_object(self, event: EventType, raw: bytes | msgspec.Raw, meta: _Meta) -> None:
        version = _number(meta.resourceVersion)
        if self._is_past(event, meta, version):
            log.log(V2, "Ignored an event older than what is held", extra=kv(resource=self.name, name=meta.name))
            return
        try:
            item = self._decode(raw)
        except Exception as exc:
            if event == "DELETED" and self._versions.of(meta) is not None:
                raise HistoryLostError(f"{meta.name} was deleted and does not decode any more: {exc}") from exc
            self._skip(raw, exc)
            return
        if event == "DELETED":
            self._note_deleted(meta, version)
        else:
            self._versions.put(meta, item)
        try:
            self._consumer.apply(event, item)
        except Exception:
            # A defect of ours, for a single object. If the task ended, the daemon would miss all other objects.
            log.exception("Event cannot be applied, left out", extra=kv(resource=self.name, name=meta.name))

    def _is_past(self, event: EventType, meta: _Meta, version: int) -> bool:
        """Whether an event is older than the copy, or than the deletion of the object."""
        if not version:
            return False
        known = self._versions.of(meta)
        if known is not None:
            # Some servers report a deletion with the version that the object had.
            return version < known + (event != "DELETED")
        return version <= max(self._listed, self._deleted.get((meta.namespace, meta.name)) or 0)

    def _note_deleted(self, meta: _Meta, version: int) -> None:
        self._versions.drop(meta)
        self._deleted.put((meta.namespace, meta.name), version)

    def _skip(self, raw: bytes | msgspec.Raw, exc: Exception) -> None:
        log.warning(
            "Object does not decode, left out",
            extra=kv(resource=self.name, why=exc, object=bytes(raw)[:120].decode(errors="replace")),
        )

    def _log_failure(self, exc: ApiError) -> None:
        if self._failures.is_change(str(exc)):
            log.warning("Cannot list and watch, trying again", extra=kv(resource=self.name, why=exc))

    def _recovered(self, count: int, *, has_failed: bool) -> None:
        # A successful list does not end the failure of a watch.
        if (has_failed and self._failures.clear()) or not self.synced:
            log.info("Listed", extra=kv(resource=self.name, objects=count, version=self._version))
        self.synced = True


async def watch_again(
    make: Callable[[], Reflector[Any]], refused: Callable[[ApiError, bool], None], backoff: Backoff
) -> None:
    """Starts a new reflector some time after each refusal, until cancelled. `refused` receives the refusal, and whether
    the reflector was synced before."""
    while True:
        reflector = make()
        try:
            await reflector.run()
        except ApiError as exc:
            refusal = exc
        if reflector.synced:
            backoff.reset()
        refused(refusal, reflector.synced)
        await asyncio.sleep(backoff.next_delay(at_least=refusal.retry_after))


def _event(line: bytes) -> tuple[str, bytes | msgspec.Raw, _Envelope]:
    """Returns type, object and envelope. API servers write nothing after the object, so it is the rest of the line; if
    that is not JSON, the whole line is decoded."""
    for prefix, kind in _PREFIXES:
        if line.startswith(prefix) and line.endswith(b"}"):
            raw = line[len(prefix) : -1]
            with contextlib.suppress(*documents.UNREADABLE):
                return kind, raw, _decode_envelope(raw)
    event = _decode_event(line)
    return event.type, event.object, _decode_envelope(event.object)


def _next_limit(size: int, count: int) -> int:
    """Returns how many objects to request after a page of `count` objects in `size` bytes."""
    return max(1, min(_MOST_IN_PAGE, _PAGE_BYTES * max(1, count) // max(1, size)))


def _number(version: str) -> int:
    # Opaque by contract until KEP-5504 (1.35) made it comparable; every API server has always used numbers.
    return digits.natural(version, digits.UINT64) or 0


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
    if rest.strip():
        raise HistoryLostError("the watch ended in the middle of an event")
