"""The exporter as a daemon: look, publish what is new, wait; nothing that fails ends it.

A kubelet that cannot be asked means that nothing is published: a consumer is better off with the last true object than
with a guess. Every failure is logged when it begins or changes, counted always, and logged once more when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from topowise import __version__, nrt
from topowise.errors import ApiError, SourceError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.runtime import config, health, tasks
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, kv
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.metrics import Metrics
from topowise_exporter.observe import observe
from topowise_exporter.publish import topology, writer

log = logging.getLogger(__name__)


class Complaints:
    """Says a problem once when it appears or changes, and once when it is gone."""

    def __init__(self) -> None:
        self._current: dict[str, str] = {}

    def raise_(self, about: str, problem: str) -> None:
        """`about` is what has the problem, fit to stand alone in a log line."""
        if self._current.get(about) != problem:
            self._current[about] = problem
            log.warning(about, extra=kv(why=problem))

    def settle(self, about: str) -> None:
        """The problem is over, if there was one."""
        if self._current.pop(about, None) is not None:
            log.info("Recovered", extra=kv(from_=about))

    def __contains__(self, about: str) -> bool:
        return about in self._current


_NO_KUBELET = "Cannot read the node, publishing nothing until it can be read"
_NO_WRITE = "Cannot publish, trying again"
_NO_OWNER = "Cannot read the own Node, publishing without owner reference"
_ODD_MACHINE = "Parts of /sys are missing or damaged"
_ODD_NUMBERS = "The kubelet's numbers do not add up"


class Exporter:
    """The loop. `run` is its task; the rest is what one round is made of."""

    def __init__(
        self,
        settings: ExporterConfiguration,
        podresources: PodResources,
        api: Api,
        metrics: Metrics,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self._settings = settings
        self._podresources = podresources
        self._api = api
        self._metrics = metrics
        self._writer = writer.Writer(api)
        self._backoff = backoff or Backoff()
        self._node_name = settings.resolved_node_name()
        self._owner: nrt.OwnerReference | None = None
        self._complaints = Complaints()
        self._published = False
        # One round is two calls to the kubelet and one to the API server, each bounded, and the wait between rounds.
        self.heartbeat = health.Heartbeat(settings.interval + 3 * 10 + 60)

    def problem(self) -> str | None:
        """For readiness: None once the object is published and as long as it can be kept true."""
        if not self._published:
            return "nothing published yet"
        for about in (_NO_KUBELET, _NO_WRITE):
            if about in self._complaints:
                return about
        return None

    async def run(self) -> None:
        """Rounds until cancelled."""
        while True:
            delay = await self.round()
            self.heartbeat.beat()
            await asyncio.sleep(delay)

    async def round(self) -> float:
        """One look and, if it shows something new, one write. Returns the seconds to wait before the next."""
        try:
            with self._metrics.scan_seconds.time():
                seen = await observe(self._settings, self._podresources)
        except SourceError as exc:
            self._metrics.source_errors.labels(_source(exc, self._settings)).inc()
            self._complaints.raise_(_NO_KUBELET, str(exc))
            return self._backoff.next_delay()
        self._complaints.settle(_NO_KUBELET)
        try:
            await self._publish(seen)
        except ApiError as exc:
            self._metrics.failed.inc()
            self._complaints.raise_(_NO_WRITE, str(exc))
            return self._backoff.next_delay(at_least=exc.retry_after)
        self._complaints.settle(_NO_WRITE)
        self._backoff.reset()
        return self._settings.interval * random.uniform(0.9, 1.1)

    async def _publish(self, seen: topology.Observation) -> None:
        self._note(_ODD_MACHINE, seen.machine.problems)
        owner = await self._own_node()
        made, problems = topology.build(self._node_name, seen, owner)
        self._note(_ODD_NUMBERS, problems)
        started = time.perf_counter()
        if not await self._writer.publish(made):
            self._metrics.unchanged.inc()
        else:
            took = time.perf_counter() - started
            self._metrics.publish_seconds.observe(took)
            self._metrics.written.inc()
            log.log(
                V2 if self._published else logging.INFO,
                "Published",
                extra=kv(
                    node=self._node_name, zones=len(made.zones or ()), pods=len(seen.pods), took_ms=round(took * 1e3)
                ),
            )
        self._published = True
        self._metrics.last_publish.set_to_current_time()

    async def _own_node(self) -> nrt.OwnerReference | None:
        if self._owner is None:
            try:
                self._owner = await writer.owner_reference(self._api, self._node_name)
                self._complaints.settle(_NO_OWNER)
            except ApiError as exc:
                if exc.status not in (403, 404):
                    raise
                self._complaints.raise_(_NO_OWNER, str(exc))
        return self._owner

    def _note(self, about: str, problems: tuple[str, ...]) -> None:
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self._complaints.raise_(about, problems[0] + more)
        else:
            self._complaints.settle(about)


def _source(exc: SourceError, settings: ExporterConfiguration) -> str:
    return "podresources" if exc.source == settings.podresources_socket.removeprefix("unix://") else "kubelet-config"


async def run(settings: ExporterConfiguration) -> int:
    """The daemon until it is told to stop; its exit status. Raises ConfigError or SourceError if it cannot start."""
    log.info("Starting topowise-exporter", extra=kv(version=__version__, node=settings.resolved_node_name()))
    log.info("Effective configuration", extra=kv(configuration=config.effective(settings)))
    metrics = Metrics()
    client = settings.client
    access = await credentials.load(client.kubeconfig, client.context)
    async with (
        PodResources(settings.podresources_socket) as podresources,
        Api(access, "topowise-exporter", timeout=client.timeout) as api,
    ):
        exporter = Exporter(settings, podresources, api, metrics)
        probes = health.Health()
        probes.live["rounds"] = exporter.heartbeat.silence
        probes.ready["published"] = exporter.problem
        return await tasks.run_until_stopped(
            {"exporter": exporter.run(), "health": health.serve(settings.serving, probes, metrics.registry)}
        )
