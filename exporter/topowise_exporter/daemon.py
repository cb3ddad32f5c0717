"""The exporter as a daemon: wait for an event or the interval, sync, publish what is new; no failure ends it.

While the kubelet does not answer, nothing is published: the last true object is better for its readers than a guess.
Every failure is counted, is logged when it begins or changes, and is logged once more when it is over.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from topowise import __version__
from topowise.attributes import confirmation
from topowise.errors import ApiError, SourceError
from topowise.kube import credentials
from topowise.kube.api import TIMEOUT_S as API_S
from topowise.kube.api import Api
from topowise.runtime import clock, config, health, tasks
from topowise.runtime.backoff import Backoff, TokenBucket
from topowise.runtime.log import kv
from topowise_exporter import triggers
from topowise_exporter.annotator import Annotator
from topowise_exporter.conditions import Condition, Conditions
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.display import Display
from topowise_exporter.dra.watch import ResourceSlices
from topowise_exporter.kubelet import pods_api, state_files
from topowise_exporter.kubelet.podresources import TIMEOUT_S as PODRESOURCES_S
from topowise_exporter.kubelet.podresources import PodResources, socket_path
from topowise_exporter.kubelet.pods_api import PodsWatch
from topowise_exporter.kubelet.settings import Source
from topowise_exporter.kubelet.settings.configz import TIMEOUT_S as CONFIGZ_S
from topowise_exporter.metrics import Metrics
from topowise_exporter.observe import Observer, Reading
from topowise_exporter.own_node import OwnObject
from topowise_exporter.publish import topology
from topowise_exporter.publish.other_writers import PAUSE_S
from topowise_exporter.publisher import Outcome, Publisher, Standing
from topowise_exporter.triggers import FileWatch, Trigger, Uevents

log = logging.getLogger(__name__)

# The longest wait for the end of an admission before a sync; the kubelet's last write ends it.
_ADMISSION_S = 0.3
# Writes of an admission, which leave unchanged what is allocatable.
_ADMISSION_EVENTS = frozenset(
    (state_files.CPU_STATE, state_files.MEMORY_STATE, state_files.ALLOCATED_STATE, "pods", pods_api.REASON)
)
# Time between two syncs without an event. A sync is two local calls, and writes only changes.
_INTERVAL_S = 1.0
# Time between two comparisons of the object on the API server with the desired object, and between two lists of the
# node's pods for their annotations: a request per node and five minutes, whatever the number of nodes.
_DRIFT_INTERVAL_S = 300.0
# The longest sync: two calls to the kubelet and two to its configz, the owner, the drift of two objects and two writes.
# The rest is for a busy machine.
_LONGEST_SYNC_S = 2 * PODRESOURCES_S + 2 * CONFIGZ_S + 5 * API_S + 60
# Readiness: the longest time since the node was last seen.
_UNSEEN_S = 3 * _INTERVAL_S + 30
# All clients of a kubelet share a hundred podresources calls a second; the exporter takes at most twenty of them.
_SYNCS_PER_SECOND = 10.0
_SYNCS_AT_ONCE = 5
# The heartbeat also beats during a long wait.
_BEAT_S = 10.0
# A kubelet that starts registers its Node. The object of a deleted Node is deleted, too: garbage collection takes
# seconds, and the kubelets of a cluster may start together.
_CHECK_AFTER_RESTART_S = (10.0, 40.0)
# While the kubelet is doubted, its answers are compared again this often, whatever the interval.
_DOUBTFUL_S = 0.5
# At most this often the object is compared because of an event: after a deletion, and after a change.
_DELETED_S, _CHANGED_S = 1.0, 10.0
# The wait for the first ResourceSlices, so that a restart does not remove claimed devices from the object.
_SLICES_AT_MOST_S = 2.0


class Pause(NamedTuple):
    """The wait after a sync. `ends_with_event` is False for a wait that an API server asks for."""

    seconds: float
    ends_with_event: bool


class DriftSchedule:
    """Decides when the objects on the server are compared with what was written: a minute after the start at most, to
    find other writers, and every minute while other writers write."""

    def __init__(self) -> None:
        self._has_compared = self._has_other_writers = False
        self._compared_at, self._spread = clock.monotonic(), random.uniform(0.8, 1.2)
        self._latest = float("inf")

    def hasten(self) -> None:
        """The kubelet has restarted, perhaps with a new Node."""
        self._latest = min(self._latest, clock.monotonic() + random.uniform(*_CHECK_AFTER_RESTART_S))

    def is_due(self) -> bool:
        """Whether time alone makes a comparison due."""
        is_calm = self._has_compared and not self._has_other_writers
        interval = _DRIFT_INTERVAL_S if is_calm else PAUSE_S
        return clock.monotonic() >= min(self._latest, self._compared_at + interval * self._spread)

    def seconds_after_event(self, *, is_deleted: bool) -> float:
        """Seconds until an object that was changed or deleted is compared."""
        return max(0.0, self._compared_at + (_DELETED_S if is_deleted else _CHANGED_S) - clock.monotonic())

    def restart(self) -> None:
        """A comparison has been made."""
        self._has_compared = True
        self._compared_at, self._spread = clock.monotonic(), random.uniform(0.8, 1.2)
        self._latest = float("inf")

    def note_writers(self, *, are_there: bool) -> None:
        """Whether other writers write the objects."""
        self._has_other_writers = are_there


class Exporter:
    """The loop. `run` is its task; `sync` is a turn of it."""

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
        """`own_version` returns the resourceVersion of the object on the server, from OwnObject."""
        self._settings = settings
        self._observer = observer
        self._publisher = publisher
        self._source = source
        self._metrics = metrics
        self._conditions = conditions
        self._display = Display(metrics, conditions, settings.resolved_node_name())
        self._trigger = trigger
        self._annotator = annotator
        self._own_version = own_version
        self._has_recalled = False
        self._backoff = backoff or Backoff()
        # A call to the kubelet loads only this node.
        self._source_backoff = Backoff(0.2, 5.0)
        self._limit = TokenBucket(_SYNCS_PER_SECOND, _SYNCS_AT_ONCE)
        self._synced_at = clock.monotonic()
        self._drift = DriftSchedule()
        self._standing = Standing()
        self.heartbeat = health.Heartbeat(_INTERVAL_S + _LONGEST_SYNC_S)

    def problem(self) -> str | None:
        """For readiness: None once the object is published and while it can be updated."""
        if not self._standing.is_published:
            return "nothing published yet"
        age, limit = clock.monotonic() - self._synced_at, _UNSEEN_S
        if age > limit:
            return f"the node was last seen {age:.0f}s ago, at most {limit:.0f}s expected"
        missing = (Condition.NO_KUBELET, Condition.NO_WRITE)
        return next((condition.value for condition in missing if condition in self._conditions), None)

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
        """Sleeps, with heartbeats."""
        end = clock.monotonic() + seconds
        while (left := end - clock.monotonic()) > 0:
            await asyncio.sleep(min(left, _BEAT_S))
            self.heartbeat.beat()

    async def sync(self) -> Pause:
        """Reads the node and writes what is new; returns the wait until the next sync."""
        try:
            await self._recall()
            with self._metrics.sync_seconds.time():
                reading = await self._observer.observe(self._standing.kubelet_version)
        except SourceError as exc:
            self._metrics.source_errors.labels(self._kind_of(exc.source)).inc()
            self._conditions.set(Condition.NO_KUBELET, str(exc))
            # A kubelet that restarts creates its socket again, which is an event.
            return Pause(self._source_backoff.next_delay(), ends_with_event=True)
        except ApiError as exc:
            return self._failed(exc)
        self._source_backoff.reset()
        self._conditions.clear(Condition.NO_KUBELET)
        self._synced_at = clock.monotonic()
        self._display.show_reading(reading)
        if self._annotator is not None and not reading.doubts:
            self._annotator.saw(reading.observation)
        error = await self._check_drift() or await self._publish(reading)
        if error is not None:
            return self._failed(error)
        self._conditions.clear(Condition.NO_WRITE)
        self._backoff.reset()
        return Pause(self._until_next(reading), ends_with_event=True)

    async def _recall(self) -> None:
        """Before the first sync: the last object of an earlier exporter, in case the kubelet is not ready."""
        if self._has_recalled:
            return
        before = await self._publisher.recall()
        if before is not None:
            self._observer.remember(*topology.remembered(before))
        self._has_recalled = True

    async def _publish(self, reading: Reading) -> ApiError | None:
        # At once: a pod that comes now would be admitted before its devices are there again.
        if confirmation.of_devices_only(reading.doubts):
            outcome = await self._publisher.publish(reading.observation, reading.doubts)
        else:
            outcome = await self._publisher.keep(reading.doubts)
        return self._take(outcome)

    async def _check_drift(self) -> ApiError | None:
        if not self._drift.is_due() and self._own_is_due_in() > 0:
            return None
        outcome = await self._publisher.check_drift()
        if outcome.error is None:
            self._drift.restart()
        return self._take(outcome)

    def _take(self, outcome: Outcome) -> ApiError | None:
        self._standing = outcome.standing
        self._display.show_outcome(outcome)
        if outcome.other_writers is not None:
            self._drift.note_writers(are_there=any(outcome.other_writers.values()))
        return outcome.error

    def _failed(self, exc: ApiError) -> Pause:
        self._conditions.set(Condition.NO_WRITE, str(exc))
        return Pause(self._backoff.next_delay(at_least=exc.retry_after), ends_with_event=False)

    def _until_next(self, reading: Reading) -> float:
        """Seconds to the next sync if there is no event."""
        interval = _INTERVAL_S * random.uniform(0.95, 1.05)
        due = float("inf") if reading.due is None else reading.due
        return min(interval, due, self._own_is_due_in(), _DOUBTFUL_S if reading.doubts else interval)

    def _own_is_due_in(self) -> float:
        """Seconds until the own object is to be compared because of an event; infinity without an event."""
        version = self._own_version()
        if not self._publisher.differs_from(version):
            return float("inf")
        return self._drift.seconds_after_event(is_deleted=not version)

    def _kind_of(self, source: str) -> str:
        if source == socket_path(self._settings.podresources_socket):
            return "podresources"
        return "machine" if source.startswith(self._settings.sysfs_root.rstrip("/") + "/") else "kubelet-config"

    async def _wait(self, seconds: float) -> None:
        reasons = await self._trigger.wait(seconds)
        deadline = clock.monotonic() + _ADMISSION_S
        while reasons and self._observer.is_admitting() and (left := deadline - clock.monotonic()) > 0:
            reasons |= await self._trigger.wait(left)
        for reason in reasons or ("interval",):
            self._metrics.events.labels(reason.partition(":")[0]).inc()
        if any(reason.startswith(triggers.MACHINE) for reason in reasons):
            self._observer.forget_machine()
        if reasons - _ADMISSION_EVENTS:
            self._observer.forget_allocatable()
        if Path(self._settings.podresources_socket).name in reasons:
            self._drift.hasten()
            self._source.expire()
        self._limit.take()
        await asyncio.sleep(self._limit.delay())


def watched_files(settings: ExporterConfiguration) -> dict[Path, frozenset[str]]:
    """Directory -> file names whose changes are events; an empty set means all names."""
    watched: dict[Path, set[str]] = {}
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
        # The kubelet creates a pod's directory after its admission, and removes it after its end: any name.
        watched[root / "pods"] = set()
    if settings.kubelet.config_file:
        paths.append(Path(settings.kubelet.config_file))
    for path in paths:
        watched.setdefault(path.parent, set()).add(path.name)
    return {directory: frozenset(names) for directory, names in watched.items()}


async def run(settings: ExporterConfiguration) -> int:
    """Runs the daemon until a signal; returns its exit status. Raises ConfigError or SourceError if it cannot start."""
    log.info("Starting topowise-exporter", extra=kv(version=__version__, node=settings.resolved_node_name()))
    log.info("Effective configuration", extra=kv(configuration=config.effective(settings)))
    access = await credentials.load(settings.client.kubeconfig)
    metrics, conditions, trigger = Metrics(), Conditions(), Trigger()
    triggers.on_sighup(trigger)
    async with (
        PodResources(settings.podresources_socket) as podresources,
        Api(access, "topowise-exporter") as api,
    ):
        source = Source(settings.kubelet, socket=socket_path(settings.podresources_socket))
        slices = ResourceSlices(api, settings.resolved_node_name(), lambda: trigger.notify("resourceslices"))
        observer = Observer(settings, podresources, source, devices=lambda: slices.devices)
        publisher = Publisher(settings, api)
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
        # Imported objects live forever. Frozen, they do not cost a full collection 20 ms during a sync.
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
        if settings.kubelet_root:
            # From 1.37 the end of a pod, which changes no state file, is noticed at once by it.
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
    return Annotator(api, name, metrics, conditions, _DRIFT_INTERVAL_S, settings.exclude)


async def _run(exporter: Exporter, slices: ResourceSlices | None) -> None:
    if slices is not None:
        await slices.answered(_SLICES_AT_MOST_S)
    await exporter.run()
