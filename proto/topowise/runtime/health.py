"""The port for metrics and probes: /metrics, /livez, /readyz (and /healthz for older manifests).

Liveness is a heartbeat: each loop beats at every iteration. A loop that has been silent for longer than its limit makes
the process not live. Readiness is a list of named conditions; the answer names the conditions that are not met.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from topowise.runtime import clock, listening
from topowise.runtime.config import Serving
from topowise.runtime.listening import listen_by_peer
from topowise.runtime.probe_server import LIMITS, Limits, ProbeServer, Response
from topowise.text import escaped

_RENDERED_FOR_S: Final = 1.0
# A rendering is kept for this multiple of its CPU time, so that renderings take 1 % at most.
_RENDERED_FOR_TIMES: Final = 100.0


class Heartbeat:
    """A loop's sign of life. `limit` is in seconds; the clock is monotonic."""

    def __init__(self, limit: float, clock: Callable[[], float] = clock.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._last = clock()

    def beat(self) -> None:
        """Called at every iteration of the loop."""
        self._last = self._clock()

    def silence(self) -> str | None:
        """Returns None while alive, else the problem."""
        silent = self._clock() - self._last
        return f"no sign of life for {silent:.0f}s, at most {self.limit:.0f}s expected" if silent > self.limit else None


Check = Callable[[], str | None]
"""None if the check passes, else the problem in a line."""


class Health:
    """The checks behind the probes; each component adds its own."""

    def __init__(self) -> None:
        self.live: dict[str, Check] = {}
        self.ready: dict[str, Check] = {}

    @staticmethod
    def report(checks: dict[str, Check]) -> tuple[int, str]:
        """Returns (HTTP status, a line per check), in the format of the API server's /readyz?verbose."""
        lines = []
        failed = False
        for name, check in sorted(checks.items()):
            problem = check()
            failed = failed or problem is not None
            lines.append(f"[+]{name} ok" if problem is None else escaped(f"[-]{name} failed: {problem}"))
        return (503 if failed else 200), "\n".join([*lines, "not ok" if failed else "ok"]) + "\n"


class Exposition:
    """The text of /metrics, rendered at most once a second however often it is requested."""

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float] = clock.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._cpu = cpu
        self._text = b""
        self._until = float("-inf")
        self.renderings = 0

    def text(self) -> bytes:
        """Returns a text that is at most a second old, or a hundred times as old as the CPU time of its rendering."""
        now = self._clock()
        if now >= self._until:
            cpu_before = self._cpu()
            # The text format escapes only line ends and backslashes, no other control characters.
            text = generate_latest(self._registry).decode()
            self._text = escaped(text, keep="\n", backslash=r"\\").encode()
            self.renderings += 1
            cpu_seconds = self._cpu() - cpu_before
            self._until = now + max(_RENDERED_FOR_S, _RENDERED_FOR_TIMES * cpu_seconds)
        return self._text


def pages(health: Health, exposition: Exposition) -> dict[str, Callable[[], Response]]:
    """Returns the served pages by path."""

    def probe(checks: dict[str, Check]) -> Response:
        status, text = health.report(checks)
        return Response(status, text.encode())

    def metrics() -> Response:
        return Response(200, exposition.text(), CONTENT_TYPE_LATEST.encode())

    live, ready = partial(probe, health.live), partial(probe, health.ready)
    return {"/livez": live, "/healthz": live, "/readyz": ready, "/metrics": metrics}


async def serve(serving: Serving, health: Health, registry: CollectorRegistry, limits: Limits = LIMITS) -> None:
    """Serves until cancelled. Raises SourceError if the port is taken or a certificate cannot be used."""
    if not serving.port:
        await asyncio.Event().wait()
    certificate = None if serving.tls is None else listening.Certificate(serving.tls)
    context = None if certificate is None else lambda: certificate.context.current
    server = ProbeServer(pages(health, Exposition(registry)), limits, context)
    renewal = () if certificate is None else (certificate.keep_current(),)
    await asyncio.gather(server.run(listen_by_peer(serving.address, serving.port)), *renewal)
