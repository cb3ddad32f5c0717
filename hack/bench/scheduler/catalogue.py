"""An emulated API server for the benchmark of the scheduler service: large lists, fast watches, bindings.

It is a process of its own: `python -m bench.scheduler.catalogue TEMPLATES PORT`. Lists are made from templates page by
page, which takes a hundredth of the time of reading them. The benchmark
controls the events under /control (see `Catalogue`). A watch cannot be resumed, as no watch breaks here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import uvloop
from aiohttp import web

from bench.scheduler import metal
from topowise import nrt

NODES, PODS, BUDGETS = "/api/v1/nodes", "/api/v1/pods", "/apis/policy/v1/poddisruptionbudgets"

_TICK_S: Final = 0.01
_BOOKMARK_S: Final = 30.0


class Templates(msgspec.Struct):
    """Templates of all objects. Node n has the name `names[n]`, and the templates of server n modulo their number."""

    names: list[str]
    reports: list[tuple[bytes, bytes]]
    pods: list[bytes]


class Catalogue:
    """The collections and their watches.

    POST /control/reports?rate=&seconds=  NRTs change: a pod without pod events arrives or ends
    POST /control/come                    these pods ([Pod, ...]) are created; answers them with their versions
    POST /control/gone                    the pods of these uids and names ([[uid, name], ...]) are deleted
    GET  /control/sent                    how many events were sent since the last stream began, and whether it runs
    """

    def __init__(self, templates: Templates) -> None:
        self._names = [name.encode() for name in templates.names]
        self._templates = templates
        self._newest = [0] * len(self._names)
        self._version = 2000
        self._watches: dict[str, set[web.StreamResponse]] = {path: set() for path in (NODES, PODS, nrt.PATH, BUDGETS)}
        self._streams: set[asyncio.Task[None]] = set()
        self._sent = 0

    def application(self) -> web.Application:
        """Returns the application with all routes."""
        app = web.Application(client_max_size=64 << 20)
        for path in self._watches:
            app.router.add_get(path, self._collection)
        app.router.add_post("/api/v1/namespaces/{namespace}/pods/{name}/binding", self._bind)
        app.router.add_patch("/api/v1/namespaces/{namespace}/pods/{name}", self._patch)
        app.router.add_post("/control/reports", self._stream_reports)
        app.router.add_post("/control/come", self._create)
        app.router.add_post("/control/gone", self._delete)
        app.router.add_get("/control/sent", self._tell)
        return app

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if "watch" in request.query:
            return await self._watch(request, path)
        start, size = int(request.query.get("continue", "0")), int(request.query.get("limit", "500"))
        # A server's pods are listed together.
        count = 0 if path == BUDGETS else len(self._names)
        end = min(count, start + (max(1, size // metal.PODS) if path == PODS else size))
        items = b",".join(self._item(path, number) for number in range(start, end))
        more = "" if end == count else str(end)
        head = f'{{"kind":"List","metadata":{{"resourceVersion":"{self._version}","continue":"{more}"}},"items":['
        return web.Response(body=head.encode() + items + b"]}", content_type="application/json")

    def _item(self, path: str, number: int) -> bytes:
        name = self._names[number]
        if path == NODES:
            return metal.node(name.decode(), number)
        if path == PODS:
            return self._templates.pods[number % len(self._templates.pods)].replace(metal.NODE, name)
        return self._report(number)

    def _report(self, number: int) -> bytes:
        template = self._templates.reports[number % len(self._templates.reports)][self._newest[number]]
        return template.replace(metal.NODE, self._names[number]).replace(metal.VERSION, b"%d" % self._version)

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self._watches[path].add(response)
        try:
            while True:
                await response.write(
                    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n' % self._version
                )
                await asyncio.sleep(_BOOKMARK_S)
        finally:
            self._watches[path].discard(response)

    async def _send(self, path: str, events: list[bytes]) -> None:
        data = b"".join(events)
        if not data:
            return
        for response in list(self._watches[path]):
            with contextlib.suppress(ConnectionError):
                await response.write(data)

    async def _bind(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        name = request.match_info["name"]
        shape = int(name.split("-")[1])
        uid, target = body["metadata"]["uid"].encode(), body["target"]["name"].encode()
        event = self._event("MODIFIED", metal.pod_template(shape, "Pending", True), name.encode(), uid, target)
        await self._send(PODS, [event])
        return web.Response(body=b'{"kind":"Status","status":"Success"}', status=201, content_type="application/json")

    async def _patch(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"{}", content_type="application/json")

    def _event(self, kind: str, template: bytes, name: bytes, uid: bytes, node: bytes) -> bytes:
        self._version += 1
        pod = template.replace(metal.NAME, name).replace(metal.UID, uid).replace(metal.NODE, node)
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), pod.replace(metal.VERSION, b"%d" % self._version))

    async def _create(self, request: web.Request) -> web.Response:
        created = []
        for pod in msgspec.json.decode(await request.read(), type=list[msgspec.Raw]):
            self._version += 1
            created.append(bytes(pod).replace(metal.VERSION, b"%d" % self._version))
        await self._send(PODS, [b'{"type":"ADDED","object":%b}\n' % pod for pod in created])
        return web.Response(body=b"[%b]" % b",".join(created))

    async def _delete(self, request: web.Request) -> web.Response:
        gone = metal.pod_template(0, "Pending", False)
        listed = msgspec.json.decode(await request.read(), type=list[tuple[str, str]])
        await self._send(PODS, [self._event("DELETED", gone, name.encode(), uid.encode(), b"") for uid, name in listed])
        return web.Response()

    def _changed_reports(self) -> Iterator[bytes]:
        rng = Random(1)
        while True:
            number = rng.randrange(len(self._names))
            self._newest[number] ^= 1
            self._version += 1
            yield b'{"type":"MODIFIED","object":%s}\n' % self._report(number)

    async def _stream_reports(self, request: web.Request) -> web.Response:
        rate, seconds = float(request.query["rate"]), float(request.query["seconds"])
        self._sent = 0
        task = asyncio.create_task(self._run(self._changed_reports(), rate, seconds))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        return web.Response()

    async def _run(self, events: Iterator[bytes], rate: float, seconds: float) -> None:
        started = time.perf_counter()
        due = 0
        while due < rate * seconds:
            await asyncio.sleep(_TICK_S)
            passed = min(seconds, time.perf_counter() - started)
            due = round(rate * passed)
            # Waits where the reader does not keep up, and then sends what has become due since.
            await self._send(nrt.PATH, list(itertools.islice(events, due - self._sent)))
            self._sent = due

    async def _tell(self, _: web.Request) -> web.Response:
        progress: dict[str, Any] = {"sent": self._sent, "running": len(self._streams)}
        return web.json_response(progress)


async def serve(templates: Templates, port: int) -> None:
    """Serves on loopback until cancelled."""
    runner = web.AppRunner(Catalogue(templates).application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        read = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=Templates)
        loop.run(serve(read, int(sys.argv[2])))
