"""The exporter as a daemon: wait for an event or the interval, sync, publish what is new; nothing that fails ends it.

A kubelet that cannot be asked means that nothing is published: a consumer is better off with the last true object than
with a guess. Every failure is logged when it begins or changes, counted always, and logged once more when it is over.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from topowise import __version__
from topowise.attributes import doubts
from topowise.errors import ApiError, SourceError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.runtime import config, health, tasks
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import kv
from topowise_exporter import triggers
from topowise_exporter.annotator import Annotator
from topowise_exporter.conditions import Conditions
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.dra.watch import ResourceSlices
from topowise_exporter.kubelet import pods_api, state_files
from topowise_exporter.kubelet.podresources import PodResources, socket_path
from topowise_exporter.kubelet.pods_api import PodsWatch
from topowise_exporter.kubelet.settings import Source
from topowise_exporter.metrics import Metrics
from topowise_exporter.observe import Observer
from topowise_exporter.publish import topology
from topowise_exporter.publish.own import OwnObject
from topowise_exporter.publish.topology import Observation
from topowise_exporter.publisher import Publisher
from topowise_exporter.triggers import FileWatch, RateLimit, Trigger, Uevents

log = logging.getLogger(__name__)

_NO_KUBELET = "Cannot read the node, publishing nothing until it can be read"
_NO_WRITE = "Cannot publish, trying again"
_WILL_NOT_START = "The kubelet would not start again, as a state file does not match machine and configuration"
# Conditions of single sources begin so; they come and go together.
_SOURCE = "Source: "

# A burst of the kubelet's writes for one admission is over within this; it is most of our own delay.
_QUIET_S = 0.001
# Of the hundred podresources calls a second that all clients of a kubelet share, at most twenty are ours.
_SYNCS_PER_SECOND = 10.0
_SYNCS_AT_ONCE = 5
# A wait that was asked for is no silence.
_BEAT_S = 10.0
# A kubelet that starts registers its node, which is another one if somebody had deleted it: then ours has gone with it.
# Garbage collection takes seconds, and the kubelets of a cluster may start together.
_CHECK_AFTER_RESTART_S = (10.0, 40.0)
# While the kubelet is not believed its answers are compared again so often, whatever the interval.
_DOUBTFUL_S = 0.5
# The own object is compared with what was written at most so often: when it was deleted, and when it was changed.
_DELETED_S, _CHANGED_S = 1.0, 10.0
# So that a restart does not take the devices of claims out of the object for a moment.
_SLICES_AT_MOST_S = 2.0


class Pause(NamedTuple):
    """What follows a sync: seconds to wait, and whether an event ends the wait (not one that an API server asks
    for)."""

    seconds: float
    ends_with_event: bool


class Exporter:
    """The loop. `run` is its task; `sync` is one turn of it."""

    def __init__(
        self,
        settings: ExporterConfiguration,
        observer: Observer,
        publisher: Publisher,
        source: Source,
        metrics: Metrics,
        conditions: Conditions,
        trigger: Trigger,
        *,
        annotator: Annotator | None = None,
        backoff: Backoff | None = None,
        own_version: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`own_version` is the resourceVersion of the object on the server, as OwnObject knows it."""
        self._settings = settings
        self._observer = observer
        self._publisher = publisher
        self._source = source
        self._metrics = metrics
        self._conditions = conditions
        self._trigger = trigger
        self._annotator = annotator
        self._own_version = own_version
        self._has_recalled = False
        self._backoff = backoff or Backoff()
        # Asking the kubelet costs nobody but this node anything.
        self._source_backoff = Backoff(0.2, 5.0)
        self._limit = RateLimit(_SYNCS_PER_SECOND, _SYNCS_AT_ONCE, time.monotonic)
        self._synced_at = time.monotonic()
        self._stale_after = 3 * settings.interval + 30
        self._checked_at, self._check_spread = time.monotonic(), random.uniform(0.8, 1.2)
        self._check_by = float("inf")
        # The longest sync: two calls to the kubelet and two to its configz, the owner, the drift of two objects and
        # two writes; the rest is for a machine that is busy.
        longest = 2 * 10 + 2 * settings.kubelet.configz.timeout + 5 * settings.client.timeout
        self.heartbeat = health.Heartbeat(settings.interval + longest + 60)

    def problem(self) -> str | None:
        """For readiness: None once the object is published and as long as it can be kept true."""
        if not self._publisher.has_published:
            return "nothing published yet"
        age = time.monotonic() - self._synced_at
        if age > self._stale_after:
            return f"the node was last seen {age:.0f}s ago, at most {self._stale_after:.0f}s expected"
        return next((about for about in (_NO_KUBELET, _NO_WRITE) if about in self._conditions), None)

    async def run(self) -> None:
        """Syncs until cancelled."""
        while True:
            pause = await self.sync()
            self.heartbeat.beat()
            if pause.ends_with_event:
                await self._wait(pause.seconds)
            else:
                await self._sit_out(pause.seconds)

    async def _sit_out(self, seconds: float) -> None:
        """Sleeps, and shows that it is no more than that."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _BEAT_S))
            self.heartbeat.beat()

    async def sync(self) -> Pause:
        """One reading and, if it shows something new, one write; what to do until the next."""
        try:
            await self._recall()
            with self._metrics.sync_seconds.time():
                seen = await self._observer.observe()
        except SourceError as exc:
            self._metrics.source_errors.labels(self._kind_of(exc.source)).inc()
            self._conditions.set(_NO_KUBELET, str(exc))
            # A kubelet that comes back makes its socket anew, which is an event.
            return Pause(self._source_backoff.next_delay(), ends_with_event=True)
        except ApiError as exc:
            return self._failed(exc)
        self._source_backoff.reset()
        self._conditions.clear(_NO_KUBELET)
        self._conditions.replace(_SOURCE, self._odd_sources())
        self._synced_at = time.monotonic()
        self._metrics.last_sync.set_to_current_time()
        self._metrics.show_source(self._source.name)
        self._metrics.show_admissions(self._observer.withheld, seen.allocations.admitting)
        self._metrics.show_refused_files(seen.refused_state_files)
        refused = tuple(f"{name}: {why}" for name, why in seen.refused_state_files.items())
        self._conditions.note(_WILL_NOT_START, refused)
        if self._annotator is not None and not self._observer.doubts:
            self._annotator.saw(seen)
        try:
            await self._check_drift()
            await self._publish(seen)
            self._observer.kubelet_version = self._publisher.kubelet_version
        except ApiError as exc:
            return self._failed(exc)
        self._conditions.clear(_NO_WRITE)
        self._backoff.reset()
        return Pause(self._until_next(), ends_with_event=True)

    async def _recall(self) -> None:
        """Before the first sync: what the node was, in case the kubelet does not know yet."""
        if self._has_recalled:
            return
        before = await self._publisher.recall()
        if before is not None:
            self._observer.remember(*topology.remembered(before))
        self._has_recalled = True

    async def _publish(self, seen: Observation) -> None:
        # At once: a pod that comes now would be admitted before its devices are there again.
        reasons = self._observer.doubts
        if doubts.of_devices_only(reasons):
            await self._publisher.publish(seen, reasons)
        else:
            await self._publisher.keep(reasons)

    def _failed(self, exc: ApiError) -> Pause:
        self._conditions.set(_NO_WRITE, str(exc))
        return Pause(self._backoff.next_delay(at_least=exc.retry_after), ends_with_event=False)

    def _until_next(self) -> float:
        """Seconds to the next sync if nothing happens."""
        interval = self._settings.interval * random.uniform(0.95, 1.05)
        due = float("inf") if self._observer.due is None else self._observer.due
        return min(interval, due, self._own_is_due_in(), _DOUBTFUL_S if self._observer.doubts else interval)

    def _own_is_due_in(self) -> float:
        """Seconds until the own object is to be compared because of an event; there may be none."""
        version = self._own_version()
        if not self._publisher.differs_from(version):
            return float("inf")
        return max(0.0, self._checked_at + (_CHANGED_S if version else _DELETED_S) - time.monotonic())

    def _kind_of(self, source: str) -> str:
        if source == socket_path(self._settings.podresources_socket):
            return "podresources"
        return "machine" if source.startswith(self._settings.sysfs_root.rstrip("/") + "/") else "kubelet-config"

    def _odd_sources(self) -> Mapping[str, str]:
        problems = dict(self._observer.problems)
        if self._source.problems:
            about = f"A source of the kubelet's configuration cannot be read, using {self._source.name or 'none'}"
            problems[about] = "; ".join(self._source.problems)
        return problems

    async def _wait(self, seconds: float) -> None:
        reasons = await self._trigger.wait(seconds, quiet=_QUIET_S)
        for reason in reasons or ("interval",):
            self._metrics.events.labels(reason.partition(":")[0]).inc()
        if any(reason.startswith(triggers.MACHINE) for reason in reasons):
            self._observer.forget_machine()
        if Path(self._settings.podresources_socket).name in reasons:
            self._check_by = min(self._check_by, time.monotonic() + random.uniform(*_CHECK_AFTER_RESTART_S))
            self._source.expire()
        await asyncio.sleep(self._limit.delay())

    async def _check_drift(self) -> None:
        now = time.monotonic()
        at = min(self._check_by, self._checked_at + self._publisher.check_interval * self._check_spread)
        if now < at and self._own_is_due_in() > 0:
            return
        await self._publisher.check_drift()
        self._check_by = float("inf")
        self._checked_at, self._check_spread = now, random.uniform(0.8, 1.2)


def watched_files(settings: ExporterConfiguration) -> dict[Path, frozenset[str]]:
    """Directory -> names in it that are written when something changed, none if each of them tells."""
    wanted: dict[Path, set[str]] = {}
    paths = [Path(socket_path(settings.podresources_socket))]
    if settings.kubelet_root:
        root = Path(settings.kubelet_root)
        names = (
            state_files.CPU_STATE,
            state_files.MEMORY_STATE,
            state_files.DEVICE_STATE,
            state_files.ALLOCATED_STATE,
        )
        paths += [root / name for name in names]
        # A pod's directory comes when it has been admitted, and goes when it has ended: any name.
        wanted[root / "pods"] = set()
    if settings.kubelet.config_file:
        paths.append(Path(settings.kubelet.config_file))
    if settings.notify_file:
        paths.append(Path(settings.notify_file))
    for path in paths:
        wanted.setdefault(path.parent, set()).add(path.name)
    return {directory: frozenset(names) for directory, names in wanted.items()}


async def run(settings: ExporterConfiguration) -> int:
    """The daemon until it is told to stop; its exit status. Raises ConfigError or SourceError if it cannot start."""
    log.info("Starting topowise-exporter", extra=kv(version=__version__, node=settings.resolved_node_name()))
    log.info("Effective configuration", extra=kv(configuration=config.effective(settings)))
    client = settings.client
    access = await credentials.load(client.kubeconfig, client.context)
    metrics, conditions, trigger = Metrics(), Conditions(), Trigger()
    triggers.on_sighup(trigger)
    async with (
        PodResources(settings.podresources_socket) as podresources,
        Api(access, "topowise-exporter", timeout=client.timeout) as api,
    ):
        source = Source(settings.kubelet, socket=socket_path(settings.podresources_socket))
        slices = ResourceSlices(api, settings.resolved_node_name(), lambda: trigger.notify("resourceslices"))
        observer = Observer(settings, podresources, source, devices=lambda: slices.devices)
        publisher = Publisher(settings, api, metrics, conditions)
        annotator = _annotator(settings, api, metrics, conditions)
        own = OwnObject(api, settings.resolved_node_name(), lambda: trigger.notify("own-object"))
        exporter = Exporter(
            settings,
            observer,
            publisher,
            source,
            metrics,
            conditions,
            trigger,
            annotator=annotator,
            own_version=lambda: own.version,
        )
        # What the imports made never dies; without it a full collection does not cost 20 ms in the middle of a sync.
        gc.collect()
        gc.freeze()
        probes = health.Health()
        probes.live["syncs"] = exporter.heartbeat.silence
        probes.ready["published"] = exporter.problem
        work = {
            "file watch": FileWatch(trigger, watched_files(settings)).run(),
            "uevents": Uevents(trigger).run(),
            "own object": own.run(),
            "event loop lag": metrics.lag.run(),
            "health": health.serve(settings.serving, probes, metrics.registry),
        }
        if settings.resource_slices:
            work["resource slices"] = slices.run()
        if annotator is not None:
            work["pod placements"] = annotator.run()
        if settings.pods_api and settings.kubelet_root:
            socket = Path(settings.kubelet_root) / pods_api.SOCKET
            pods_watch = PodsWatch(socket, trigger)
            work["pods api"] = pods_watch.run()
            work["pods api socket"] = FileWatch(pods_watch.appeared, {socket.parent: frozenset({socket.name})}).run()
        work["exporter"] = _run(exporter, slices if settings.resource_slices else None)
        return await tasks.run_until_stopped(work)


def _annotator(settings: ExporterConfiguration, api: Api, metrics: Metrics, conditions: Conditions) -> Annotator | None:
    if not settings.pod_placements:
        return None
    name = settings.resolved_node_name()
    return Annotator(api, name, metrics, conditions, settings.drift_interval, settings.exclude)


async def _run(exporter: Exporter, slices: ResourceSlices | None) -> None:
    if slices is not None:
        await slices.answered(_SLICES_AT_MOST_S)
    await exporter.run()
