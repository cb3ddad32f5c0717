"""The service as the daemon puts it together, without its sockets; it is killed and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from ledger_check import check_ledger
from sandbox.kubescheduler import Extender
from scheduling import Clock, Service, scope
from soak.edge import Edge
from soak.heard import Heard
from topowise.kube.api import Api
from topowise_scheduler.controllers.requeue import Requeuer
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.watch import reflectors
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers

_MOST_BYTES = 10 << 20
_TICK_S = 1.0
# The daemon's own defaults.
_REQUEUE_S, _REQUEUED_PER_SECOND = 0.1, 20.0


class _LoopClock(Clock):
    def __call__(self) -> float:
        return asyncio.get_running_loop().time()


class Replica:
    """A replica; `service` is its running process, since `began`."""

    def __init__(self, api: Api, heard: Heard) -> None:
        self._api = api
        self._heard = heard
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._start()

    async def restart(self) -> None:
        """Whatever it was doing is not done, and all it knew is gone; its callers lose their connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._start()

    async def stop(self) -> None:
        """For good."""
        await self.restart()
        for task in self._tasks:
            task.cancel()

    def check(self) -> None:
        """Raises what has ended a task that must not end."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.get_name() != "call":
                task.result()

    async def ask(self, verb: str, body: bytes) -> tuple[int, bytes]:
        """Status and body. Raises ConnectionResetError if it is killed meanwhile."""
        call = self._spawn(self._asked(verb, body), "call")
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            call.cancel()
            raise
        if call.cancelled():
            raise ConnectionResetError("the service was killed")
        return call.result()

    async def _asked(self, verb: str, body: bytes) -> tuple[int, bytes]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._application(scope(f"/{verb}"), receive, send)
        return sent[0]["status"], sent[1]["body"]

    def _start(self) -> None:
        self.began = asyncio.get_running_loop().time()
        self._heard.begin()
        service = self.service = Service("TightFit", clock=_LoopClock())
        sources = reflectors(self._api, service.ledger, service.records, Budgets(), service.nodes)

        def not_synced() -> str | None:
            waiting = [source.name for source in sources if not source.synced]
            return f"not yet listed: {', '.join(waiting)}" if waiting else None

        self._application = http.Application(
            service.served(self._api, not_ready=not_synced),
            http.Metrics(CollectorRegistry()),
            _MOST_BYTES,
            Callers(("localhost",)),
        )
        requeuer = self.requeuer = Requeuer(
            self._api,
            service.ledger,
            service.answers.fits,
            interval=_REQUEUE_S,
            per_second=_REQUEUED_PER_SECOND,
            prepare=service.answers.fitting,
            clock=service.clock,
        )
        for source in sources:
            self._spawn(source.run(), source.name)
        self._spawn(requeuer.run(), "requeue")
        self._spawn(self._tick(service), "clock")

    async def _tick(self, service: Service) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            service.ledger.tick()
            check_ledger(service.ledger)

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        if name == "call":
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task


class InProcess(Extender):
    """kube-scheduler's calls without a connection."""

    def __init__(self, session: aiohttp.ClientSession, replica: Replica, edge: Edge) -> None:
        super().__init__(session, "http://localhost:8080")
        self._replica = replica
        self._edge = edge

    async def _post(self, url: str, body: bytes) -> tuple[int, bytes]:
        verb = url.rpartition("/")[2]
        self._edge.asked(verb, body)
        try:
            async with asyncio.timeout(2.0):
                status, answer = await self._replica.ask(verb, body)
        except (TimeoutError, ConnectionResetError):
            self._edge.failed(verb, body)
            raise
        return status, self._edge.answer(verb, body, answer) if status == 200 else answer
