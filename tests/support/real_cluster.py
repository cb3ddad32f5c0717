"""A cluster on a real API server: hollow nodes, the service, and the stock kube-scheduler with the chart's settings."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple, Self

import aiohttp
import pytest
import yaml

from burst.nodes import Kind
from burst.service import Service
from burst.workload import Workload
from sandbox import controlplane
from sandbox.apiserver import documents
from sandbox.apiserver.client import CRDS, NRT, connect
from sandbox.controlplane import ControlPlane, StockScheduler
from sandbox.hollow import Fleet, Pace, Refusal, Reporting
from stillness import until_still
from topowise import pods
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.placement import GATE

Json = dict[str, Any]

ASSETS: Final = controlplane.assets(controlplane.BINARY)
MISSING: Final = "no etcd, kube-apiserver and kube-scheduler in $KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin"
PODS: Final = "/api/v1/namespaces/default/pods"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_ROOT: Final = Path(__file__).parents[2]
_DEFINITIONS: Final = documents.load_all(_ROOT / "charts" / "topowise" / "crds")
_AT_ONCE: Final = 10
_WAITING: Final = 40


def chart_configuration(prefix: str, **changed: Any) -> Json:
    """Returns the KubeSchedulerConfiguration that the chart installs, with the extender at `prefix`."""
    rendered = yaml.safe_load_all((_ROOT / "charts/kustomize/default/scheduler.yaml").read_text())
    files = next(
        document["data"]
        for document in rendered
        if document["kind"] == "ConfigMap" and "kube-scheduler.yaml" in document["data"]
    )
    configuration: Json = yaml.safe_load(files["kube-scheduler.yaml"])
    configuration["extenders"][0]["urlPrefix"] = prefix
    return {**configuration, "leaderElection": {"leaderElect": False}, **changed}


SCHEDULER: Final = str(chart_configuration("")["profiles"][0]["schedulerName"])


@contextmanager
def control_plane(**options: Sequence[str]) -> Iterator[ControlPlane]:
    """The API server, with these gates and APIs; skips where there is none."""
    if ASSETS is None:
        pytest.skip(MISSING)
    with ControlPlane(ASSETS, **options) as running:
        yield running


def pod(name: str, cpu: str, **spec: Any) -> Json:
    """Returns a Guaranteed pod with a container of whole CPUs; `spec` has further fields."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    container = {"name": "app", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


GATED: Final[Json] = {"schedulingGates": [{"name": GATE}]}
PLACED: Final[Json] = {"placement": {"enabled": True}}


class Plugins(NamedTuple):
    """A kube-scheduler with plug-ins of other projects, and what its profile enables."""

    binary: Path
    profile: Json


