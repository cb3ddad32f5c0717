"""Schedules the demo's pods serially with the sandbox's kube-scheduler, and records every step."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from demo.cluster import SCHEDULER
from sandbox.kubescheduler import Attempt, Extender, KubeScheduler, extender
from topowise.kube.api import Api

Json = dict[str, Any]

_LIMIT_S = 120.0


class Opinion(msgspec.Struct, frozen=True):
    """The verdict on a node. `was_asked` is False if kube-scheduler's own filters excluded the node."""

    node: str
    was_asked: bool
    fits: bool
    score: int | None
    detail: str


class ScheduledPod(msgspec.Struct, frozen=True):
    """A scheduling cycle. `chosen` is None if no node fits; the kubelet sets `phase` and `message`."""

    pod: str
    opinions: tuple[Opinion, ...]
    chosen: str | None
    phase: str = ""
    message: str = ""


class Scheduling:
    """kube-scheduler with the extender at `prefix`, running inside the `async with` block; `pages` serves /explain."""

    def __init__(self, api: Api, session: aiohttp.ClientSession, prefix: str, pages: str) -> None:
        self._api = api
        self._session = session
        self._pages = pages
        self._scheduler = KubeScheduler(api, SCHEDULER, Extender(session, prefix), tried=self._note)
        self._tried: dict[str, asyncio.Future[Attempt]] = {}
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._scheduler.run(), name="kube-scheduler")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def schedule(self, pod: Json, nodes: list[str]) -> ScheduledPod:
        """Creates the pod, and waits for the decisions of kube-scheduler and of the kubelet."""
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        self._tried[name] = asyncio.get_running_loop().create_future()
        explained = await self._explain(pod)
        await self._api.request("POST", path, body=msgspec.json.encode(pod))
        async with asyncio.timeout(_LIMIT_S):
            attempt = await self._tried[name]
            opinions = tuple(_opinion(node, attempt, explained) for node in nodes)
            if attempt.chosen is None:
                return ScheduledPod(name, opinions, None)
            phase, message = await self._settled(f"{path}/{name}")
        return ScheduledPod(name, opinions, attempt.chosen, phase, message)

    def _note(self, attempt: Attempt) -> None:
        waiting = self._tried.get(attempt.name)
        # kube-scheduler retries a waiting pod, and a failed call after a second.
        if waiting is not None and not waiting.done() and not attempt.error:
            waiting.set_result(attempt)

    async def _explain(self, pod: Json) -> dict[str, str]:
        """Returns the service's explanation per node. The question precedes the reservation of the pod itself."""
        async with self._session.post(f"{self._pages}/explain", json=pod) as response:
            return {
                explanation["node"]: explanation["text"] for explanation in msgspec.json.decode(await response.read())
            }

    async def _settled(self, path: str) -> tuple[str, str]:
        """Returns the pod's phase and message after the kubelet's decision."""
        while True:
            status = msgspec.json.decode(await self._api.request("GET", path)).get("status", {})
            if status.get("phase", "Pending") != "Pending":
                return status["phase"], f"{status.get('reason', '')} {status.get('message', '')}".strip()
            await asyncio.sleep(0.02)


def _opinion(node: str, attempt: Attempt, explained: dict[str, str]) -> Opinion:
    refused = attempt.refused.get(node)
    fits = node in attempt.feasible
    if refused is None and not fits:
        # A real kubelet of this machine belongs to another cluster, so its Node is not here.
        return Opinion(node, was_asked=False, fits=False, score=None, detail="no such Node in this cluster")
    if refused is not None and refused.plugin != extender.PLUGIN:
        return Opinion(node, was_asked=False, fits=False, score=None, detail=_lacks(refused.reasons))
    return Opinion(node, was_asked=True, fits=fits, score=attempt.scores.get(node), detail=explained.get(node, ""))


def _lacks(reasons: tuple[str, ...]) -> str:
    lacking = [reason.removeprefix("Insufficient ") for reason in reasons]
    return reasons[0] if lacking[0] == reasons[0] else f"Insufficient {', '.join(lacking)}"
