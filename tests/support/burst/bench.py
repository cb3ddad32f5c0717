"""The bench: starts the cluster, feeds it pods, waits until nothing moves any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from burst import evidence
from burst.nodes import nodes
from burst.service import Process, Service
from burst.workload import BLIND_SCHEDULER, NUMA_SCHEDULER, Workload
from faults.clock import Clock
from sandbox.hollow import RESTART, Fleet, HollowNode, Pace, Refusal, Reporting
from sandbox.kubescheduler import Attempt, Extender, KubeScheduler
from sandbox.kubescheduler.attempt import said
from sandbox.kubescheduler.pod import PodInfo
from stillness import until_still
from topowise import nrt
from topowise.errors import ApiError, ConfigError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.kube.credentials import Credentials
from topowise_scheduler import refusals
from topowise_scheduler.cluster.node.precision import Precision

CRD: Final = Path(__file__).parents[3] / "charts/topowise/crds/noderesourcetopologies.yaml"
_QUIET_S: Final = 1.5
_EVIDENCE: Final = 25
_AT_ONCE: Final = 10
_STUCK_ITERATIONS: Final = 200

Seconds = tuple[float, float]


class Scenario(msgspec.Struct, frozen=True):
    """A burst of pods. Pods end after a while, and their resources are reused; the share `forever` never ends.

    `backlog` is the maximum of waiting pods. `deleted` is the share of ending pods that are deleted, `urgent` the share
    of all pods that may evict other pods. A second scheduler without NUMA knowledge schedules the `blind_pods`. With
    `slow_bindings` the API server delays some Bindings by these seconds, so that later Bindings overtake them.
    `best_nodes` is the service's `filter.bestNodes`. With `nominates` the leader nominates pods.
    """

    nodes: int = 20
    pods: int = 2000
    blind_pods: int = 0
    replicas: int = 1
    seed: int = 1
    lifetimes: Seconds = (1.0, 6.0)
    forever: float = 0.2
    deleted: float = 0.15
    urgent: float = 0.0
    backlog: int = 60
    pace: Pace = Pace(admission=(0.0, 0.1), start=(0.0, 0.2), stop=(0.02, 0.2))
    reporting: Reporting = Reporting(wait=(0.2, 0.5), lag=(0.0, 0.05))
    bind_delay: Seconds = (0.0, 0.1)
    slow_bindings: float = 0.0
    best_nodes: int = 0
    has_extender: bool = True
    nominates: bool = False


class Bench:
    """A running cluster. `evidence` has a text for each of our pods that a kubelet refused. `clock` is theirs."""

    def __init__(self, scenario: Scenario, directory: Path, *, clock: Clock | None = None) -> None:
        self.scenario = scenario
        self._environment = None if clock is None else clock.environment
        self._directory = directory
        self.stack = AsyncExitStack()
        self._random = Random(scenario.seed)
        self._timers: set[asyncio.Task[Any]] = set()
        self._apiserver = Process(directory / "apiserver.log")
        self._kubeconfig = directory / "kubeconfig"
        self.services: list[Service] = []
        self.refusals: list[Refusal] = []
        self.raced: list[Refusal] = []
        """Refused because another scheduler's pod was bound to the node at the same moment; nobody can know that."""
        self.overtaken: list[Refusal] = []
        """Refused because the kubelet went down when they were on their way to it; nobody can know that either."""
        self.blind_refusals: list[Refusal] = []
        self.evidence: list[str] = []
        self.errors: Counter[str] = Counter()
        """Why attempts have failed."""
        self.attempts: dict[str, list[Attempt]] = {}
        self.doubted = 0
        """Attempts that found no node, and one of them only because it was not known where its newest pods lie."""
        self.seconds = 0.0
        self._backlog = scenario.backlog
        self._last_metrics: list[dict[str, float]] = []

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    # Levers

    async def restart_service(self) -> None:
        """The service is killed in the middle of its work and comes back."""
        await self.keep_metrics()
        await self.services[0].kill()
        await self.services[0].start()

    async def restart_kubelets(self) -> None:
        """Every second node's, at the same moment; what they hold goes on running."""
        every_second = list(self.fleet.nodes.values())[::2]
        await asyncio.gather(*(node.restart(RESTART) for node in every_second))

    async def fail_over(self) -> None:
        """kube-scheduler's calls go to the other replica from now on."""
        assert self.extender is not None
        (self.extender.prefix,) = {service.prefix for service in self.services} - {self.extender.prefix}

    async def kill_the_one_that_is_asked(self) -> None:
        """Its calls go to the other replica, as a Service in front of both would have it; it comes back."""
        assert self.extender is not None
        await self.keep_metrics()
        victim = next(one for one in self.services if one.prefix == self.extender.prefix)
        await victim.kill()
        await self.fail_over()
        await victim.start()

    async def delete_reports(self) -> None:
        """Every second node's; their exporters notice after a while."""
        for name, node in list(self.fleet.nodes.items())[::2]:
            await self.api.request("DELETE", f"{nrt.PATH}/{name}")
            self._later(self._again(node))

    async def delete_nodes(self) -> None:
        """Every third Node is deleted by mistake, and comes back with its kubelet's next start."""
        every_third = list(self.fleet.nodes.items())[::3]
        for name, _ in every_third:
            await self.api.request("DELETE", f"/api/v1/nodes/{name}")
        await asyncio.sleep(1.0)
        await asyncio.gather(*(node.restart(RESTART) for _, node in every_third))

    async def _again(self, node: HollowNode) -> None:
        await asyncio.sleep(self._random.uniform(0, 1))
        await node.reporter.check()

    # The run

    async def feed(self, at: Mapping[float, Callable[[], Awaitable[None]]] | None = None) -> None:
        """Makes all pods as fast as they are taken; `at` a share of them, something happens beside it."""
        scenario = self.scenario
        started = time.monotonic()
        workload, blind = Workload(scenario.seed), Workload(scenario.seed + 1)
        due = sorted((share * scenario.pods, event) for share, event in (at or {}).items())
        every = scenario.pods / scenario.blind_pods if scenario.blind_pods else 0
        blind_made = 0
        for first in range(0, scenario.pods, _AT_ONCE):
            while due and first >= due[0][0]:
                self._later(due.pop(0)[1]())
            await self._until_taken()
            creations = [self._create(workload, number, NUMA_SCHEDULER) for number in range(first, first + _AT_ONCE)]
            while every and first >= blind_made * every:
                creations.append(self._create(blind, blind_made, BLIND_SCHEDULER))
                blind_made += 1
            await asyncio.gather(*creations)
        await self._settle()
        self.seconds = time.monotonic() - started

    async def _until_taken(self) -> None:
        """Waits while the backlog is full, but not for ever: pods that fit nowhere must not block later pods."""
        iterations = 0
        while len(self.scheduler.pending) >= self._backlog:
            await asyncio.sleep(0.01)
            # Counts iterations of the event loop, as until_still does: while the loop stalls, no pod can be bound.
            iterations += 1
            if iterations > _STUCK_ITERATIONS:
                self._backlog += self.scenario.backlog

    async def _create(self, workload: Workload, number: int, scheduler: str) -> None:
        scenario = self.scenario
        total = scenario.pods if scheduler == NUMA_SCHEDULER else scenario.blind_pods
        stays = number >= total * (1 - scenario.forever)
        lifetime = None if stays else self._random.uniform(*scenario.lifetimes)
        is_deleted = lifetime is not None and self._random.random() < scenario.deleted
        pod = workload.pod(number, scheduler=scheduler, lifetime=None if is_deleted else lifetime)
        pod["spec"]["priority"] = 100 if self._random.random() < scenario.urgent else 0
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        await self.api.request("POST", path, body=msgspec.json.encode(pod))
        if is_deleted and lifetime is not None:
            self._later(self._delete(f"{path}/{pod['metadata']['name']}", lifetime))

    async def _delete(self, path: str, after: float) -> None:
        await asyncio.sleep(after)
        with contextlib.suppress(ApiError):
            await self.api.request("DELETE", path)

    async def _settle(self, limit: float = 90.0) -> None:
        """Waits until nothing has moved for a while: every lifetime over, everything reported, everything tried."""

        async def attempts() -> int | None:
            self.check()
            return self.scheduler.counts["attempts"] if self.is_quiet else None

        await until_still(attempts, seconds=_QUIET_S, limit=limit, state=self.state)

    @property
    def is_quiet(self) -> bool:
        schedulers = [self.scheduler, *([self.blind] if self.blind is not None else [])]
        return self.fleet.is_quiet and not self._timers and all(scheduler.is_quiet for scheduler in schedulers)

    def state(self) -> str:
        """Who still moves; for people."""
        moving = [name for name, node in self.fleet.nodes.items() if not node.is_quiet]
        return f"nodes {moving}, queue {self.scheduler.queue.counts()}, timers {len(self._timers)}"

    def check(self) -> None:
        """Raises what has ended that must not end."""
        self.fleet.check()
        self._apiserver.check()
        for task in self._loops:
            if task.done():
                task.result()

    # Figures

    async def keep_metrics(self) -> None:
        """What a service counted so far, before it is gone."""
        for service in self.services:
            with contextlib.suppress(aiohttp.ClientError):
                self._last_metrics.append(await service.metrics(self.session))

    async def figures(self) -> dict[str, str]:
        """For people."""
        await self.keep_metrics()
        counts = self.scheduler.counts

        def metric(name: str) -> str:
            return f"{sum(one.get(name, 0.0) for one in self._last_metrics):.0f}"

        pods = self.scenario.pods + self.scenario.blind_pods
        return {
            "pods": str(pods),
            "seconds": f"{self.seconds:.1f}",
            "pods/s": f"{pods / max(0.001, self.seconds):.0f}",
            "refused": str(len(self.refusals)),
            "raced": str(len(self.raced)),
            "overtaken": str(len(self.overtaken)),
            "blind refused": str(len(self.blind_refusals)),
            "bound": str(counts["bound"]),
            "attempts": str(counts["attempts"]),
            "no node": str(counts["refused"]),
            "doubted": str(self.doubted),
            "errors": str(counts["failed"]),
            "bind errors": str(counts["bind failed"]),
            "victims": str(counts["victims"]),
            "left": str(len(self.scheduler.pending)),
            "requeued": metric("requeued_pods_total"),
            **{known.label: metric(f'predictions_total{{precision="{known.label}"}}') for known in Precision},
            "reports": str(sum(node.reporter.written for node in self.fleet.nodes.values())),
        }

    # Inside

    async def service_kubeconfig(self, kubeconfig: Path) -> Path:
        """By which the services find the API server; benches with something in between have another."""
        return kubeconfig

    async def _start(self) -> None:
        scenario = self.scenario
        self.session = await self.stack.enter_async_context(aiohttp.ClientSession())
        arguments = ("--kubeconfig-out", str(self._kubeconfig), "--crd", str(CRD), "--window", "100000")
        await self._apiserver.start("sandbox.apiserver", *arguments)
        access = await self._credentials()
        self.api = await self.stack.enter_async_context(Api(access, "bench", timeout=30))
        async with asyncio.timeout(20):
            while not await self._serves():
                await asyncio.sleep(0.02)
        await self._start_nodes()
        election = {"enabled": scenario.replicas > 1, "leaseNamespace": "kube-system"}
        for number in range(scenario.replicas if scenario.has_extender else 0):
            settings: dict[str, Any] = {
                "leaderElection": {**election, "identity": f"replica-{number}"},
                "filter": {"bestNodes": scenario.best_nodes},
            }
            if scenario.nominates:
                settings["nominator"] = {"enabled": True, "schedulerNames": [NUMA_SCHEDULER], "when": "always"}
            kubeconfig = await self.service_kubeconfig(self._kubeconfig)
            service = Service(
                f"service-{number}", kubeconfig, self._directory, environment=self._environment, **settings
            )
            self.services.append(service)
            await service.start()
        self.extender: Extender | None = None
        if self.services:
            self.extender = _Noting(self.session, self.services[0].prefix, self._note)
        self.scheduler = KubeScheduler(
            self.api,
            NUMA_SCHEDULER,
            self.extender,
            bind_delay=scenario.bind_delay,
            tried=self._note_attempt,
            random=Random(scenario.seed),
        )
        self.blind: KubeScheduler | None = None
        if scenario.blind_pods:
            self.blind = KubeScheduler(self.api, BLIND_SCHEDULER, None, bind_delay=scenario.bind_delay)
        loops = [self.scheduler, *([self.blind] if self.blind is not None else [])]
        self._loops = [asyncio.create_task(loop.run(), name=loop.name) for loop in loops]
        if scenario.slow_bindings:
            self._loops.append(asyncio.create_task(self._hold_up_bindings(), name="slow bindings"))

    async def _hold_up_bindings(self) -> None:
        """Delays every second or third Binding."""
        # An unused rule expires: hundreds of rules for a single request would never let the request through.
        rule = {
            "action": "delay",
            "delay": self.scenario.slow_bindings,
            "path": "*/binding",
            "count": 1,
            "seconds": self.scenario.slow_bindings,
        }
        while True:
            await self.api.request("POST", "/sandbox/levers", body=msgspec.json.encode(rule))
            await asyncio.sleep(self.scenario.slow_bindings / 2)

    async def _start_nodes(self) -> None:
        self.fleet = Fleet(
            self.api,
            pace=self.scenario.pace,
            reporting=self.scenario.reporting,
            refused=self._note_refusal,
            seed=self.scenario.seed,
        )
        for name, kind in nodes(self.scenario.nodes):
            self.fleet.add(name, kind.machine, kind.config)
        await self.stack.enter_async_context(self.fleet)

    async def _stop(self) -> None:
        tasks = [*getattr(self, "_loops", []), *self._timers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.stack.aclose()
        for service in self.services:
            await service.kill()
        await self._apiserver.kill()

    async def _credentials(self) -> Credentials:
        async with asyncio.timeout(20):
            while True:
                self._apiserver.check()
                try:
                    return await credentials.load(str(self._kubeconfig))
                except ConfigError:
                    # Not there, or half written.
                    await asyncio.sleep(0.02)

    async def _serves(self) -> bool:
        try:
            await self.api.request("GET", nrt.PATH)
        except ApiError:
            return False
        return True

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._timers.add(task)
        task.add_done_callback(self._timers.discard)

    def _note_attempt(self, attempt: Attempt) -> None:
        self.attempts.setdefault(attempt.uid, []).append(attempt)
        if not attempt.feasible and refusals.UNCERTAIN in said(attempt.refused):
            self.doubted += 1
        if attempt.error:
            self.errors[attempt.error] += 1
        if attempt.chosen is not None:
            self._note(attempt.chosen, f"{attempt.namespace}/{attempt.name} decided")

    def _note(self, node: str, event: str) -> None:
        self.fleet.nodes[node].lifecycle.history.append((asyncio.get_running_loop().time(), event))

    def _note_refusal(self, refusal: Refusal) -> None:
        if refusal.pod.spec.schedulerName == BLIND_SCHEDULER:
            self.blind_refusals.append(refusal)
            return
        seen = evidence.scene(refusal, self.fleet.nodes[refusal.node])
        if seen.is_overtaken():
            self.overtaken.append(refusal)
        elif seen.is_race("default/blind"):
            self.raced.append(refusal)
        else:
            self.refusals.append(refusal)
        if len(self.evidence) < _EVIDENCE and self.services:
            self._later(self._gather_evidence(seen))

    async def _gather_evidence(self, seen: evidence.Scene) -> None:
        prefix = None if self.extender is None else self.extender.prefix
        service = next(candidate for candidate in self.services if candidate.prefix == prefix)
        believed = await service.explain(self.session, seen.pod, seen.refusal.node)
        tried = self.attempts.get(seen.refusal.pod.metadata.uid, [])
        self.evidence.append(evidence.describe(seen, tried, believed))


class _Noting(Extender):
    """Notes when a bind is asked for."""

    def __init__(self, session: aiohttp.ClientSession, prefix: str, note: Callable[[str, str], None]) -> None:
        super().__init__(session, prefix)
        self._note = note

    async def bind(self, info: PodInfo, node: str) -> None:
        self._note(node, f"{info.key} bind")
        await super().bind(info, node)
