"""The port for people and probes: /metrics, /livez, /readyz (and /healthz, as older manifests ask).

Liveness is a heartbeat: each loop beats at every turn, and a loop that has been silent for longer than it
promised makes the process not live. Readiness is a list of named conditions; the answer names those that are not met.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from topowise.runtime import tls
from topowise.runtime.config import Serving
from topowise.runtime.listening import listen
from topowise.text import escaped

_HANDSHAKE_S = 10.0


class Heartbeat:
    """A loop's sign of life. `limit` is in seconds; the clock is monotonic."""

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._last = clock()

    def beat(self) -> None:
        """Called at every turn of the loop."""
        self._last = self._clock()

    def silence(self) -> str | None:
        """None while alive, else what is wrong."""
        silent = self._clock() - self._last
        return f"no sign of life for {silent:.0f}s, at most {self.limit:.0f}s expected" if silent > self.limit else None


Check = Callable[[], str | None]
"""None if all is well, else one line that says what is not."""


class Health:
    """What the probes ask; checks are added by the parts they belong to."""

    def __init__(self) -> None:
        self.live: dict[str, Check] = {}
        self.ready: dict[str, Check] = {}

    @staticmethod
    def report(checks: dict[str, Check]) -> tuple[int, str]:
        """(HTTP status, a line a check), in the manner of the API server's /readyz?verbose."""
        lines = []
        failed = False
        for name, check in sorted(checks.items()):
            problem = check()
            failed = failed or problem is not None
            lines.append(f"[+]{name} ok" if problem is None else escaped(f"[-]{name} failed: {problem}"))
        return (503 if failed else 200), "\n".join([*lines, "not ok" if failed else "ok"]) + "\n"


def exposition(registry: CollectorRegistry) -> bytes:
    """The metrics in the text format, whose escapes know no control characters but the end of a line."""
    text = generate_latest(registry)
    # Of a backslash the format has an escape as well.
    return escaped(text.decode(), keep="\n", backslash=r"\\").encode()


class ConnectionLimit:
    """How many connections there may be at a time: the port is open to every pod, and each connection costs a file of
    this process.

    A probe and a scrape take milliseconds, and their clients ask again over a new connection if we close theirs. So
    the oldest is closed if there are too many, and each after a while.
    """

    def __init__(self, server: web.Server, most: int = 64, seconds: float = 60.0) -> None:
        self._server = server
        self._most = most
        self._seconds = seconds

    def enter(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        inside = self._server.connections
        for one in inside[: max(0, len(inside) - self._most + 1)]:
            one.force_close()
        return self._server()

    async def watch(self) -> None:
        """Closes those that have been open too long, until cancelled."""
        before: set[object] = set()
        while True:
            await asyncio.sleep(self._seconds / 2)
            inside = self._server.connections
            for one in inside:
                if one in before:
                    one.force_close()
            before = set(inside)


async def serve(serving: Serving, health: Health, registry: CollectorRegistry) -> None:
    """Serves until cancelled. Raises SourceError if the port is taken or a certificate cannot be used."""
    application = web.Application()

    def answer(checks: dict[str, Check]) -> web.Response:
        status, text = health.report(checks)
        return web.Response(status=status, text=text)

    async def livez(_: web.Request) -> web.Response:
        return answer(health.live)

    async def readyz(_: web.Request) -> web.Response:
        return answer(health.ready)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=exposition(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    for path, handler in (("/livez", livez), ("/healthz", livez), ("/readyz", readyz), ("/metrics", metrics)):
        application.router.add_get(path, handler)
    if not serving.port:
        await asyncio.Event().wait()
    certificate = None if serving.tls is None else tls.Certificate(serving.tls)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    assert runner.server is not None
    limit = ConnectionLimit(runner.server)
    context = None if certificate is None else certificate.context
    timeout = None if context is None else _HANDSHAKE_S
    try:
        server = await asyncio.get_running_loop().create_server(
            limit.enter, sock=listen(serving.address, serving.port), ssl=context, ssl_handshake_timeout=timeout
        )
        try:
            renewal = () if certificate is None else (certificate.keep_current(),)
            await asyncio.gather(limit.watch(), *renewal)
        finally:
            # Not waited for: from Python 3.12 on that takes until the last client has gone.
            server.close()
    finally:
        await runner.cleanup()