class Cluster:
    """An async context. `pairs` is the number of replicas, each a service with its own kube-scheduler; a lease elects
    the active kube-scheduler. `gated`: the service places gated pods, and kube-scheduler has no extender. `extenders`
    replaces the services in kube-scheduler's configuration, `settings` adds fields to the configuration of the
    services."""

    definitions: Sequence[Json] = _DEFINITIONS
    """The CRDs to install."""
    cleared: tuple[str, ...] = (
        PODS,
        "/api/v1/nodes",
        "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        LEASES.format("kube-system"),
    )
    """Collections that are emptied in the end: the next cluster on this API server finds none of this one."""
    extender: ClassVar[Json] = {}
    """Fields of kube-scheduler's entry for the service that are not as in the default chart."""
    profile: ClassVar[Json] = {}
    """The same of kube-scheduler's profile."""

    def __init__(
        self,
        plane: ControlPlane,
        directory: Path,
        nodes: Iterable[tuple[str, Kind]],
        *,
        pairs: int = 1,
        extenders: list[Json] | None = None,
        reporting: Reporting | None = None,
        client: Json | None = None,
        settings: Json | None = None,
        gated: bool = False,
    ) -> None:
        self.plane = plane
        self.gated = gated
        self.changed: Json = {}
        """Fields of kube-scheduler's configuration that are not as in the default chart, from the next start on."""
        self._extenders = [] if gated and extenders is None else extenders
        self._directory = directory
        self._kinds = list(nodes)
        self._pairs = pairs
        self._reporting = reporting or Reporting(wait=(0.2, 0.5), lag=(0.0, 0.05))
        self._client = client or {"qps": 500, "burst": 1000}
        self._more = {**(PLACED if gated else {}), **(settings or {})}
        self._stack = AsyncExitStack()
        self.refusals: list[Refusal] = []
        self.random = Random(7)
        self.services: list[Service] = []
        self.schedulers: dict[int, AbstractContextManager[Any]] = {}
        self._plugins: Plugins | None = None

    @property
    def service(self) -> Service:
        """The first service."""
        return self.services[0]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.session = await stack.enter_async_context(aiohttp.ClientSession())
            self._kubeconfig = self.plane.kubeconfig(self._directory / "kubeconfig")
            self.api = await stack.enter_async_context(
                Api(await credentials.load(str(self._kubeconfig)), "e2e", timeout=30)
            )
            stack.push_async_callback(self._clear)
            await self._define()
            self.fleet = Fleet(
                self.api,
                pace=Pace(admission=(0.0, 0.05), start=(0.0, 0.1), stop=(0.02, 0.1)),
                reporting=self._reporting,
                refused=self.refusals.append,
                seed=7,
            )
            for name, kind in self._kinds:
                self.fleet.add(name, kind.machine, kind.config)
            await stack.enter_async_context(self.fleet)
            stack.push_async_callback(self._stop_schedulers)
            stack.push_async_callback(self._kill_services)
            for number in range(self._pairs):
                self.services.append(self._service(number))
                await self.services[number].start()
                await self.start_scheduler(number)
            self._stack = stack.pop_all()
        return self

    async def start_anew(
        self, extenders: list[Json] | None, settings: Json | None, plugins: Plugins | None = None
    ) -> None:
        """The same nodes without a pod, and another first service and kube-scheduler."""
        await self.stop_scheduler()
        await self.service.kill()
        await self.api.request("DELETE", PODS, query={"gracePeriodSeconds": "0"}, timeout=60)
        await self.settle(300.0)
        self._extenders, self._more, self._plugins = extenders, settings or {}, plugins
        self.services[0] = self._service(0)
        await self.service.start()
        await self.start_scheduler()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def start_scheduler(self, number: int = 0) -> None:
        """kube-scheduler number `number`, beside the service of that number."""
        changed: Json = {"clientConnection": self._client, **self.changed}
        if self._extenders is not None:
            changed["extenders"] = self._extenders
        if self._pairs > 1:
            changed["leaderElection"] = {
                **chart_configuration("")["leaderElection"],
                "leaderElect": True,
                "resourceName": "topowise-scheduler",
                "resourceNamespace": "kube-system",
                "leaseDuration": "4s",
                "renewDeadline": "3s",
                "retryPeriod": "1s",
            }
        configuration, binary = chart_configuration(self.services[number].prefix, **changed), None
        for extender in configuration["extenders"][:1]:
            extender |= self.extender
        configuration["profiles"][0] |= self.profile
        if self._plugins is not None:
            configuration["profiles"] = [{**configuration["profiles"][0], **self._plugins.profile}]
            binary = self._plugins.binary
        scheduler = StockScheduler(
            self.plane,
            configuration,
            self._directory / f"kube-scheduler-{number}-{time.monotonic_ns()}",
            user=controlplane.ADMIN if self._pairs > 1 or binary is not None else controlplane.USER,
            binary=binary,
        )
        await asyncio.to_thread(scheduler.__enter__)
        self.schedulers[number] = scheduler

    async def stop_scheduler(self, number: int = 0) -> None:
        """Kills it."""
        await asyncio.to_thread(self.schedulers.pop(number).__exit__, None, None, None)

    @property
    def scheduler_pid(self) -> int:
        """The id of the first kube-scheduler."""
        scheduler = self.schedulers[0]
        assert isinstance(scheduler, StockScheduler)
        return scheduler.pid

    async def leader(self) -> int:
        """Returns the number of the pair that decides: its service is asked most."""
        metrics = [await service.metrics(self.session) for service in self.services]
        counts = [samples.get('extender_request_duration_seconds_count{verb="filter"}', 0.0) for samples in metrics]
        return counts.index(max(counts))

    async def create(self, document: Json, path: str = PODS) -> None:
        """Creates an object, by default a pod."""
        if self.gated and path == PODS:
            document = {**document, "spec": {**document["spec"], **GATED}}
        await self.api.request("POST", path, body=json.dumps(document).encode())

    async def pods(self) -> list[Any]:
        """All there are."""
        return list(json.loads(await self.api.request("GET", PODS, query={"resourceVersion": "0"}))["items"])

    async def phases(self) -> Counter[str]:
        """How many pods run, have ended, wait, and were refused."""
        return Counter(
            "waiting" if not pod["spec"].get("nodeName") else pod["status"].get("reason") or pod["status"]["phase"]
            for pod in await self.pods()
        )

    async def settle(self, limit: float = 120.0, *, still: float = 3.0) -> Counter[str]:
        """Waits until nothing changes for some seconds: no event will wake a pod that still waits then."""
        last = Counter[str]()

        async def phases() -> Counter[str] | None:
            nonlocal last
            self.check()
            last = await self.phases()
            return last if self.fleet.is_quiet else None

        return await until_still(phases, seconds=still, limit=limit, every=0.2, state=lambda: last)

    def check(self) -> None:
        """Fails if a part has ended."""
        self.fleet.check()
        for service in self.services:
            service.check()

    async def feed(self, count: int, *, halfway: Any = None, still: float = 3.0) -> float:
        """Makes pods as fast as they are taken; the last fifth stays. `halfway` is awaited in the middle. Seconds until
        all was quiet."""
        workload = Workload(11)
        started = time.monotonic()
        for first in range(0, count, _AT_ONCE):
            if halfway is not None and first == count // 2 // _AT_ONCE * _AT_ONCE:
                await halfway()
            stuck = time.monotonic() + 2.0
            while (await self.phases())["waiting"] >= _WAITING and time.monotonic() < stuck:
                await asyncio.sleep(0.05)
            lifetimes = [
                None if number >= 0.8 * count else self.random.uniform(1.0, 4.0)
                for number in range(first, first + _AT_ONCE)
            ]
            await asyncio.gather(
                *(
                    self.create(workload.pod(first + at, scheduler=SCHEDULER, lifetime=lifetime))
                    for at, lifetime in enumerate(lifetimes)
                )
            )
        await self.settle(still=still)
        return time.monotonic() - started

    def takers(self, document: Any) -> list[str]:
        """Nodes whose kubelet, in its true state, would admit a pod and has all it names."""
        pod = pods.decode(json.dumps(document).encode())
        named = {name for name, amount in pods.needs(pod).requests.items() if amount > 0}
        return [
            name
            for name, node in self.fleet.nodes.items()
            if named <= node.kubelet.allocatable().keys() and node.kubelet.would_admit(pod).admitted
        ]

    async def waiting(self) -> list[Any]:
        """Pods without a node."""
        return [pod for pod in await self.pods() if not pod["spec"].get("nodeName")]

    async def assert_all_well(self) -> None:
        """No kubelet has refused a pod, and no pod waits beside room."""
        assert not self.refusals
        left_out = {pod["metadata"]["name"]: self.takers(pod) for pod in await self.waiting()}
        assert not {name: takers for name, takers in left_out.items() if takers}

    def _service(self, number: int) -> Service:
        return Service(f"service-{number}", self._kubeconfig, self._directory, **self._settings(number))

    def _settings(self, number: int) -> Json:
        """What the configuration of a service says beside the usual."""
        if self._pairs == 1:
            return self._more
        return {**self._more, "leaderElection": {"enabled": True}}

    async def _define(self) -> None:
        async with connect(self.plane.url, self.plane.token) as client:
            for crd in self.definitions:
                assert (await client.call("POST", CRDS, crd)).status in (201, 409)
            while (await client.call("GET", NRT, limit=1)).status != 200:
                await asyncio.sleep(0.05)

    async def _stop_schedulers(self) -> None:
        for number in list(self.schedulers):
            await self.stop_scheduler(number)

    async def _kill_services(self) -> None:
        for service in self.services:
            await service.kill()

    async def _clear(self) -> None:
        for path in self.cleared:
            await self.api.request("DELETE", path, query={"gracePeriodSeconds": "0"}, timeout=60)
