"""An HTTP proxy in front of an API server that injects faults.

The daemon's kubeconfig names the proxy, so the same faults apply to the embedded and to a real API server. Answers pass
unchanged unless a fault matches; each line of a watch may be edited, repeated, left out or cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import aiohttp
import pytest
from aiohttp import web

from sandbox.apiserver import documents
from topowise.runtime import clock

# Hop-by-hop headers (RFC 9110, 7.6.1), and encodings that the client library has already decoded.
_OF_THE_HOP: Final = frozenset(("connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding"))


# As kube-apiserver answers.
_UNAUTHORIZED: Final = (
    '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    '"message":"Unauthorized","reason":"Unauthorized","code":401}'
)


# Of linux/tcp.h: a socket that is closed with it set sends nothing.
_TCP_REPAIR: Final = 19


class Cut(Enum):
    """How a watch is cut off at a line."""

    MID_CHUNK = "half of a frame of the chunked encoding, then a reset"
    HALF_LINE = "half of the line, then a clean end"


MID_CHUNK: Final = Cut.MID_CHUNK
HALF_LINE: Final = Cut.HALF_LINE
Edit = Callable[[bytes], Iterable[bytes] | Cut]
"""A line of a watch, without its end; what comes instead."""


class Asked(NamedTuple):
    """A request; `at` is monotonic."""

    at: float
    method: str
    path: str
    is_watch: bool
    agent: str


@dataclass(eq=False)
class Fault:
    """A fault of the matching requests, for the next `count` of them or for all.

    `delay` is in seconds before an answer. `answer` (status, headers, body) replaces the server's answer, `garbage`
    replaces HTTP. `swallow`: requests get no answer, and events of open watches wait. `edit` changes lines of watches,
    open watches included.
    """

    method: str = "*"
    path: str = "*"
    watch: bool | None = None
    agent: str = "*"
    count: int | None = None
    delay: float = 0.0
    answer: tuple[int, dict[str, str], bytes] | None = None
    garbage: bytes = b""
    swallow: bool = False
    edit: Edit | None = None
    hits: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def matches(self, call: Asked) -> bool:
        """Returns whether it is about this request."""
        return (
            self.watch in (None, call.is_watch)
            and fnmatchcase(call.method, self.method)
            and fnmatchcase(call.path, self.path)
            and fnmatchcase(call.agent, self.agent)
        )


class FaultProxy:
    """An async context. `asked` has every request that came."""

    def __init__(self, upstream: str, token: str = "", host: str = "127.0.0.1") -> None:
        self._host = host
        self._silent_before = 0.0
        self.asked: list[Asked] = []
        self.accepted: set[str] | None = None
        """Tokens that are taken; every other request is answered with 401. None: all requests are taken."""
        self._upstream = upstream
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._faults: list[Fault] = []
        self._transports: set[asyncio.Transport] = set()
        self._port = 0
        self._site: web.TCPSite | None = None

    @property
    def url(self) -> str:
        """The proxy's URL, for plain HTTP."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}"

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig with the proxy's URL."""
        return documents.write_kubeconfig(path, self.url)

    async def __aenter__(self) -> Self:
        # The sandbox's server has a self-signed certificate.
        connector = aiohttp.TCPConnector(limit=0, ssl=False)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.mend()
        await self.down()
        await self._runner.cleanup()
        await self._session.close()

    # Faults

    async def down(self) -> None:
        """Acts as a killed server: closes the port, and resets every connection."""
        site, self._site = self._site, None
        if site is not None:
            await site.stop()
        for transport in list(self._transports):
            transport.abort()

    async def up(self) -> None:
        """Listens (again), at the same address."""
        self._site = web.TCPSite(self._runner, self._host, self._port)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    def spoil(self, fault: Fault) -> Fault:
        """From now on; of several that match, the first that is not used up."""
        self._faults.append(fault)
        return fault

    def mend(self) -> None:
        """No faults any more."""
        for fault in self._faults:
            fault.over.set()
        self._faults.clear()

    def close_watches(self) -> None:
        """Resets every connection, as a restarted load balancer does."""
        for transport in list(self._transports):
            transport.abort()

    def silence_watches(self) -> None:
        """The watches that are open stay open, and not a byte comes any more, not even bookmarks."""
        self._silent_before = clock.monotonic()

    def vanish(self) -> None:
        """Drops every connection without a word to the client, as a machine does that loses power. Skips the test
        without CAP_NET_ADMIN."""
        for transport in list(self._transports):
            try:
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
            except PermissionError:
                pytest.skip("no right to set TCP_REPAIR: run as root")
            transport.abort()

    def count(self, since: float, path: str = "*", *, watch: bool | None = None) -> int:
        """Requests since a monotonic time."""
        like = Fault(path=path, watch=watch)
        return sum(call.at >= since and like.matches(call) for call in self.asked)

    # Inside

    def _fault(self, call: Asked) -> Fault | None:
        for fault in self._faults:
            if fault.edit is None and fault.matches(call) and (fault.count is None or fault.hits < fault.count):
                fault.hits += 1
                return fault
        return None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") in ("1", "true")
        agent = request.headers.get("User-Agent", "")
        call = Asked(clock.monotonic(), request.method, request.path, is_watch, agent)
        self.asked.append(call)
        transport: Any = request.transport
        self._transports.add(transport)
        try:
            fault = self._fault(call)
            body = await request.read()
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if self.accepted is not None and token not in self.accepted:
                return web.Response(status=401, content_type="application/json", text=_UNAUTHORIZED)
            if fault is not None:
                if fault.swallow:
                    await fault.over.wait()
                await asyncio.sleep(fault.delay)
                if fault.garbage:
                    transport.write(fault.garbage)
                    return await _reset(transport)
                if fault.answer is not None:
                    status, headers, text = fault.answer
                    return web.Response(status=status, headers=headers, body=text)
            return await self._forward(request, call, body)
        finally:
            self._transports.discard(transport)

    async def _forward(self, request: web.Request, call: Asked, body: bytes) -> web.StreamResponse:
        headers = {name: text for name, text in request.headers.items() if name.lower() not in (*_OF_THE_HOP, "host")}
        url = self._upstream + request.raw_path
        try:
            async with self._session.request(
                request.method, aiohttp.client.URL(url, encoded=True), data=body, headers={**headers, **self._headers}
            ) as upstream:
                response = web.StreamResponse(status=upstream.status)
                for name, text in upstream.headers.items():
                    if name.lower() not in _OF_THE_HOP:
                        response.headers.add(name, text)
                if not call.is_watch or upstream.status != 200:
                    answer = web.Response(status=upstream.status, body=await upstream.read())
                    answer.headers.update(response.headers)
                    return answer
                await response.prepare(request)
                return await self._watch(request, call, upstream, response)
        except aiohttp.ClientError:
            return await _reset(request.transport)

    async def _watch(
        self, request: web.Request, call: Asked, upstream: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> web.StreamResponse:
        rest = b""
        async for chunk in upstream.content.iter_any():
            *whole, rest = (rest + chunk).split(b"\n")
            for line in filter(None, whole):
                if call.at < self._silent_before:
                    continue
                lines: Iterable[bytes] | Cut = (line,)
                for fault in list(self._faults):
                    if not fault.matches(call) or (fault.count is not None and fault.hits >= fault.count):
                        continue
                    if fault.swallow:
                        await fault.over.wait()
                    elif fault.edit is not None:
                        lines = fault.edit(line)
                        fault.hits += lines != (line,)
                if lines is MID_CHUNK:
                    transport: Any = request.transport
                    transport.write(b"%x\r\n%s" % (len(line) + 1, line[: len(line) // 2]))
                    return await _reset(transport)
                if lines is HALF_LINE:
                    await response.write(line[: len(line) // 2])
                    await response.write_eof()
                    return response
                assert not isinstance(lines, Cut)
                for event in lines:
                    await response.write(event + b"\n")
        return response


async def _reset(transport: Any) -> web.StreamResponse:
    """Ends the connection once what was written is on its way."""
    if transport is not None:
        with contextlib.suppress(Exception):
            while transport.get_write_buffer_size():
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        transport.abort()
    raise asyncio.CancelledError
