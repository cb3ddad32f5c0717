"""Watch streams: turns store events into newline-delimited JSON.

Semantics of kube-apiserver's watch cache (apiserver/pkg/storage/cacher): without a resourceVersion, or with "0", the
present objects are sent as ADDED events first; with a resourceVersion, all later events. An expired version is an HTTP
200 stream with a single ERROR event (410 Expired); a future version waits for the revision counter. An object that
leaves the selection is DELETED with its last selected state; an object that enters the selection is ADDED. Bookmarks
are sent periodically, and two seconds before the end of the stream. The real server omits a bookmark with the watch's
initial version; a cluster is never that quiet, so this server always sends bookmarks.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from sandbox.apiserver import answers, selectors
from sandbox.apiserver.errors import Json, StatusError
from sandbox.apiserver.levers import RequestInfo
from sandbox.apiserver.routing import Form
from sandbox.apiserver.store import Event, Revision, Store, Watch
from sandbox.apiserver.strategy import Site

_encode = msgspec.json.Encoder().encode
_CHUNK: Final = 100
# Before the deadline: early enough that the client has it when the stream ends.
_LAST_BOOKMARK_SECONDS: Final = 2.0
_INITIAL_EVENTS_END: Final = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True)
class WatchOptions:
    """The query of a watch. `since` None: start with the present. `test` None: everything."""

    since: int | None
    timeout: float
    bookmarks: bool
    bookmark_every: float
    initial_events: bool = False
    test: selectors.Predicate | None = None
    form: Form = "object"
    include: str = "Metadata"


class Stream:
    """A watch. Iterating yields pieces of the body until the timeout, the end of the watch or `end()`."""

    def __init__(self, store: Store, site: Site, options: WatchOptions, info: RequestInfo) -> None:
        self.request = info
        self.aborted = False
        self._store = store
        self._site = site
        self._options = options
        self._headers_sent = False
        self._watch: Watch | None = None
        self._ended = asyncio.Event()

    def end(self, *, abort: bool) -> None:
        self.aborted = abort
        self._ended.set()
        if self._watch is not None:
            self._watch.close()

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        options, loop = self._options, asyncio.get_running_loop()
        deadline = loop.time() + options.timeout
        present: list[Revision] = []
        try:
            since = self._store.number if options.since is None else options.since
            watch = self._watch = self._store.watch(self._site.resource.key, since)
        except StatusError as failure:
            yield self._line("ERROR", _encode(failure.status()))
            return
        try:
            if options.since is None or options.initial_events:
                present = list(self._store.collection(self._site.resource.key).ordered())
            for piece in self._initial(present):
                yield piece
            async for piece in self._live(watch, since, deadline):
                yield piece
        finally:
            watch.close()

    def _initial(self, present: list[Revision]) -> list[bytes]:
        chosen = [revision for revision in present if self._chooses(revision)]
        lines = [self._line("ADDED", self._object(revision)) for revision in chosen]
        if self._options.initial_events:
            lines.append(self._bookmark(self._store.number, _INITIAL_EVENTS_END))
        return [b"".join(lines[i : i + _CHUNK]) for i in range(0, len(lines), _CHUNK)]

    async def _live(self, watch: Watch, since: int, deadline: float) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        bookmark_at = self._next_bookmark(loop.time(), deadline)
        while not self.is_ended:
            # Events and the bookmark's number are read together: an event during a send is not sent yet.
            events, number = watch.take(), self._store.number
            lines = [line for event in events if event.number > since for line in self._lines(event)]
            for i in range(0, len(lines), _CHUNK):
                yield b"".join(lines[i : i + _CHUNK])
            now = loop.time()
            if watch.closed:
                return
            if now >= bookmark_at:
                bookmark_at = self._next_bookmark(now, deadline)
                if number >= since:
                    yield self._bookmark(number)
            if now >= deadline:
                return
            try:
                async with asyncio.timeout_at(min(deadline, bookmark_at)):
                    await watch.wait()
            except TimeoutError:
                continue

    def _next_bookmark(self, now: float, deadline: float) -> float:
        """Returns the time of the next bookmark, by the loop's clock; the last is before the deadline."""
        if not self._options.bookmarks:
            return math.inf
        at = min(now + self._options.bookmark_every, deadline - _LAST_BOOKMARK_SECONDS)
        return at if at > now else math.inf

    def _chooses(self, revision: Revision) -> bool:
        namespace, name = revision.key
        site, test = self._site, self._options.test
        return (
            (not site.namespace or namespace == site.namespace)
            and (not site.name or name == site.name)
            and (test is None or test(revision.object))
        )

    def _lines(self, event: Event) -> list[bytes]:
        """Returns the event as this watch sees it: empty, or a line."""
        was = event.before is not None and self._chooses(event.before)
        if event.type == "DELETED":
            return [self._line("DELETED", self._object(event.revision))] if was else []
        if self._chooses(event.revision):
            return [self._line("MODIFIED" if was else "ADDED", self._object(event.revision))]
        if not was or event.before is None:
            return []
        metadata = {**event.before.metadata, "resourceVersion": str(event.number)}
        left = Revision(event.before.kind, event.number, {**event.before.object, "metadata": metadata})
        return [self._line("DELETED", self._object(left))]

    def _line(self, kind: str, body: bytes) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), body)

    def _object(self, revision: Revision) -> bytes:
        if self._options.form != "table":
            return answers.body_of(self._site, revision)
        headers, self._headers_sent = not self._headers_sent, True
        metadata = {"resourceVersion": str(revision.number)}
        include = self._options.include
        return _encode(answers.table(self._site, [revision.object], metadata, include=include, headers=headers))

    def _bookmark(self, number: int, annotations: Json | None = None) -> bytes:
        metadata: Json = {"resourceVersion": str(number), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        if self._options.form == "table":
            table = answers.table(self._site, [], {"resourceVersion": metadata["resourceVersion"]}, headers=False)
            return self._line("BOOKMARK", _encode(table))
        kind, api_version = self._site.resource.kind, self._site.api_version
        return self._line("BOOKMARK", _encode({"kind": kind, "apiVersion": api_version, "metadata": metadata}))


class OpenStreams:
    """The watches being served."""

    def __init__(self) -> None:
        self._open: dict[Stream, None] = {}

    def add(self, stream: Stream) -> None:
        self._open[stream] = None

    def discard(self, stream: Stream) -> None:
        self._open.pop(stream, None)

    def __len__(self) -> int:
        return len(self._open)

    def end(self, chosen: Callable[[RequestInfo], bool], *, abort: bool) -> int:
        """Ends the chosen streams; the answer is how many."""
        ending = [stream for stream in self._open if chosen(stream.request)]
        for stream in ending:
            stream.end(abort=abort)
        return len(ending)
