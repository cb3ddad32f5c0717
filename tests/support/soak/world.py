"""One random cluster from its first node to the time when nothing moves any more; what happens there follows a seed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import aiohttp
import msgspec

from burst import evidence
from burst.bench import CRD
from sandbox import simulated_time
from sandbox.apiserver import ApiServer
from sandbox.apiserver.direct import DirectApi
from sandbox.hollow import LIFETIME, RESTART, Fleet, HollowNode, Pace, Pause, Refusal, Reporting
from sandbox.kubelet.devices import any_of_them
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubescheduler import Attempt, KubeScheduler
from sandbox.kubescheduler.extender import PLUGIN
from sandbox.kubescheduler.pod import PodInfo
from soak import causes, differences, scenes
from soak.replica import InProcess, Replica
from soak.tally import Tally
from topowise import nrt, pods
from topowise.errors import ApiError
from topowise_scheduler.kubelet import Kubelet

OURS, BLIND = "numa-scheduler", "default-scheduler"
_POD = "/api/v1/namespaces/default/pods"
_QUIET_S = 12.0
_DRAWING = 0.5
_LONGEST_S = 3600.0
_EVIDENCE = 3
_ENDS = 32


class Weather(msgspec.Struct, frozen=True):
    """How bad a cluster's day is. Shares are of pods, or of Bindings; `lag` is the most that a watch of the service is
    late, in seconds, and `troubles` how many things go wrong."""

    nodes: int
    pods: int
    blind: float
    lag: float
    lost_answers: float
    troubles: int
    slow: bool

    @classmethod
    def drawn(cls, rng: Random, pods: int) -> Weather:
        return cls(
            nodes=rng.choice((1, 2, 3, 4, 6)),
            pods=rng.randint(pods // 2, pods),
            blind=rng.choice((0.0, 0.0, 0.0, 0.05)),
            lag=rng.choice((0.0, 0.05, 0.15, 0.15, 1.0)),
            lost_answers=rng.choice((0.0, 0.0, 0.05)),
            troubles=rng.choice((0, 0, 2, 5)),
            slow=rng.random() < 0.15,
        )


class ServiceApi(DirectApi):
    """The service's: some answers to Bindings are lost, and nobody knows whether the pods were bound."""

    def __init__(self, server: ApiServer, weather: Weather, rng: Random) -> None:
        super().__init__(
            server, "service", latency=lambda: rng.uniform(0.0005, 0.01), lag=lambda _: rng.uniform(0, weather.lag)
        )
        self._share = weather.lost_answers
        self._random = rng

    async def request(self, method: str, path: str, **how: Any) -> bytes:
        answer = await super().request(method, path, **how)
        if path.endswith("/binding") and self._random.random() < self._share:
            await asyncio.sleep(1.3)
            raise ApiError(0, "Timeout", "no answer in time", request=f"{method} {path}")
        return answer


class OthersApi(DirectApi):
    """All others'. `deletions` has the pods by name that somebody deletes (kube-scheduler its victims), and when."""

    def __init__(self, server: ApiServer, rng: Random) -> None:
        super().__init__(server, "world", latency=lambda: rng.uniform(0.0005, 0.01))
        self.deletions: dict[str, float] = {}

    async def request(self, method: str, path: str, **how: Any) -> bytes:
        is_deletion = method == "DELETE" and path.startswith(_POD)
        if is_deletion:
            self.deletions[path.rpartition("/")[2]] = asyncio.get_running_loop().time()
        answer = await super().request(method, path, **how)
        if is_deletion:
            self.deletions[path.rpartition("/")[2]] = asyncio.get_running_loop().time()
        return answer


