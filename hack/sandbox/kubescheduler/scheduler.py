"""The scheduler itself: informers, the loop, binds in the background (pkg/scheduler/{scheduler,schedule_one}.go)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import Any, Final, Generic, TypeVar

import msgspec

from sandbox.kubescheduler import cache as pods
from sandbox.kubescheduler.cache import Attempt, Cache, PodInfo, fit_error, said
from sandbox.kubescheduler.extender import Extender, ExtenderError
from sandbox.kubescheduler.fit import Cycle, Decision, Preemption
from sandbox.kubescheduler.queue import Event, QueuedPod, SchedulingQueue
from sandbox.kubescheduler.status import EventWriter, StatusWriter
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime.log import kv
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.verdicts.kube_scheduler import Node

Object = TypeVar("Object")


class Informer(Generic[Object]):
    """A Consumer. `key` tells objects apart; what a new list lacks is dropped."""

    def __init__(
        self, key: Callable[[Object], str], put: Callable[[Object], None], drop: Callable[[str], None]
    ) -> None:
        self._key = key
        self._put = put
        self._drop = drop
        self._held: set[str] = set()
        self.synced = asyncio.Event()

    def replace(self, items: list[Object]) -> None:
        """The collection is exactly this."""
        there = {self._key(item) for item in items}
        for key in self._held - there:
            self._drop(key)
        self._held = there
        for item in items:
            self._put(item)
        self.synced.set()

    def apply(self, event: EventType, item: Object) -> None:
        """As Consumer: applies an event."""
        key = self._key(item)
        if event == "DELETED":
            self._held.discard(key)
            self._drop(key)
        else:
            self._held.add(key)
            self._put(item)


log = logging.getLogger(__name__)

# As in kube-scheduler's watch: a pod that has ended counts as deleted.
_LIVE: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}

# The answer of DynamicResources, the first plug-in at PostFilter, about every pod without claims.
_NO_CLAIMS: Final = "no new claims to deallocate"

Seconds = tuple[float, float]


class KubeScheduler:
    """Schedules the pods whose schedulerName is `name` or in `profiles`; `run` runs until cancelled.

    `extender` None: a scheduler without an extender. `bind_delay` is the range of seconds that WaitOnPermit and PreBind
    take, in which later cycles run. `preempts` False disables DefaultPreemption. `tried` is called after every
    attempt.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        extender: Extender | None,
        *,
        bind_delay: Seconds = (0.0, 0.0),
        preempts: bool = True,
        tried: Callable[[Attempt], None] | None = None,
        profiles: Collection[str] = (),
        events: EventWriter | None = None,
        random: Random | None = None,
    ) -> None:
        self._api = api
        self.name = name
        self._names = {name, *profiles}
        self._events = events
        self.extender = extender
        self._bind_delay = bind_delay
        self._preempts = preempts
        self._tried = tried
        self._random = random or Random(name)
        self._cache = Cache()
        self._pending: dict[str, PodInfo] = {}
        self._nominated: dict[str, dict[str, PodInfo]] = {}
        self._cycle = Cycle(self._cache, self._nominated_on, extender, self._random)
        self._preemption = Preemption(self._cache, self._nominated_on, extender, self._random)
        self._status = StatusWriter(api)
        self._binding: set[asyncio.Task[None]] = set()
        self.queue = SchedulingQueue()
        self.counts: Counter[str] = Counter()
        """attempts, bound, refused, failed (attempts), bind failed, preemptions, victims."""

    @property
    def is_quiet(self) -> bool:
        """Whether no pod is tried or bound, or waits for a back-off."""
        return self.queue.is_quiet and not self._binding

    def pods_on(self, node: str) -> list[PodInfo]:
        """Returns the pods that are assigned or assumed on a node, in the order of their decisions."""
        cached = self._cache.get(node)
        return [] if cached is None else list(cached.pods.values())

    @property
    def pending(self) -> list[PodInfo]:
        """Returns the unassigned pods, assumed pods included."""
        return list(self._pending.values())

    async def run(self) -> None:
        """Runs until cancelled."""
        nodes = Informer[Node](lambda node: node.name, self.put_node, self.drop_node)
        live = Informer[PodInfo](lambda info: info.uid, self.put_pod, self.drop_pod)
        watches: dict[str, Reflector[Any]] = {
            "nodes": Reflector(self._api, "/api/v1/nodes", Nodes().decode, nodes),
            "pods": Reflector(self._api, "/api/v1/pods", pods.decode, live, query=_LIVE),
        }
        try:
            async with asyncio.TaskGroup() as tasks:
                for kind, reflector in watches.items():
                    tasks.create_task(reflector.run(), name=f"{self.name} {kind}")
                await nodes.synced.wait()
                await live.synced.wait()
                tasks.create_task(self._schedule(), name=f"{self.name} cycles")
        finally:
            for task in list(self._binding):
                task.cancel()

    # The cycles

    async def _schedule(self) -> None:
        while True:
            queued = await self.queue.pop()
            info = queued.info
            if info.pod.metadata.deletionTimestamp or info.uid not in self._pending:
                self.queue.done(info.uid)
                continue
            self.counts["attempts"] += 1
            try:
                decision = await self._cycle.decide(info)
            except ExtenderError as exc:
                await self._failed(queued, str(exc))
                continue
            if decision.chosen is None:
                await self._refused(queued, decision)
                continue
            self._cache.assume(info, decision.chosen)
            self.queue.done(info.uid)
            self._tell(info, decision)
            task = asyncio.create_task(self._bind(queued, decision.chosen), name=f"bind {info.key}")
            self._binding.add(task)
            task.add_done_callback(self._binding.discard)

    async def _refused(self, queued: QueuedPod, decision: Decision) -> None:
        info = queued.info
        self.counts["refused"] += 1
        nominated, after = None, ""
        if self._preempts:
            nominated, after = await self._preempt(info, decision)
        message = fit_error(len(decision.refused), said(decision.refused), after)
        self.queue.refuse(queued, frozenset(refusal.plugin for refusal in decision.refused.values()))
        self._tell(info, decision, message=message, nominated=nominated)
        await self._write(info, "Unschedulable", message, nominated)

    async def _preempt(self, info: PodInfo, decision: Decision) -> tuple[str | None, str]:
        """Returns the nomination ("": none any more; None: as it is), and PostFilter's message."""
        result = await self._preemption.choose(info, decision.refused)
        if result.node is None:
            # An obsolete nomination is removed; a nomination that waits for its victims stays.
            keeps = "terminating" in result.message
            return None if keeps else "", f"{_NO_CLAIMS}, {result.message}"
        self.counts["preemptions"] += 1
        self.counts["victims"] += len(result.victims)
        for victim in result.victims:
            try:
                await self._status.evict(victim, info)
            except ApiError as exc:
                log.warning("Cannot evict", extra=kv(pod=victim.key, why=exc))
        for nominated in list(self._nominated.get(result.node, {}).values()):
            if nominated.priority < info.priority:
                await self._status.denominate(nominated)
        return result.node, ""

    async def _failed(self, queued: QueuedPod, problem: str) -> None:
        self.counts["failed"] += 1
        self._tell(queued.info, None, error=problem)
        self.queue.fail(queued)
        await self._write(queued.info, "SchedulerError", problem, None)

    async def _bind(self, queued: QueuedPod, node: str) -> None:
        info = queued.info
        await asyncio.sleep(self._random.uniform(*self._bind_delay))
        try:
            if self.extender is not None and self.extender.bind_verb:
                await self.extender.bind(info, node)
            else:
                await self._status.bind(info, node)
        except (ExtenderError, ApiError) as exc:
            await self._bind_failed(queued, str(exc))
            return
        self.counts["bound"] += 1
        if self._events is not None:
            await self._events.scheduled(info, node)

    async def _bind_failed(self, queued: QueuedPod, problem: str) -> None:
        info = queued.info
        self.counts["bind failed"] += 1
        if info.uid in self._cache.assumed:
            self._cache.drop_pod(info.uid)
            # Its resources are free again (handleBindingCycleError).
            self.queue.tell(Event("AssignedPodDelete"))
        if info.uid not in self._pending:
            # Deleted meanwhile, or bound all the same.
            return
        queued.info = self._pending[info.uid]
        self.queue.fail(queued)
        await self._write(queued.info, "SchedulerError", problem, None)

    async def _write(self, info: PodInfo, reason: str, message: str, nominated: str | None) -> None:
        current = self._pending.get(info.uid)
        if current is None:
            return
        if self._events is not None:
            await self._events.failed(current, message)
        try:
            await self._status.unscheduled(current, reason, message, nominated)
        except ApiError as exc:
            log.warning("Cannot write a pod's status", extra=kv(pod=info.key, why=exc))

    def _tell(
        self,
        info: PodInfo,
        decision: Decision | None,
        *,
        message: str = "",
        nominated: str | None = None,
        error: str = "",
    ) -> None:
        if self._tried is None:
            return
        meta = info.pod.metadata
        attempt = Attempt(meta.uid, meta.namespace, meta.name, message=message, nominated=nominated, error=error)
        if decision is not None:
            attempt = msgspec.structs.replace(
                attempt,
                refused=decision.refused,
                feasible=decision.feasible,
                scores=decision.scores,
                chosen=decision.chosen,
            )
        self._tried(attempt)

    def _nominated_on(self, node: str, info: PodInfo) -> list[PodInfo]:
        """Pods at least as important for which room is being made there (addGENominatedPods)."""
        return [
            nominated
            for nominated in self._nominated.get(node, {}).values()
            if nominated.uid != info.uid
            and nominated.priority >= info.priority
            and nominated.uid not in self._cache.assumed
        ]

    # What the informers say (eventhandlers.go)

    def put_node(self, node: Node) -> None:
        """A node came or changed."""
        old = self._cache.get(node.name)
        kind: Final = "NodeAdd" if old is None else "NodeUpdate"
        is_changed = old is None or old.object != node
        self._cache.put_node(node)
        self.queue.tell(Event(kind, self._cache.get(node.name) if is_changed else None))

    def drop_node(self, name: str) -> None:
        """A node is gone."""
        self._cache.drop_node(name)
        self.queue.tell(Event("NodeDelete"))

    def put_pod(self, info: PodInfo) -> None:
        """A pod came or changed, of whichever scheduler."""
        if info.node:
            was_there = self._cache.place_of(info.uid) is not None and info.uid not in self._cache.assumed
            if self._forget_pending(info.uid) is not None:
                self.queue.drop(info.uid)
            self._cache.put_pod(info)
            self.queue.tell(Event("AssignedPodUpdate" if was_there else "AssignedPodAdd"))
        elif info.pod.spec.schedulerName in self._names:
            self._forget_pending(info.uid)
            self._pending[info.uid] = info
            if info.nominated:
                self._nominated.setdefault(info.nominated, {})[info.uid] = info
            if info.uid not in self._cache.assumed and not info.pod.spec.schedulingGates:
                self.queue.put(info)

    def drop_pod(self, uid: str) -> None:
        """A pod has ended or was deleted."""
        waiting = self._forget_pending(uid)
        if waiting is not None:
            self.queue.drop(uid)
        if self._cache.place_of(uid) is not None or (waiting is not None and waiting.nominated):
            self._cache.drop_pod(uid)
            self.queue.tell(Event("AssignedPodDelete"))

    def _forget_pending(self, uid: str) -> PodInfo | None:
        info = self._pending.pop(uid, None)
        if info is not None and info.nominated:
            self._nominated[info.nominated].pop(uid, None)
        return info
