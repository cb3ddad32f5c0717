"""The HTTP face: a raw ASGI callable under uvicorn, in the daemon's own event loop.

Facts about the peer (Go's net/http in kube-scheduler, all measured): a chunked answer or any status but 200 costs a new
connection a call, so answers carry Content-Length; an idle connection closed by us as a POST arrives is a failed
scheduling attempt, so ours outlive Go's 90 s; HTTP/2 is half as fast and would be taken if offered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Histogram

from topowise.runtime import tls
from topowise.runtime.log import kv
from topowise_scheduler.configuration import Extender
from topowise_scheduler.extender import verbs
from topowise_scheduler.extender.verbs import Verbs

log = logging.getLogger(__name__)

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = tuple[Callable[[bytes], bytes], Callable[[str], bytes]]

# Longer than the 90 s after which Go closes an idle connection, so that it is always the client who closes.
_KEEP_ALIVE_S = 120
_BUCKETS = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)


class Metrics:
    """Times and failures by verb."""

    def __init__(self, registry: CollectorRegistry) -> None:
        name = "topowise_scheduler_extender_"
        self.seconds = Histogram(
            name + "request_duration_seconds",
            "From the whole request read to the answer made.",
            ["verb"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.refused = Counter(
            name + "refused_requests_total",
            "Requests answered with an error: malformed, too large, or before the first sync.",
            ["verb"],
            registry=registry,
        )


class Application:
    """ASGI. Paths end in the verb, so `urlPrefix` may have any path of its own."""

    def __init__(self, answering: Verbs, metrics: Metrics, max_body_bytes: int) -> None:
        self._handlers: dict[str, Handler] = {
            "filter": (answering.filter, verbs.refuse_filter),
            "prioritize": (answering.prioritize, verbs.refuse_prioritize),
            "explain": (answering.explain, verbs.refuse_explain),
        }
        self._answering = answering
        self._seconds = {verb: metrics.seconds.labels(verb) for verb in self._handlers}
        self._refused = {verb: metrics.refused.labels(verb) for verb in self._handlers}
        self._max_body_bytes = max_body_bytes
        self._complaint = ""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        verb = scope["path"].rpartition("/")[2]
        handler = self._handlers.get(verb)
        if handler is None:
            await _send(send, 404, f"no verb {verb!r}, expected one of {', '.join(self._handlers)}\n".encode())
            return
        if scope["method"] != "POST":
            await _send(send, 405, b"expected POST\n")
            return
        body = await self._read(receive)
        started = time.perf_counter()
        answer, problem = self._answer(handler, body)
        self._seconds[verb].observe(time.perf_counter() - started)
        await _send(send, 200, answer, b"application/json")
        for name in self._answering.take_notes():
            log.warning("Asked about a node that the cluster does not have, letting it pass", extra=kv(node=name))
        if problem:
            self._refused[verb].inc()
            self._note(verb, problem)

    def _answer(self, handler: Handler, body: bytes | None) -> tuple[bytes, str]:
        answer, refuse = handler
        if body is None:
            problem = f"request is larger than {self._max_body_bytes} bytes"
            return refuse(problem), problem
        try:
            return answer(body), ""
        except verbs.REFUSED_BECAUSE as exc:
            return refuse(str(exc)), str(exc)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body, None if it is too large; the rest is read all the same, or the client would not listen."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            part = message.get("body", b"")
            size += len(part)
            if size <= self._max_body_bytes:
                parts.append(part)
            if not message.get("more_body", False):
                break
        if size > self._max_body_bytes:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _note(self, verb: str, problem: str) -> None:
        """Once per change: a scheduler that sends one bad request sends it again and again."""
        if problem != self._complaint:
            self._complaint = problem
            log.warning("Request refused", extra=kv(verb=verb, why=problem))


async def _send(send: Send, status: int, body: bytes, content_type: bytes = b"text/plain; charset=utf-8") -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Server(uvicorn.Server):
    """uvicorn in a loop that is not its own: signals are the daemon's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Extender, application: Application) -> None:
    """Serves until cancelled; an answer is made in one go, so none is cut. Raises OSError if the port is taken."""
    certificate = None if settings.tls is None else tls.Certificate(settings.tls)
    config = uvicorn.Config(
        application,
        host=settings.address,
        port=settings.port,
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )
    server = _Server(config)
    renewal = None
    if certificate is not None:
        renewal = asyncio.create_task(certificate.keep_current(), name="certificate renewal")
    try:
        await server.serve()
    except SystemExit as exc:
        # uvicorn ends the process if it cannot bind; a task has to fail by its own name instead.
        raise OSError(f"cannot listen on {settings.address}:{settings.port}") from exc
    finally:
        server.should_exit = True
        if renewal is not None:
            renewal.cancel()