class World:
    """`play` fills the tally."""

    def __init__(self, seed: int, *, pods: int = 80) -> None:
        self._random = Random(seed)
        self.seed = seed
        self.weather = Weather.drawn(self._random, pods)
        self.draws = Random(f"{seed} draws").random() < _DRAWING
        """Whether kubelets take any of the devices that will all do, and not what the model takes."""
        self.told: set[str] = set()
        """Pods that were bound where their kubelet was known to refuse them by chance."""
        self.tally = Tally(seeds=1)
        self.defects = Defects()
        self._timers: set[asyncio.Task[None]] = set()
        self._attempts: dict[str, list[Attempt]] = {}
        self._empty: list[EmulatedNode] = []
        self.unreported: set[str] = set()
        """Pods that were decided while their node had no object, by a service that has never seen it."""
        self._deleted: dict[str, float] = {}
        self.names: dict[str, str] = {}
        """namespace/name of all pods, by uid: a report has nothing else of one that is being admitted."""
        self.before_releases: dict[str, deque[tuple[float, Kubelet]]] = {}
        """By node, what it was before its last pods gave something back, and when that was."""

    async def play(self) -> None:
        """From the first node to the end."""
        async with AsyncExitStack() as stack:
            await self._begin(stack)
            await self._feed()
            await self._settle()
            self.tally.decisions = self._extender.calls["filter"]
            self._look_for_left_out()
            self.tally.hours = asyncio.get_running_loop().time() / 3600

    # Beginning and end

    async def _begin(self, stack: AsyncExitStack) -> None:
        rng = self._random
        self.server = ApiServer(window=100_000, new_uid=lambda: str(UUID(int=rng.getrandbits(128))))
        self.server.install_crds(CRD)
        self.api = OthersApi(self.server, rng)
        slow = Pause((0.005, 0.05), (0.2, 1.0), 4) if self.weather.slow else Pause()
        pace = Pace(admission=(0.0, 0.1), start=(0.0, 2.0), stop=(0.02, 1.0), pause=slow)
        self.fleet = Fleet(self.api, pace=pace, refused=self._note_refusal, seed=self.seed)
        for number, place in enumerate(scenes.places(rng, self.weather.nodes)):
            name, devices, chooser = f"n{number}", place.devices, None
            if self.draws:
                # Where a plug-in chooses, nothing is left to chance.
                devices = tuple(msgspec.structs.replace(one, preferred="") for one in devices)
                chooser = any_of_them(f"{self.seed} {name}")
            self.fleet.add(
                name, place.machine, place.config, devices=devices, reporting=_reporting(rng), chooser=chooser
            )
            self.before_releases[name] = deque(maxlen=_ENDS)
            self.fleet.nodes[name].kubelet.before_release = partial(self._keep, self.before_releases[name])
            self._empty.append(place.kubelet)
        await stack.enter_async_context(self.fleet)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        self.replica = Replica(ServiceApi(self.server, self.weather, rng))
        stack.push_async_callback(self.replica.stop)
        self._extender = InProcess(session, self.replica)
        self.scheduler = KubeScheduler(
            self.api,
            OURS,
            self._extender,
            bind_delay=(0.0, 0.1),
            tried=self._note_attempt,
            random=rng,
        )
        schedulers = [self.scheduler]
        if self.weather.blind:
            schedulers.append(KubeScheduler(self.api, BLIND, None, bind_delay=(0.0, 0.1), random=rng))
        self._loops = [asyncio.create_task(one.run(), name=one.name) for one in schedulers]
        stack.push_async_callback(_ended, self._loops)

    async def _feed(self) -> None:
        """Makes all pods; on the way things go wrong."""
        rng, weather = self._random, self.weather
        troubles: list[Callable[[], Awaitable[None]]] = [
            self.replica.restart,
            self._restart_kubelets,
            self._delete_a_report,
            self._break_watches,
            self._lose_history,
        ]
        due = sorted(rng.randrange(weather.pods) for _ in range(weather.troubles))
        for number in range(weather.pods):
            while due and number >= due[0]:
                due.pop(0)
                self._later(rng.choice(troubles)(), rng.uniform(0, 1))
            await self._create(number)
            # In bursts, and with time to breathe.
            await asyncio.sleep(0.0 if rng.random() < 0.7 else rng.uniform(0, 4))
            self._check()

    async def _create(self, number: int) -> None:
        rng = self._random
        blind = rng.random() < self.weather.blind
        name = f"{'blind' if blind else 'pod'}-{number}"
        lifetime = None if rng.random() < 0.15 else rng.uniform(1, 40)
        is_deleted = lifetime is not None and rng.random() < 0.2
        annotations = {} if lifetime is None or is_deleted else {LIFETIME: f"{lifetime:.3f}"}
        spec = {**scenes.pod(rng, name, self._empty), "schedulerName": BLIND if blind else OURS}
        if rng.random() < 0.05:
            spec["priority"] = 100
        metadata = {"name": name, "namespace": "default", "annotations": annotations}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        made = pods.decode(await self.api.request("POST", _POD, body=msgspec.json.encode(document)))
        self.names[made.metadata.uid] = f"default/{name}"
        if is_deleted and lifetime is not None:
            self._later(self._delete(f"{_POD}/{name}"), lifetime)

    async def _settle(self) -> None:
        """Until nothing has moved for a while."""
        loop = asyncio.get_running_loop()
        deadline, since, before = loop.time() + _LONGEST_S, loop.time(), -1
        while loop.time() - since < _QUIET_S:
            await asyncio.sleep(0.5)
            self._check()
            assert loop.time() < deadline, f"seed {self.seed}: still moving after an hour"
            if not self._is_quiet() or self.scheduler.counts["attempts"] != before:
                since, before = loop.time(), self.scheduler.counts["attempts"]

    def _is_quiet(self) -> bool:
        return self.fleet.is_quiet and not self._timers and self.scheduler.is_quiet

    def _check(self) -> None:
        self.fleet.check()
        self.replica.check()
        for loop in self._loops:
            if loop.done():
                loop.result()

    # What goes wrong

    async def _restart_kubelets(self) -> None:
        some = [node for node in self.fleet.nodes.values() if self._random.random() < 0.5]
        await asyncio.gather(*(node.restart(RESTART) for node in some))

    async def _delete_a_report(self) -> None:
        name = self._random.choice(list(self.fleet.nodes))
        with contextlib.suppress(ApiError):
            await self.api.request("DELETE", f"{nrt.PATH}/{name}")
            self._deleted[name] = asyncio.get_running_loop().time()
        await asyncio.sleep(self._random.uniform(0, 2))
        await self.fleet.nodes[name].reporter.check()

    async def _break_watches(self) -> None:
        self.server.streams.end(lambda asked: True, abort=True)

    async def _lose_history(self) -> None:
        self.server.store.expire()
        self.server.streams.end(lambda asked: True, abort=False)

    async def _delete(self, path: str) -> None:
        with contextlib.suppress(ApiError):
            await self.api.request("DELETE", path)

    def _later(self, work: Awaitable[None], seconds: float) -> None:
        async def waited() -> None:
            await asyncio.sleep(seconds)
            await work

        task = asyncio.create_task(waited())
        self._timers.add(task)
        task.add_done_callback(self._timers.discard)

    # What is counted

    def _keep(self, ends: deque[tuple[float, Kubelet]], model: Kubelet) -> None:
        ends.append((asyncio.get_running_loop().time(), model.fork()))

    def _note_attempt(self, attempt: Attempt) -> None:
        self._attempts.setdefault(attempt.uid, []).append(attempt)
        if attempt.error:
            return
        if attempt.chosen is not None:
            self.tally.bound += 1
            moment = asyncio.get_running_loop().time()
            history = self.fleet.nodes[attempt.chosen].lifecycle.history
            history.append((moment, f"{attempt.namespace}/{attempt.name} decided"))
            was_known = self._deleted.get(attempt.chosen, 0.0) > self.replica.began
            if self._is_by_chance(attempt.uid, attempt.chosen):
                self.told.add(attempt.uid)
            if attempt.chosen not in causes.reported(self) and not was_known:
                self.unreported.add(attempt.uid)
            return
        info = next((one for one in self.scheduler.pending if one.uid == attempt.uid), None)
        if info is not None:
            self._look_for_room(info, attempt)

    def _is_by_chance(self, uid: str, name: str) -> bool:
        service = self.replica.service
        state = service.ledger.node_states.of(name)
        booking = None if state is None else state.bookings.get(uid)
        return booking is not None and service.answers.may_be_refused(booking.record, name)

    def _look_for_room(self, info: PodInfo, attempt: Attempt) -> None:
        """One node that would take it is enough."""
        for name, refused in attempt.refused.items():
            if refused.plugin == PLUGIN and self._has_room(info, name):
                why = causes.of_waiting(self, info, name, refused)
                self.tally.kept_waiting[why] += 1
                if not why:
                    self._tell(f"{info.key} was not let onto {name}: {refused.reasons}", name, info.pod)
                return

    def _has_room(self, info: PodInfo, name: str) -> bool:
        node = self.fleet.nodes[name]
        coming = [one.pod for one in self.scheduler.pods_on(name) if not node.kubelet.runs(one.uid)]
        return node.kubelet.would_admit(info.pod, coming).admitted

    def _note_refusal(self, refusal: Refusal) -> None:
        if refusal.pod.spec.schedulerName == BLIND:
            return
        seen = evidence.scene(refusal, self.fleet.nodes[refusal.node])
        why = causes.of_refusal(self, seen)
        self.tally.refused[why] += 1
        if not why:
            told = evidence.describe(seen, self._attempts.get(refusal.pod.metadata.uid, []), "")
            self._tell(told, refusal.node, refusal.pod)

    def _look_for_left_out(self) -> None:
        for info in self.scheduler.pending:
            for name, node in self.fleet.nodes.items():
                if not _knows(node, info) or not self._has_room(info, name):
                    continue
                last = self._attempts.get(info.uid, [])[-1:]
                said = last[0].refused.get(name) if last else None
                why = causes.of_left_out(self, info, name, said)
                self.tally.left_out[why] += 1
                if not why:
                    self._tell(f"{info.key} waits beside {name}: {said}", name, info.pod)
                break

    def _tell(self, text: str, name: str, pod: pods.Pod) -> None:
        if len(self.tally.evidence) >= _EVIDENCE:
            return
        node = self.fleet.nodes[name]
        lines = [
            f"seed {self.seed} at {asyncio.get_running_loop().time():.3f}: {text}",
            f"  it asks for {msgspec.json.encode(pods.needs(pod)).decode()}",
            f"  on {msgspec.json.encode(node.config).decode()}",
            differences.told(node, self.replica, pod),
        ]
        self.tally.evidence.append("\n".join(lines))


