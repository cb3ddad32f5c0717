"""A random cluster from its first node until nothing changes any more; a seed determines all events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random
from uuid import UUID

import aiohttp
import msgspec

from sandbox import simulated_time
from sandbox.apiserver import ApiServer
from sandbox.hollow import LIFETIME, RESTART, Fleet, Pace, Pause, Reporting
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.plugin_sockets import any_of_them
from sandbox.kubescheduler import KubeScheduler
from soak import scenes
from soak.edge import Alter, Edge, as_it_is
from soak.heard import Heard
from soak.referee import BLIND, Referee
from soak.replica import InProcess, Replica
from soak.tally import Tally
from soak.weather import PODS, OthersApi, ServiceApi, Weather
from topowise import nrt, pods
from topowise.errors import ApiError

OURS = "numa-scheduler"
_QUIET_S = 12.0
_DRAWING = 0.5
_LONGEST_S = 3600.0
# Also where a watch has to be begun again.
_HEARING_S = 3.0

Plant = Callable[["World"], Alter]


class World:
    """`play` fills the tally. `plant` is given the world, and gives what is to be made of answers (edge.py)."""

    def __init__(self, seed: int, *, pods: int = 80, plant: Plant | None = None) -> None:
        self._random = Random(seed)
        self.seed = seed
        self.weather = Weather.drawn(self._random, pods)
        self.draws = Random(f"{seed} draws").random() < _DRAWING
        """Whether kubelets take any of the devices that will all do, and not what the model takes."""
        self.defects = Defects()
        self._alter = as_it_is if plant is None else plant(self)
        self._timers: set[asyncio.Task[None]] = set()
        self._empty: list[EmulatedNode] = []
        self.heard = Heard(_now, self.weather.lag + _HEARING_S)
        self.referee = Referee(self, self.heard)

    async def play(self) -> None:
        """From the first node to the end."""
        async with AsyncExitStack() as stack:
            await self._begin(stack)
            await self._feed()
            await self._settle()
            self.referee.tally.decisions = self._extender.calls["filter"]
            self.referee.finish()
            self.referee.tally.hours = _now() / 3600

    # Beginning and end

    async def _begin(self, stack: AsyncExitStack) -> None:
        rng = self._random
        self.server = ApiServer(window=100_000, new_uid=lambda: str(UUID(int=rng.getrandbits(128))))
        self.server.install_crds(scenes.CRD)
        self.api = OthersApi(self.server, rng)
        self.api.reported = self.referee.note_report
        slow = Pause((0.005, 0.05), (0.2, 1.0), 4) if self.weather.slow else Pause()
        pace = Pace(admission=(0.0, 0.1), start=(0.0, 2.0), stop=(0.02, 1.0), pause=slow)
        self.fleet = Fleet(self.api, pace=pace, refused=self.referee.note_refusal, seed=self.seed)
        for number, place in enumerate(scenes.places(rng, self.weather.nodes)):
            name, devices, chooser = f"n{number}", place.devices, None
            if self.draws:
                # Where a plug-in chooses, nothing is left to chance.
                devices = tuple(msgspec.structs.replace(device, preferred="") for device in devices)
                chooser = any_of_them(f"{self.seed} {name}")
            self.fleet.add(
                name, place.machine, place.config, devices=devices, reporting=_reporting(rng), chooser=chooser
            )
            self.referee.watch(self.fleet.nodes[name])
            self._empty.append(place.kubelet)
        await stack.enter_async_context(self.fleet)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        self.replica = Replica(ServiceApi(self.server, self.weather, rng, self.heard), self.heard)
        stack.push_async_callback(self.replica.stop)
        self._extender = InProcess(session, self.replica, Edge(self.heard, self.referee.note_answer, self._alter))
        self.scheduler = KubeScheduler(
            self.api,
            OURS,
            self._extender,
            bind_delay=(0.0, 0.1),
            tried=self.referee.note_attempt,
            random=rng,
        )
        schedulers = [self.scheduler]
        if self.weather.blind:
            schedulers.append(KubeScheduler(self.api, BLIND, None, bind_delay=(0.0, 0.1), random=rng))
        self._loops = [asyncio.create_task(scheduler.run(), name=scheduler.name) for scheduler in schedulers]
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
        created = pods.decode(await self.api.request("POST", PODS, body=msgspec.json.encode(document)))
        self.referee.names[created.metadata.uid] = f"default/{name}"
        if is_deleted and lifetime is not None:
            self._later(self._delete(f"{PODS}/{name}"), lifetime)

    async def _settle(self) -> None:
        """Waits until nothing has moved for a while."""
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
        chosen = [node for node in self.fleet.nodes.values() if self._random.random() < 0.5]
        await asyncio.gather(*(node.restart(RESTART) for node in chosen))

    async def _delete_a_report(self) -> None:
        name = self._random.choice(list(self.fleet.nodes))
        with contextlib.suppress(ApiError):
            await self.api.request("DELETE", f"{nrt.PATH}/{name}")
            self.referee.deleted_reports[name] = _now()
        await asyncio.sleep(self._random.uniform(0, 2))
        await self.fleet.nodes[name].reporter.check()

    async def _break_watches(self) -> None:
        self.server.streams.end(lambda info: True, abort=True)

    async def _lose_history(self) -> None:
        self.server.store.expire()
        self.server.streams.end(lambda info: True, abort=False)

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


def play(seed: int, *, pods: int = 80, plant: Plant | None = None) -> Tally:
    """Plays a cluster, optionally with a planted defect, and returns its tally. Raises AssertionError for an exception
    that a daemon would only log."""
    # Back-offs and the length of watches are drawn by modules that take no generator.
    random.seed(seed)
    world, was_disabled = World(seed, pods=pods, plant=plant), logging.root.manager.disable
    logging.disable(logging.WARNING)
    logging.root.addHandler(world.defects)
    try:
        simulated_time.run(world.play())
    finally:
        logging.root.removeHandler(world.defects)
        logging.disable(was_disabled)
    assert not world.defects.found, f"seed {seed}: {world.defects.found[0]}"
    return world.referee.tally


class Defects(logging.Handler):
    """Collects unexpected exceptions, which cost a daemon an object or an answer."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


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


def _now() -> float:
    return asyncio.get_running_loop().time()
