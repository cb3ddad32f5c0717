"""The dashboard as an ASGI application below /ui; it only reads.

Nothing is loaded from elsewhere, and the Content-Security-Policy would not let it be.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
import xxhash

from topowise import __version__
from topowise.errors import ParseError
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.presentation.dashboard import capacity, node_details, page, panel
from topowise_scheduler.presentation.dashboard.cluster_state import Reader, Sightings, State
from topowise_scheduler.presentation.dashboard.decisions import Decisions
from topowise_scheduler.presentation.dashboard.markup import ASKED, Query
from topowise_scheduler.presentation.dashboard.pod_details import Explain, Whys
from topowise_scheduler.presentation.explain.cluster_view import ClusterView

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
]
_JSON: Final = b"application/json"
_HTML: Final = b"text/html; charset=utf-8"
_MAX_MANIFEST: Final = 256 << 10
_MIN_GZIP: Final = 4096
# However many pages are open, the state is read once in this time.
_FRESH_S: Final = 1.0
_FITS_S: Final = 3.0


class _Parts(msgspec.Struct, frozen=True):
    """What the script asks for every few seconds: `parts` are tag and HTML by the id of the element."""

    now: float
    problem: str
    resource: str
    nodes: int
    parts: dict[str, tuple[str, str]]


class Dashboard:
    """The page; the verbs and the pods tell `decisions`. `run` has to run beside it."""

    def __init__(
        self,
        ledger: Ledger,
        answers: Answers,
        view: ClusterView,
        explain: Explain,
        not_ready: Callable[[], str | None],
        decisions: Decisions,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.decisions = decisions
        self._view = view
        self._clock = clock
        self._monotonic = monotonic
        self._sightings = Sightings(ledger, clock)
        self._reader = Reader(ledger, answers, decisions, self._sightings, not_ready)
        self._nodes = node_details.Nodes(ledger, self._reader, self._sightings, monotonic)
        self._whys = Whys(ledger, answers, decisions, explain, monotonic)
        self._counted = capacity.Kept(view)
        self._states: dict[str, tuple[float, State]] = {}
        self._reading = asyncio.Lock()
        self._counting = asyncio.Lock()
        static = resources.files(__package__) / "static"
        style = (static / "style.css").read_text("utf-8") + node_details.style()
        self._files = {
            "/app.js": ((static / "app.js").read_bytes(), b"text/javascript; charset=utf-8"),
            "/style.css": (style.encode(), b"text/css; charset=utf-8"),
        }

    async def run(self) -> None:
        """Keeps in mind when each node was last reported, until cancelled."""
        while True:
            self._sightings.update()
            await asyncio.sleep(1.0)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path, method = scope["path"].removeprefix("/ui"), scope["method"]
        headers = dict(scope["headers"])
        asked = {key: values[0] for key, values in parse_qs(scope["query_string"].decode("ascii", "replace")).items()}
        reply = _Reply(send, b"gzip" in headers.get(b"accept-encoding", b""), is_head=method == "HEAD")
        if path == "/fits":
            if method != "POST":
                await reply(405, b"expected POST\n")
            else:
                await self._fits(receive, reply)
        elif method not in ("GET", "HEAD"):
            await reply(405, b"expected GET\n")
        elif path == "":
            query = _query(asked)
            state, opened, fitting = await self._all(query)
            await reply(200, (await page.page(state, query, opened, fitting, __version__)).encode(), _HTML)
        elif path == "/":
            # The links of the page are relative to /ui.
            await reply(308, b"", extra=[(b"location", b"../ui")])
        elif path == "/parts":
            have = set(asked.get("have", "").split("."))
            await reply(200, await self._parts(_query(asked), have), _JSON)
        elif path in self._files:
            await reply(200, *self._files[path])
        else:
            await reply(404, b"there is no such page\n")

    async def _parts(self, query: Query, have: set[str]) -> bytes:
        """The parts of the page that the browser does not have yet, by their tags; a new map brings all its parts."""
        state, opened, fitting = await self._all(query)
        found = await page.parts(state, query, opened, fitting)
        tags = {name: xxhash.xxh32_hexdigest(f"{name} {part}".encode()) for name, part in found.items()}
        if tags["map"] not in have:
            have -= {tag for name, tag in tags.items() if name.startswith("tiles-")}
        changed = {name: (tags[name], part) for name, part in found.items() if tags[name] not in have}
        return msgspec.json.encode(_Parts(self._clock(), state.problem, state.resource, len(state.nodes), changed))

    async def _all(self, query: Query) -> tuple[State, str, capacity.Fitting | None]:
        """The state, what is opened, and where the pod fits by which the nodes are filtered."""
        self._sightings.begin()
        state = await self._read(query.resource)
        return state, await self._opened(query), await self._counted.fitting(query.fits)

    async def _opened(self, query: Query) -> str:
        if query.pod:
            return panel.pod_part(await self._whys.read(query.pod), query)
        if not query.node:
            return ""
        found = await self._nodes.read(query.node)
        return panel.no_node_part(query.node, query) if found is None else panel.node_part(found, query)

    async def _read(self, resource: str) -> State:
        async with self._reading:
            read_at, state = self._states.get(resource, (-_FRESH_S, None))
            if state is None or self._monotonic() - read_at >= _FRESH_S:
                state = await self._reader.read(resource)
                if resource != state.resource:
                    # There is no such resource: its name is not kept.
                    return state
                self._states = {
                    name: one for name, one in self._states.items() if self._monotonic() - one[0] < _FRESH_S
                }
                self._states[resource] = (self._monotonic(), state)
            return state

    async def _fits(self, receive: Receive, reply: _Reply) -> None:
        body = await _body(receive)
        if body is None:
            await reply(200, panel.problem_part(f"the manifest is larger than {_MAX_MANIFEST} bytes").encode(), _HTML)
            return
        try:
            pod = capacity.pod_of(body)
            async with self._counting:
                found = await capacity.fits(self._view, pod, within_s=_FITS_S)
        except ParseError as exc:
            await reply(200, panel.problem_part(str(exc)).encode(), _HTML)
            return
        await reply(200, page.fits_part(found, self._counted.put(pod), Query()).encode(), _HTML)


class _Reply:
    """Sends one answer."""

    def __init__(self, send: Send, takes_gzip: bool, *, is_head: bool) -> None:
        self._send = send
        self._takes_gzip = takes_gzip
        self._is_head = is_head

    async def __call__(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"text/plain; charset=utf-8",
        extra: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        headers = [*_HEADERS, (b"content-type", content_type), (b"vary", b"accept-encoding"), *(extra or ())]
        if self._takes_gzip and len(body) >= _MIN_GZIP:
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"" if self._is_head else body})


async def _body(receive: Receive) -> bytes | None:
    """The whole body, None if it is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size <= _MAX_MANIFEST:
            parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts) if size <= _MAX_MANIFEST else None


def _query(asked: dict[str, str]) -> Query:
    return Query(**{key: asked[key] for key in ASKED if key in asked})
