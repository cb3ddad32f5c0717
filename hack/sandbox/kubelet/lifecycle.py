"""A kubelet's handling of the pods of its node: admits them serially, starts, ends and removes them.

Predictions depend on the order of events, so the order equals the real kubelet's. A single loop processes changes in
the order of the watch; an admission, with its sequence of checkpoints, blocks the loop (pkg/kubelet/kubelet.go,
syncLoopIteration, HandlePodAdditions). The resources of a pod are free when its containers have stopped, before the API
server hears of the end (pkg/kubelet/pod_workers.go), and a deleted pod stays in the API until then. A pod has a
directory from its admission until its object is gone. Delays are random for each pod.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, Final

import msgspec

from sandbox import simulated_time
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.pace import Pace, Startup
from sandbox.kubelet.plugin_sockets import PluginSockets
from sandbox.kubelet.registration import register
from sandbox.kubelet.state_files import Root
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

_HISTORY: Final = 400
# The pod may be gone already; its deletion is on its way to us.
_GONE: Final = (404, 409)

Refused = Callable[[pods.Pod, Admission], None]


class Lifecycle:
    """The pods of a node. `changed` is called after every change of files or podresources, `refused` after every
    refusal."""

    def __init__(
        self,
        api: Api,
        name: str,
        node: EmulatedNode,
        root: Root,
        changed: Callable[[], None],
        *,
        pace: Pace | None = None,
        refused: Refused | None = None,
        random: Random | None = None,
    ) -> None:
        self._api = api
        self.name = name
        self.node = node
        self._root = root
        self._changed = changed
        self._refused = refused
        self._pace = pace or Pace()
        self._random = random or Random(name)
        # None marks the end of a list.
        self._events: asyncio.Queue[tuple[EventType, pods.Pod] | None] = asyncio.Queue()
        self._loop = asyncio.Lock()
        # While the process is down, no pod is admitted, ended or removed.
        self._up = asyncio.Event()
        self._up.set()
        self._known: dict[str, pods.Pod] = {}
        self._assigned: set[str] = set()
        self._is_synced = False
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._ended: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving = 0
        self.plugins: PluginSockets | None = None
        """The device plug-ins that are processes of their own, if there are any."""
        self.history: deque[tuple[float, str]] = deque(maxlen=_HISTORY)
        """What happened on the node, newest last, with the event loop's time; for people."""

    @property
    def is_busy(self) -> bool:
        """Whether anything will happen by itself: a pod comes, starts, or will end."""
        return bool(self._moving or self._tasks)

    @property
    def living(self) -> frozenset[str]:
        """Uids of the pods whose admission has ended well, and that have not ended since."""
        return frozenset(self._lives)

    def replace(self, items: list[pods.Pod]) -> None:
        """As Consumer: the list of pods that begins a watch; new pods in the order of their creation."""
        there = {item.metadata.uid for item in items}
        for uid, pod in list(self._known.items()):
            if uid not in there:
                self.put("DELETED", pod)
        for item in _by_age(items):
            self.put("ADDED", item)
        self._moving += 1
        self._events.put_nowait(None)

    def put(self, event: EventType, pod: pods.Pod) -> None:
        """What a watch says of a pod that is assigned to this node."""
        if pod.metadata.uid not in self._assigned:
            self._assigned.add(pod.metadata.uid)
            self._note(pod, "assigned")
        self._moving += 1
        self._events.put_nowait((event, pod))

    def checkpoint(self, *, devices: bool) -> None:
        """The managers write what they have; the device manager only if it has a reason to."""
        node = self.node
        self._root.files.write(
            node.checkpoints(), cpu_policy=node.cpu_policy, memory_policy=node.memory_policy, admitted=devices
        )
        self._changed()

    # The process

    async def start_up(self, startup: Startup) -> None:
        """A new process begins: its files are read, and after a while it knows what it may give out. Raises SourceError
        for files with which a kubelet does not start."""
        self.node.restart(self._root.files)
        self._changed()
        await asyncio.sleep(self._random.uniform(*startup.blind))
        self.node.open_eyes()
        self.checkpoint(devices=False)
        await register(self._api, self.name, self.node)
        self._spawn(self._register_plugins(startup), f"{self.name} plugins")

    async def restart(self, startup: Startup) -> None:
        """The kubelet goes down between two pods, and the next process starts; containers run on meanwhile."""
        async with self._loop:
            self._up.clear()
            self.history.append((asyncio.get_running_loop().time(), "kubelet restarts"))
            active = [pod for uid, pod in self._known.items() if self.node.runs(uid)]
            self.node.is_blind = True
            self._root.make_socket_file()
            await self.start_up(startup)
            for pod in _by_age(active):
                decision = await self._allocate(pod)
                if not decision.admitted:
                    # It ran, so no scheduler is to be told.
                    self._note(pod, f"not admitted again: {decision.reason}")
                    if (life := self._lives.pop(pod.metadata.uid, None)) is not None:
                        life.cancel()
                    self._spawn(self._report(pod, _failed(decision)), f"{pod.metadata.name} fails")
            self.node.forget_restored()
            self._up.set()

    async def run(self) -> None:
        """Processes changes serially until cancelled."""
        chores = [
            asyncio.create_task(self._reconcile(), name=f"{self.name} CPU manager"),
            asyncio.create_task(self._keep_house(), name=f"{self.name} housekeeping"),
        ]
        try:
            while True:
                change = await self._events.get()
                if change is None:
                    # A pod that the list lacks is dead.
                    self.node.forget_restored()
                    self._is_synced = True
                else:
                    await self._up.wait()
                    await self._take(*change)
                self._moving -= 1
        finally:
            for task in (*chores, *self._tasks):
                task.cancel()

    async def _register_plugins(self, startup: Startup) -> None:
        """Registers the device plug-ins serially in random order; the node's status follows."""
        resources = self.node.unregistered
        for resource in self._random.sample(resources, len(resources)):
            await asyncio.sleep(self._random.uniform(*startup.plugins))
            async with self._loop:
                self.node.plug(resource)
                self.checkpoint(devices=True)
            await register(self._api, self.name, self.node)

    async def _reconcile(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self._pace.reconcile))
        while True:
            # Not between two checkpoints of an admission, which are made beforehand.
            async with self._loop:
                if self.node.reconcile():
                    self.checkpoint(devices=False)
            await asyncio.sleep(self._pace.reconcile)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self._pace.housekeeping)
            orphans = [uid for uid in self._root.pods() if not (uid in self._known or self.node.runs(uid))]
            for uid in orphans if self._is_synced else ():
                self._root.remove_pod(uid)
                self._changed()

    # Pods

    async def _take(self, event: EventType, pod: pods.Pod) -> None:
        uid = pod.metadata.uid
        is_new = uid not in self._known
        self._known[uid] = pod
        if event == "DELETED" or pod.is_terminal:
            if self.node.runs(uid):
                # Another client has ended the pod in the API; the containers stop too.
                self._end(pod, buries=False)
            if event == "DELETED":
                self._forget(uid)
        elif pod.metadata.deletionTimestamp and not (is_new and self.node.has_restored(uid)):
            self._end(pod, buries=True)
        elif is_new:
            if not self.node.has_restored(uid):
                await asyncio.sleep(self._random.uniform(*self._pace.admission))
            await self._admit(pod)
            if pod.metadata.deletionTimestamp:
                self._end(pod, buries=True)

    def _forget(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._assigned.discard(uid)
        self._ended.discard(uid)
        self._root.files.deallocate(uid)

    async def _admit(self, pod: pods.Pod) -> None:
        async with self._loop:
            decision = await self._allocate(pod)
            if decision.admitted:
                await asyncio.sleep(self._pace.pause.draw(self._random))
                self._root.files.allocate(pod)
                self._changed()
        log.info(
            "Admission",
            extra=kv(node=self.name, pod=pod.metadata.name, admitted=decision.admitted, why=decision.reason),
        )
        if decision.admitted:
            self._note(pod, f"admitted: {_placed(decision)}")
            self._lives[pod.metadata.uid] = self._spawn(self._live(pod), f"{pod.metadata.name} lives")
        else:
            await self._refuse(pod, decision)

    async def _allocate(self, pod: pods.Pod) -> Admission:
        """Admits a pod with a pause between its checkpoints, visible to readers. The caller holds the lock."""
        decision, steps = self.node.begin_admission(pod)
        self.checkpoint(devices=False)
        devices = self.node.managers.devices
        for step in steps:
            await asyncio.sleep(self._pace.pause.draw(self._random))
            self.node.reveal(step)
            self.checkpoint(devices=step.devices is not devices)
            devices = step.devices
        if steps:
            await asyncio.sleep(self._pace.pause.draw(self._random))
        if self.plugins is not None:
            await self.plugins.allocate_all(self.node.devices_of(pod.metadata.uid))
        self.node.end_admission(pod, decision)
        self._changed()
        return decision

    async def _refuse(self, pod: pods.Pod, decision: Admission) -> None:
        self._note(pod, f"REFUSED: {decision.reason}")
        if self._refused is not None:
            self._refused(pod, decision)
        await self._report(pod, _failed(decision))

    async def _live(self, pod: pods.Pod) -> None:
        uid = pod.metadata.uid
        await asyncio.sleep(self._pace.pause.draw(self._random))
        self._root.make_pod(uid)
        self._changed()
        if pod.status is None or pod.status.phase != "Running":
            await asyncio.sleep(self._random.uniform(*self._pace.start))
            async with self._loop:
                if self.node.start(uid) and pod.spec.initContainers:
                    self._note(pod, "started")
                    self.checkpoint(devices=False)
            await self._report(pod, _running(pod))
        lifetime = (pod.metadata.annotations or {}).get(LIFETIME)
        if lifetime is not None:
            await asyncio.sleep(float(lifetime))
            await self._release(pod)
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
        await self._up.wait()
        if self.node.runs(pod.metadata.uid):
            await asyncio.sleep(self._random.uniform(*self._pace.stop))
            await self._release(pod)
        if buries:
            await self._remove_ended(pod)
        self._moving -= 1

    async def _release(self, pod: pods.Pod) -> None:
        """List is without the pod; the managers' files are not yet."""
        async with self._loop:
            self._lives.pop(pod.metadata.uid, None)
            if self.node.remove(pod.metadata.uid):
                self._note(pod, "ended")
                self._changed()

    async def _remove_ended(self, pod: pods.Pod) -> None:
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

    def _note(self, pod: pods.Pod, event: str) -> None:
        moment = asyncio.get_running_loop().time()
        self.history.append((moment, f"{pod.metadata.namespace}/{pod.metadata.name} {event}"))


def _by_age(listed: Iterable[pods.Pod]) -> list[pods.Pod]:
    return sorted(listed, key=lambda pod: pod.metadata.creationTimestamp or "")


def _placed(decision: Admission) -> str:
    return "; ".join(
        f"{name} numa={placement.numa} cpus={0 if placement.cpus is None else placement.cpus.bit_count()} "
        f"memory={[(block.type, block.numa, block.size) for block in placement.memory]} "
        f"devices={dict(placement.devices)}"
        for name, placement in decision.placements.items()
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


def _failed(decision: Admission) -> dict[str, Any]:
    message = f"Pod was rejected: {decision.message}"
    return {"phase": "Failed", "reason": decision.reason, "message": message, "startTime": _now()}


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
    return simulated_time.utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
