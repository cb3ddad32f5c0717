"""The dashboard as an ASGI application below /ui; it only reads.

The page loads nothing from other hosts, and its Content-Security-Policy forbids it.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs

from topowise import __version__
from topowise.runtime import clock
from topowise.runtime.event_loop import collected
from topowise_scheduler.dashboard import details, page
from topowise_scheduler.dashboard.cluster_state import Reader, State
from topowise_scheduler.dashboard.decisions import Decisions
from topowise_scheduler.dashboard.details import Explain, PodReader
from topowise_scheduler.dashboard.markup import Query
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.ledger.ledger import Ledger

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"vary", b"accept-encoding"),
]
_TEXT: Final = b"text/plain; charset=utf-8"
_HTML: Final = b"text/html; charset=utf-8"
_MIN_GZIP: Final = 4096
# The state is read once in this time, however many pages are open.
_FRESH_S: Final = 1.0
# A state of a large cluster takes long: it stays fresh for this many times as long as it took.
_SHARE: Final = 10


class Dashboard:
    """The page of a service; the verbs and the pods report to `decisions`. `loss` returns a node's fragmentation."""

    def __init__(
        self,
        ledger: Ledger,
        view: ClusterView,
        explain: Explain,
        not_ready: Callable[[], str | None],
        decisions: Decisions,
        loss: Callable[[str], int | None],
        *,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.decisions = decisions
        self._ledger = ledger
        self._monotonic = monotonic
        self._reader = Reader(ledger, view, decisions, not_ready, loss)
        self._nodes = details.NodeReader(ledger, monotonic)
        self._pods = PodReader(ledger, view, decisions, explain, monotonic)
        self._state: State | None = None
        self._fresh_until = 0.0
        self._reading = asyncio.Lock()
        static = resources.files(__package__) / "static"
        style = (static / "style.css").read_text("utf-8") + details.style()
        self._files = {
            "/app.js": ((static / "app.js").read_bytes(), b"text/javascript; charset=utf-8"),
            "/style.css": (style.encode(), b"text/css; charset=utf-8"),
        }

    async def __call__(self, scope: Message, _receive: Receive, send: Send) -> None:
        path, method = scope["path"].removeprefix("/ui"), scope["method"]
        reply = _Reply(
            send,
            takes_gzip=b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b""),
            is_head=method == "HEAD",
        )
        if method not in ("GET", "HEAD"):
            await reply(405, b"expected GET\n")
        elif path == "":
            await reply(200, (await self._page(_query(scope["query_string"]))).encode(), _HTML)
        elif path == "/":
            # The links of the page are relative to /ui.
            await reply(308, b"", location=b"../ui")
        elif path in self._files:
            await reply(200, *self._files[path])
        else:
            await reply(404, b"there is no such page\n")

    async def _page(self, query: Query) -> str:
        state = await self._read()
        resource = query.resource if query.resource in state.resources else "cpu"
        nodes = await self._reader.nodes(resource, query.name, query.state)
        return page.page(state, nodes, query, await self._panel(query), __version__)

    async def _panel(self, query: Query) -> str:
        if query.find:
            names = await collected(details.matching(self._ledger, query.find))
            if len(names) != 1:
                return page.matches_part(names, query)
            return page.pod_part(await self._pods.read(names[0]), query)
        if query.pod:
            return page.pod_part(await self._pods.read(query.pod), query)
        if not query.node:
            return ""
        node = await self._nodes.read(query.node)
        if node is None:
            return page.unreported_node_part(query.node, query)
        return page.node_part(node, self._reader.marks(node.name), query)

    async def _read(self) -> State:
        async with self._reading:
            began = self._monotonic()
            if self._state is None or began >= self._fresh_until:
                self._state = await self._reader.state()
                now = self._monotonic()
                self._fresh_until = now + max(_FRESH_S, _SHARE * (now - began))
            return self._state


class _Reply:
    """Sends the answer to a request."""

    def __init__(self, send: Send, *, takes_gzip: bool, is_head: bool) -> None:
        self._send = send
        self._takes_gzip = takes_gzip
        self._is_head = is_head

    async def __call__(self, status: int, body: bytes, content_type: bytes = _TEXT, location: bytes = b"") -> None:
        headers = [*_HEADERS, (b"content-type", content_type), *([(b"location", location)] if location else [])]
        if self._takes_gzip and len(body) >= _MIN_GZIP:
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"" if self._is_head else body})


def _query(text: bytes) -> Query:
    parameters = parse_qs(text.decode("ascii", "replace"))
    return Query(**{key: values[0] for key, values in parameters.items() if key in Query.__struct_fields__})
