"""The HTTP server: a raw ASGI callable under uvicorn, in the daemon's event loop.

Facts about the client (Go's net/http in kube-scheduler, all measured): a chunked answer or any status but 200 costs a
new connection per call, so answers have Content-Length. An idle connection that the server closes as a POST arrives is
a failed scheduling attempt, so the server keeps connections for longer than Go's 90 s. HTTP/2 is half as fast, and Go
would use it if it were offered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Histogram

from topowise.runtime.cpu_allowance import Allowance, Paced
from topowise.runtime.event_loop import UnpreparedError, sliced
from topowise.runtime.listening import Certificate, listen
from topowise.runtime.log import OncePerChange, kv
from topowise.runtime.tasks import unending
from topowise_scheduler.configuration import Extender, ReadOnly
from topowise_scheduler.serve.extender.callers import Callers
from topowise_scheduler.serve.extender.connections import IS_OPEN, LIMITS, Guard, Limits
from topowise_scheduler.serve.extender.replies import REFUSED_BECAUSE, Afterwards, BadRequestError, Reply, Verb

log = logging.getLogger(__name__)

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Longer than the 90 s after which Go closes an idle connection, so that always the client closes.
_KEEP_ALIVE_S = int(LIMITS.idle_s)
# Bodies up to this size are always read; larger bodies share this multiple of the maximum.
_SMALL = 1 << 18
_LARGE_AT_ONCE = 2
# While an answer is prepared, some nodes change; while the changed nodes are evaluated, hardly any.
_TRIES = 5
_VOLCANO = "volcano"
# CPU time of uvicorn per request, outside the application.
_PACED_LEAST_S = 0.0002
_BUCKETS = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)


class Metrics:
    """Times and failures by verb."""

    def __init__(self, registry: CollectorRegistry) -> None:
        name = "topowise_scheduler_extender_"
        self.seconds = Histogram(
            name + "request_duration_seconds",
            "From the whole request read to the answer made; of bind with the API server's part.",
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


Page = Callable[[Message, Receive, Send], Awaitable[None]]
"""A separate ASGI application."""


class Application:
    """ASGI. Paths end in the verb, so `urlPrefix` may have any path.

    Volcano's verbs are below a folder `volcano`, because both protocols have a `prioritize`. `pages` are by the path at
    and below which they answer. A request that `callers` refuses gets no other answer. With an `allowance`, all work on
    requests is charged to it, and waits while it is used up.
    """

    def __init__(
        self,
        verbs: Mapping[str, Verb],
        metrics: Metrics,
        max_body_bytes: int,
        callers: Callers,
        *,
        volcano: Mapping[str, Verb] | None = None,
        pages: Mapping[str, Page] | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        self._allowance = allowance
        self._volcano = {f"{_VOLCANO}/{name}": verb for name, verb in (volcano or {}).items()}
        self._verbs = {**verbs, **self._volcano}
        self._pages = pages or {}
        self._seconds = {name: metrics.seconds.labels(name.replace("/", "_")) for name in self._verbs}
        self._refused = {name: metrics.refused.labels(name.replace("/", "_")) for name in self._verbs}
        self._max_body_bytes = max_body_bytes
        self._callers = callers
        self._failures = OncePerChange()
        # Bytes of large bodies that are being read.
        self._large = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if self._allowance is None:
            await self._respond(scope, receive, send)
            return
        self._allowance.charge(_PACED_LEAST_S)
        await Paced(self._respond(scope, receive, send), self._allowance, scope.get(IS_OPEN, _always))

    async def _respond(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"]
        page = next((page for root, page in self._pages.items() if path == root or path.startswith(f"{root}/")), None)
        rest, _, name = path.rpartition("/")
        if rest.rpartition("/")[2] == _VOLCANO:
            name = f"{_VOLCANO}/{name}"
        verb = self._verbs.get(name)
        is_page = page is not None or (verb is not None and verb.query is not None)
        refusal = self._callers.refusal(scope["method"], scope["headers"], scope["scheme"], is_page=is_page)
        if refusal is not None:
            await _send(send, refusal.status, f"{refusal.text}\n".encode())
            return
        if page is not None:
            await page(scope, receive, send)
            return
        if verb is None:
            await _send(send, 404, self._unknown(name).encode())
            return
        if scope["method"] != "POST" and verb.query is None:
            await _send(send, 405, b"expected POST\n")
            return
        try:
            body = await self._read(receive, is_kept=not verb.is_dropped)
        except ConnectionResetError:
            return
        started = time.perf_counter()
        reply = await self._answer(verb, body, scope)
        seconds = time.perf_counter() - started
        self._seconds[name].observe(seconds)
        await _send(send, 200, reply.body, b"application/json")
        if reply.afterwards is not None:
            _follow(reply.afterwards, seconds)
        if reply.problem:
            self._refused[name].inc()
            self._note(name, reply.problem)

    def _unknown(self, name: str) -> str:
        if not name.startswith(f"{_VOLCANO}/"):
            known = [name for name in self._verbs if name not in self._volcano]
            return f"no verb {name!r:.80}, expected one of {', '.join(known)}; pages and verbs have a port each\n"
        if not self._volcano:
            return f"no verb {name!r:.80}: Volcano is not served, set volcano.enabled in SchedulerConfiguration\n"
        return f"no verb {name!r:.80}, expected one of {', '.join(self._volcano)}\n"

    async def _answer(self, verb: Verb, body: bytes | None, scope: Message) -> Reply:
        if body is None:
            problem = f"request is larger than {self._max_body_bytes} bytes, or together with others than twice that"
            return verb.refuse(problem)
        try:
            if verb.now is not None:
                return await _in_slices(verb.now, body)
            if verb.later is not None:
                return await verb.later(body)
            assert verb.query is not None
            query = parse_qs(scope["query_string"].decode("ascii", "replace"))
            return await verb.query(body if scope["method"] == "POST" else None, query)
        except REFUSED_BECAUSE as exc:
            return verb.refuse(str(exc))
        except Exception:
            # With a status of 500, kube-scheduler would also lose its connection.
            log.exception("Request cannot be answered, which is a defect", extra=kv(path=scope["path"][:80]))
            return verb.refuse("the service has a defect, its log says more")

    async def _read(self, receive: Receive, *, is_kept: bool) -> bytes | None:
        """The whole body, None if it is too large. It is read to its end, or the client would not read the answer.

        With `is_kept` False a body of any size is read, and b"" is returned. Raises ConnectionResetError.
        """
        parts: list[bytes] = []
        size = large = 0
        fits = is_kept
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionResetError("the client has gone in the middle of its request")
                part = message.get("body", b"")
                size += len(part)
                if fits and size > _SMALL:
                    self._large += len(part)
                    large += len(part)
                    fits = size <= self._max_body_bytes and self._large <= _LARGE_AT_ONCE * self._max_body_bytes
                if fits:
                    parts.append(part)
                elif parts:
                    parts.clear()
                    self._large -= large
                    large = 0
                if not message.get("more_body", False):
                    break
        finally:
            self._large -= large
        if is_kept and not fits:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _note(self, verb: str, problem: str) -> None:
        """Logs a change only: a scheduler repeats a bad request, or alternates between two."""
        if self._failures.is_change(problem):
            log.warning("Request refused", extra=kv(verb=verb, why=problem))


def _follow(afterwards: Afterwards, seconds: float) -> None:
    """Runs the work after the answer. A failure is logged only: the request has been answered."""
    try:
        afterwards(seconds)
    except Exception:
        log.exception("What follows an answer has failed, which is a defect")


async def _send(send: Send, status: int, body: bytes, content_type: bytes = b"text/plain; charset=utf-8") -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _always() -> bool:
    return True


async def _in_slices(now: Callable[[bytes], Reply], body: bytes) -> Reply:
    """The answer. Long preparations run in slices before it, so that other requests do not wait."""
    for _ in range(_TRIES):
        try:
            return now(body)
        except UnpreparedError as exc:
            await sliced(exc.steps)
    raise BadRequestError("nodes change faster than a pod of so many containers can be judged")


class _Server(uvicorn.Server):
    """uvicorn in the daemon's event loop: the daemon handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Extender | ReadOnly, application: Application, limits: Limits = LIMITS) -> None:
    """Serves until cancelled; no answer is cut off.

    Raises SourceError if the port is taken or the certificate cannot be used.
    """
    guard = Guard(limits)
    certificate = None if settings.tls is None else Certificate(settings.tls)
    config = uvicorn.Config(
        application,
        http=guard.protocol,  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        # Client addresses are not used.
        proxy_headers=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )
    server = _Server(config)
    # Not uvicorn's socket, because uvicorn ends the process if it cannot listen.
    listening = listen(settings.address, settings.port)
    work = {"connections": guard.run()}
    if certificate is not None:
        work["certificate renewal"] = certificate.keep_current()
    # If such a task fails, the port must not stay open without limits for its clients.
    async with asyncio.TaskGroup() as group:
        beside = [group.create_task(unending(name, task), name=name) for name, task in work.items()]
        try:
            await server.serve([listening])
        finally:
            server.should_exit = True
            listening.close()
            for task in beside:
                task.cancel()
