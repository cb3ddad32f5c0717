"""What a kubelet does with the pods of its node: admits them one after the other, starts, ends and buries them.

Order is what matters to whoever predicts a kubelet, so it is the real one's. Pods are admitted in the order in which
they were assigned (pkg/kubelet/kubelet.go, HandlePodAdditions); what a pod holds is free when its containers have
stopped, which is before the API server hears of the end (pkg/kubelet/pod_workers.go), and a deleted pod stays in the
API until then. Delays are drawn for each pod; without any this is the kubelet of the demo.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import msgspec

from sandbox.kubelet.node import EmulatedNode
from topowise import pods
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.kube.reflector import EventType
from topowise.runtime.log import kv
from topowise_scheduler.kubelet import Admission

log = logging.getLogger(__name__)

LIFETIME: Final = "sandbox.topowise.io/lifetime"
"""Annotation: for how many seconds the containers run before they end by themselves; none: for ever."""

# As kubelets write it: conditions are joined by their type.
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"

Seconds = tuple[float, float]
_HISTORY: Final = 400
# The pod may be gone already; its deletion is on its way to us.
_GONE: Final = (404, 409)


class Pace(msgspec.Struct, frozen=True):
    """Seconds, each drawn evenly between two bounds: until a pod is looked at, from then until its containers run (init
    containers are done), and from its deletion until they have stopped."""

    admission: Seconds = (0.0, 0.0)
    start: Seconds = (0.0, 0.0)
    stop: Seconds = (0.0, 0.0)


class Change(msgspec.Struct, frozen=True):
    """Something about the holdings of a node. `admitted`: it was an admission, at which all state is written."""

    admitted: bool


Refused = Callable[[pods.Pod, Admission], None]


class Lifecycle:
    """The pods of one node. `changed` is told after every change of what they hold, `refused` of every refusal."""

    def __init__(
        self,
        api: Api,
        name: str,
        node: EmulatedNode,
        changed: Callable[[Change], None],
        *,
        pace: Pace | None = None,
        refused: Refused | None = None,
        random: Random | None = None,
    ) -> None:
        self._api = api
        self.name = name
        self.node = node
        self._changed = changed
        self._refused = refused
        self._pace = pace or Pace()
        self._random = random or Random(name)
        self._arrivals: asyncio.Queue[pods.Pod] = asyncio.Queue()
        self._known: dict[str, pods.Pod] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._ended: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving = 0
        self.history: deque[tuple[float, str]] = deque(maxlen=_HISTORY)
        """What happened on the node, newest last, with the monotonic time; for people."""

    @property
    def is_busy(self) -> bool:
        """Whether anything will happen by itself: a pod comes, starts, or will end."""
        return bool(self._moving or self._tasks)

    def put(self, event: EventType, pod: pods.Pod) -> None:
        """What a watch says of a pod that is assigned to this node."""
        uid = pod.metadata.uid
        if event == "DELETED" or pod.is_terminal:
            if self.node.runs(uid):
                # Somebody else has ended it in the API; the containers stop all the same.
                self._end(pod, buries=False)
            if event == "DELETED":
                self._known.pop(uid, None)
                self._ended.discard(uid)
        elif pod.metadata.deletionTimestamp:
            self._known.setdefault(uid, pod)
            self._end(pod, buries=True)
        elif uid not in self._known:
            self._known[uid] = pod
            self._note(pod, "assigned")
            self._moving += 1
            self._arrivals.put_nowait(pod)

    def keep(self, uids: Collection[str]) -> None:
        """All pods but these were deleted while nobody watched."""
        for uid, pod in list(self._known.items()):
            if uid not in uids:
                self.put("DELETED", pod)

    async def run(self) -> None:
        """Admits pods until cancelled."""
        try:
            while True:
                pod = await self._arrivals.get()
                await asyncio.sleep(self._random.uniform(*self._pace.admission))
                if pod.metadata.uid in self._known and pod.metadata.uid not in self._ended:
                    await self._admit(pod)
                self._moving -= 1
        finally:
            for task in list(self._tasks):
                task.cancel()

    async def _admit(self, pod: pods.Pod) -> None:
        decision = self.node.admit(pod)
        self._note(pod, f"admitted: {_placed(decision)}" if decision.admitted else f"REFUSED: {decision.reason}")
        log.info(
            "Admission",
            extra=kv(node=self.name, pod=pod.metadata.name, admitted=decision.admitted, why=decision.reason),
        )
        self._changed(Change(admitted=True))
        if decision.admitted:
            self._lives[pod.metadata.uid] = self._spawn(self._live(pod), f"{pod.metadata.name} lives")
            return
        if self._refused is not None:
            self._refused(pod, decision)
        message = f"Pod was rejected: {decision.message}"
        status = {"phase": "Failed", "reason": decision.reason, "message": message, "startTime": _now()}
        await self._report(pod, status)

    async def _live(self, pod: pods.Pod) -> None:
        await asyncio.sleep(self._random.uniform(*self._pace.start))
        if self.node.start(pod.metadata.uid) and pod.spec.initContainers:
            self._note(pod, "started")
            self._changed(Change(admitted=False))
        await self._report(pod, _running(pod))
        lifetime = (pod.metadata.annotations or {}).get(LIFETIME)
        if lifetime is not None:
            await asyncio.sleep(float(lifetime))
            self._release(pod)
            await self._report(pod, _succeeded(pod))

    def _end(self, pod: pods.Pod, *, buries: bool) -> None:
        """The pod is to end; its object is removed afterwards if it `buries` it."""
        uid = pod.metadata.uid
        if uid in self._ended:
            return
        self._ended.add(uid)
        living = self._lives.pop(uid, None)
        if living is not None:
            living.cancel()
        self._moving += 1
        self._spawn(self._stop(pod, buries=buries), f"{pod.metadata.name} ends")

    async def _stop(self, pod: pods.Pod, *, buries: bool) -> None:
        if self.node.runs(pod.metadata.uid):
            await asyncio.sleep(self._random.uniform(*self._pace.stop))
            self._release(pod)
        if buries:
            await self._bury(pod)
        self._moving -= 1

    def _release(self, pod: pods.Pod) -> None:
        self._lives.pop(pod.metadata.uid, None)
        if self.node.remove(pod.metadata.uid):
            self._note(pod, "ended")
            self._changed(Change(admitted=False))

    async def _bury(self, pod: pods.Pod) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        try:
            await self._api.request("DELETE", _path(pod), body=msgspec.json.encode(options))
        except ApiError as exc:
            if exc.status not in _GONE:
                log.warning("Cannot remove a pod that has ended", extra=kv(pod=pod.metadata.name, why=exc))

    async def _report(self, pod: pods.Pod, status: dict[str, Any]) -> None:
        body = msgspec.json.encode({"metadata": {"uid": pod.metadata.uid}, "status": status})
        try:
            await self._api.request("PATCH", f"{_path(pod)}/status", body=body, content_type=STRATEGIC_MERGE_PATCH)
        except ApiError as exc:
            if exc.status not in _GONE:
                log.warning("Cannot report a pod's status", extra=kv(pod=pod.metadata.name, why=exc))
            return
        self._note(pod, f"is {status['phase']} in the API")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _note(self, pod: pods.Pod, what: str) -> None:
        self.history.append((time.monotonic(), f"{pod.metadata.namespace}/{pod.metadata.name} {what}"))


def _placed(decision: Admission) -> str:
    return "; ".join(
        f"{name} numa={held.numa} cpus={0 if held.cpus is None else held.cpus.bit_count()} "
        f"memory={[(block.type, block.numa, block.size) for block in held.memory]} devices={dict(held.devices)}"
        for name, held in decision.placements.items()
    )


def _running(pod: pods.Pod) -> dict[str, Any]:
    return {
        "phase": "Running",
        "startTime": _now(),
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {"name": container.name, "ready": True, "restartCount": 0, "image": "", "imageID": ""}
            for container in pod.spec.containers or ()
        ],
    }


def _succeeded(pod: pods.Pod) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": _now()}}
    return {
        "phase": "Succeeded",
        "containerStatuses": [
            {"name": container.name, "ready": False, "restartCount": 0, "image": "", "imageID": "", "state": ended}
            for container in pod.spec.containers or ()
        ],
    }


def _path(pod: pods.Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
