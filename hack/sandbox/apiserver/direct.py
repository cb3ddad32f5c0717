"""An Api without a socket: the server's own handlers, called in the client's event loop.

On a loop whose time jumps (sandbox.simulated_time) there is nothing between client and server that takes real time, and
what a run does depends on its seed alone. Bodies, lists and events are the bytes that HTTP would carry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from aiohttp import web

from sandbox.apiserver.errors import StatusError
from sandbox.apiserver.server import ApiServer
from sandbox.apiserver.watches import Stream
from topowise.errors import ApiError
from topowise.kube.api import JSON, Api, ErrorStatus


class _Request(msgspec.Struct, frozen=True):
    """As much of an aiohttp request as the handlers look at."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    content_type: str
    headers: Mapping[str, str]
    query_string: str = ""
    host: str = "direct"
    transport: None = None

    async def read(self) -> bytes:
        return self.body


class DirectApi(Api):
    """A client without sockets. `latency` returns the seconds of a request, and again of its answer; `lag` the seconds
    by which a part of a watch is late, by path."""

    def __init__(
        self,
        server: ApiServer,
        component: str,
        *,
        latency: Callable[[], float] = lambda: 0.0,
        lag: Callable[[str], float] = lambda path: 0.0,
    ) -> None:
        self._api_server = server
        self._component = component
        self._latency = latency
        self._lag = lag

    @property
    def server(self) -> str:
        return "direct"

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float | None = None,
        most: int | None = None,
    ) -> bytes:
        name = f"{method} {path}"
        try:
            async with asyncio.timeout(timeout or 10.0):
                await asyncio.sleep(self._latency())
                request = self._request(method, path, query or {}, body or b"", content_type, accept)
                answer = cast(web.Response, await self._api_server.front.handle(request))
                await asyncio.sleep(self._latency())
        except TimeoutError as exc:
            raise ApiError(0, "Timeout", "no answer in time", request=name) from exc
        content = cast(bytes, answer.body)
        if answer.status >= 300:
            status = msgspec.json.decode(content, type=ErrorStatus)
            raise ApiError(answer.status, status.reason, status.message, request=name)
        return content

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], timeout: float, silence: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        await asyncio.sleep(self._latency())
        try:
            stream = self._api_server.front.open_watch(self._request("GET", path, query, b"", JSON, JSON))
        except StatusError as exc:
            raise ApiError(exc.code, exc.reason, str(exc), request=f"GET {path}") from exc
        streams = self._api_server.streams
        streams.add(stream)
        pieces = self._late(stream, path)
        try:
            yield pieces
        finally:
            await pieces.aclose()
            streams.discard(stream)

    async def _late(self, stream: Stream, path: str) -> AsyncGenerator[bytes, None]:
        pieces = stream.pieces()
        try:
            async for piece in pieces:
                await asyncio.sleep(self._lag(path))
                if stream.is_ended and stream.aborted:
                    raise ApiError(0, "Unreachable", "the connection was reset", request=f"GET {path}")
                yield piece
        finally:
            await pieces.aclose()

    def _request(self, method: str, path: str, query: Mapping[str, str], body: bytes, sent: str, accept: str) -> Any:
        headers = {"Accept": accept, "User-Agent": self._component, "Content-Type": sent}
        return _Request(method, path, query, body, sent, headers)