def play(seed: int, *, pods: int = 80) -> Tally:
    """What came of one cluster. Raises AssertionError for a defect that a daemon would have logged and gone on."""
    # Back-offs and the length of watches are drawn by modules that take no generator.
    random.seed(seed)
    world, was_disabled = World(seed, pods=pods), logging.root.manager.disable
    logging.disable(logging.WARNING)
    logging.root.addHandler(world.defects)
    try:
        simulated_time.run(world.play())
    finally:
        logging.root.removeHandler(world.defects)
        logging.disable(was_disabled)
    assert not world.defects.found, f"seed {seed}: {world.defects.found[0]}"
    return world.tally


class Defects(logging.Handler):
    """Exceptions that nobody expected, by which one object or one answer is lost and not the daemon."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


def _knows(node: HollowNode, info: PodInfo) -> bool:
    """kube-scheduler's NodeResourcesFit; a kubelet lets pass what its node does not know."""
    known = node.kubelet.allocatable()
    return all(name in known for name, amount in info.requests.items() if amount > 0)


def _reporting(rng: Random) -> Reporting:
    """At once, as usual, or half a minute late."""
    kind = rng.choice(("live", "live", "usual", "usual", "late"))
    if kind == "live":
        return Reporting(wait=(0.0, 0.02), lag=(0.0, 0.02))
    if kind == "usual":
        return Reporting(wait=(0.1, 0.5), lag=(0.0, 0.3))
    return Reporting(wait=(5.0, 30.0), lag=(0.0, 2.0))


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
