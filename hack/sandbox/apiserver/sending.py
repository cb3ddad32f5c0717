"""Putting answers on the wire: whole, as a stream, or not at all."""

from __future__ import annotations

import asyncio

from aiohttp import web

from sandbox.apiserver.journal import Journal, RequestInfo
from sandbox.apiserver.levers import Levers
from sandbox.apiserver.store import Store
from sandbox.apiserver.strategy import Site
from sandbox.apiserver.watches import OpenStreams, Stream, WatchOptions


class Sender:
    """Sends, and logs what was sent. `late` is in seconds."""

    def __init__(self, levers: Levers, journal: Journal, streams: OpenStreams) -> None:
        self._levers = levers
        self._journal = journal
        self._streams = streams

    def drop(self, request: web.Request, info: RequestInfo) -> web.Response:
        """Resets the connection. What is returned never gets onto the wire."""
        self._journal.note(info, request.query_string, 0)
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def send(
        self, request: web.Request, info: RequestInfo, response: web.Response, late: float = 0.0
    ) -> web.StreamResponse:
        self._journal.note(info, request.query_string, response.status)
        if late:
            await asyncio.sleep(late)
        return response

    async def stream(
        self, request: web.Request, info: RequestInfo, store: Store, site: Site, options: WatchOptions
    ) -> web.StreamResponse:
        """Serves a watch to its end. A stall holds every piece back, the end of the stream included."""
        stream = Stream(store, site, options, info)
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        self._journal.note(info, request.query_string, 200)
        self._streams.add(stream)
        pieces = stream.pieces()
        try:
            await response.prepare(request)
            async for piece in pieces:
                await self._levers.until_moving(info, lambda: stream.is_ended)
                if stream.is_ended:
                    break
                await response.write(piece)
            await self._levers.until_moving(info, lambda: stream.is_ended)
        finally:
            await pieces.aclose()
            self._streams.discard(stream)
        if stream.aborted and request.transport is not None:
            request.transport.abort()
        return response
