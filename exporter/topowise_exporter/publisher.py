"""From an observation to the API server: builds the objects, writes what is new, notices when others write too."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from topowise import nrt, numatopology
from topowise.attributes import doubts
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, kv
from topowise_exporter import zones
from topowise_exporter.conditions import Conditions
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.dra.device_counts import held_by_node
from topowise_exporter.metrics import Metrics
from topowise_exporter.publish import numatopology as volcano
from topowise_exporter.publish import size, topology
from topowise_exporter.publish.other_writers import PAUSE_S, product
from topowise_exporter.publish.topology import Observation
from topowise_exporter.publish.writer import (
    OwnNode,
    TooLargeError,
    Writer,
    WriteResult,
    is_newer,
    read_own_node,
    topology_writer,
)

log = logging.getLogger(__name__)

_NO_OWNER = "Cannot read the own Node, publishing with the owner that is known, if any"
_ODD_MACHINE = "Parts of /sys are missing or damaged"
_ODD_NUMBERS = "The kubelet's numbers do not add up"
_HIGH_NODES = "Leaving out NUMA nodes with ids beyond 63, at which kubelets that align panic and schedulers end"
_NO_NUMATOPOLOGY = "Cannot publish for Volcano, trying again"
_OTHER_WRITER = "Somebody else writes the same object, ours is written once a minute at most: switch one of the two off"
_NOT_TRUE_YET = "The kubelet does not know yet what it has, the last true object stays"
_NO_DEVICES_YET = "Device plug-ins have not registered since the kubelet started, publishing all but their devices"
_LARGE = "The object is too large for the API server, leaving out what it can do without"


class Publisher:
    """Raises ApiError from its coroutines; the caller tries again with a new observation."""

    def __init__(
        self,
        settings: ExporterConfiguration,
        api: Api,
        metrics: Metrics,
        conditions: Conditions,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is for people, `monotonic` for waiting: the time of a node may be set back by years at boot."""
        self._settings = settings
        self._api = api
        self._metrics = metrics
        self._conditions = conditions
        self._clock = clock
        self._monotonic = monotonic
        self._node_name = settings.resolved_node_name()
        self._own: OwnNode | None = None
        self._own_is_due = True
        self._node_is_gone = False
        self._topology = topology_writer(api, self._node_name)
        self._numatopology: Writer[numatopology.Numatopology] | None = None
        if settings.numatopology:
            path = paths.path(numatopology.PATH, self._node_name)
            self._numatopology = Writer(api, path, volcano.same, numatopology.decode, numatopology.KIND)
        self._owner_backoff = Backoff(maximum=300.0)
        self._owner_not_before = 0.0
        self._volcano_backoff = Backoff(maximum=300.0)
        self._volcano_not_before = 0.0
        self._foreign: dict[str, frozenset[str]] = {}
        self._has_checked = False
        self._size_limit = size.LIMIT
        self._published: Observation | None = None
        self._true: nrt.NodeResourceTopology | None = None
        self._lacks: frozenset[str] = frozenset()
        self._is_recalled = False
        self.has_published = False

    async def publish(self, seen: Observation, reasons: frozenset[str] = frozenset()) -> None:
        """Writes the objects that say something new; for these `reasons` it is not all of the truth yet."""
        if not reasons and seen is self._published and self._is_settled():
            # The observer gives the same object for the same facts: there is nothing to build or to compare.
            self._metrics.last_publish.set_to_current_time()
            return
        self._conditions.note(_ODD_MACHINE, seen.machine.problems)
        owner = await self._own_node()
        if self._is_orphan():
            return
        made = topology.build(self._node_name, seen, self._settings.publish, self._settings.exclude, owner)
        self._conditions.note(_ODD_NUMBERS, made.problems)
        self._conditions.note(_HIGH_NODES, zones.high_nodes(seen.machine))
        if made.problems:
            self._metrics.clamped.inc()
        self._metrics.pods.set(len(seen.allocations.pods))
        self._metrics.show_claims(held_by_node(seen.devices, seen.machine, seen.allocations.pods))
        self._true, self._lacks = made.topology, reasons
        self.show_doubts(reasons)
        wanted = topology.unconfirmed(made.topology, reasons) if reasons else made.topology
        outcome = await self._write_topology(wanted)
        self._published = None
        if outcome == "written":
            self._metrics.show_accounts(made.accounts)
        if outcome != "held-back":
            self.has_published = True
            self._metrics.last_publish.set_to_current_time()
        if reasons:
            # Volcano's object has no word for doubts: the last true one stays.
            return
        is_done = self._numatopology is None or await self._publish_for_volcano(
            self._numatopology, volcano.observed(self._node_name, seen, self._settings.exclude, owner)
        )
        if is_done and outcome != "held-back":
            self._published = seen

    async def recall(self) -> nrt.NodeResourceTopology | None:
        """What an exporter before this one wrote, which is true until the kubelet tells more; read once."""
        if not self._is_recalled:
            try:
                there = await self._topology.read()
            except ApiError as exc:
                # Whoever may not read it begins with nothing.
                if exc.status != 403:
                    raise
                there = None
            self._is_recalled = True
            self._true = None if there is None else topology.recalled(there)
        return self._true

    async def keep(self, reasons: frozenset[str]) -> None:
        """What was seen is not the truth yet: the last true object stays, and says so."""
        self.show_doubts(reasons)
        self._published = None
        self.has_published |= self._true is not None
        if self._true is None:
            return
        owner = await self._own_node()
        if self._is_orphan():
            return
        await self._write_topology(topology.owned(topology.unconfirmed(self._true, reasons | self._lacks), owner))

    def show_doubts(self, reasons: frozenset[str]) -> None:
        """In metrics and the log."""
        self._metrics.show_doubts(reasons)
        what = (", ".join(sorted(reasons)),) if reasons else ()
        is_of_devices = doubts.of_devices_only(reasons)
        self._conditions.note(_NOT_TRUE_YET, () if is_of_devices else what)
        self._conditions.note(_NO_DEVICES_YET, what if is_of_devices else ())

    def _is_orphan(self) -> bool:
        """Whether the object went with its Node: it comes back with the Node, and would be collected at once before."""
        return self._topology.is_lost and self._node_is_gone

    def _is_settled(self) -> bool:
        """Whether all that was wanted has been written, nobody has undone it since, and the owner is not due."""
        return not self._must_read_own() and all(writer.has_written for _, writer in self._writers())

    async def _publish_for_volcano(
        self, writer: Writer[numatopology.Numatopology], wanted: numatopology.Numatopology
    ) -> bool:
        """Whether the object says what is wanted. It must not hold up the first: its failures are its own, and are
        retried at their own pace."""
        if self._monotonic() < self._volcano_not_before:
            return False
        try:
            outcome = await self._write(numatopology.KIND, writer, numatopology.stamped(wanted, int(self._clock())))
        except ApiError as exc:
            self._conditions.set(_NO_NUMATOPOLOGY, str(exc))
            self._volcano_not_before = self._monotonic() + self._volcano_backoff.next_delay(at_least=exc.retry_after)
            return False
        self._conditions.clear(_NO_NUMATOPOLOGY)
        self._volcano_backoff.reset()
        return outcome != "held-back"

    async def _write_topology(self, wanted: nrt.NodeResourceTopology) -> WriteResult:
        fitted = size.fit(wanted, self._size_limit)
        if fitted.bytes > self._size_limit:
            message = f"the object is too large: {size.warning(fitted, self._size_limit)}"
            raise ApiError(413, "TooLarge", message, request=f"PATCH {nrt.PATH}/{self._node_name}")
        self._conditions.note(_LARGE, (size.warning(fitted, self._size_limit),) if fitted.left_out else ())
        try:
            return await self._write(nrt.KIND, self._topology, fitted.topology)
        except TooLargeError as exc:
            # A server with a lower limit than etcd's own; the next try leaves out more.
            self._size_limit = min(self._size_limit, exc.size - 1)
            raise

    @property
    def check_interval(self) -> float:
        """Seconds between two comparisons: a minute after the start, to meet whoever was there before, and as long as
        somebody else writes."""
        is_calm = self._has_checked and not any(writer.foreign_writers for _, writer in self._writers())
        return self._settings.drift_interval if is_calm else min(PAUSE_S, self._settings.drift_interval)

    def differs_from(self, version: str | None) -> bool:
        """Whether the object on the server may not be what was written last: "" for one that is not there."""
        if version is None or not self._topology.has_written:
            return False
        return not version or is_newer(version, self._topology.version)

    async def check_drift(self) -> None:
        """Compares the objects on the server with what was written; what differs is written anew with the next sync.

        The own Node is read anew as well: a node that was deleted and came back has another uid.
        """
        self._own_is_due, self._owner_not_before = True, 0.0
        for kind, writer in self._writers():
            about = f"Cannot compare the {kind} with what was written, trusting that nobody changed it"
            try:
                drift = await writer.check()
            except ApiError as exc:
                # Nobody may be allowed to read, and the second object must not hold up the first.
                if exc.status != 403 and writer is self._topology:
                    raise
                self._conditions.set(about, str(exc))
                continue
            self._conditions.clear(about)
            if drift is not None:
                self._metrics.drifts.labels(kind).inc()
                # Who writes again and again is logged once, by the condition.
                level = V2 if writer.foreign_writers else logging.WARNING
                about = "Published object is not as it was left, writing it anew"
                log.log(level, about, extra=kv(kind=kind, why=drift))
            self._note_foreign(kind, writer)
        self._has_checked = True

    async def _write(self, kind: str, writer: Writer[Any], wanted: object) -> WriteResult:
        started = time.perf_counter()
        try:
            outcome = await writer.publish(wanted)
        except ApiError:
            self._metrics.writes.labels(kind, "failed").inc()
            raise
        self._metrics.writes.labels(kind, outcome).inc()
        if outcome != "written":
            return outcome
        took = time.perf_counter() - started
        self._metrics.publish_seconds.observe(took)
        self._note_foreign(kind, writer)
        # A Node that was deleted takes its objects along, and one that comes back by the same name has another uid.
        self._own_is_due |= writer.was_remade
        level = V2 if self.has_published else logging.INFO
        log.log(level, "Published", extra=kv(kind=kind, node=self._node_name, took_ms=round(took * 1e3, 1)))
        return outcome

    def _writers(self) -> Iterator[tuple[str, Writer[Any]]]:
        yield nrt.KIND, self._topology
        if self._numatopology is not None:
            yield numatopology.KIND, self._numatopology

    def _note_foreign(self, kind: str, writer: Writer[Any]) -> None:
        self._foreign[kind] = writer.foreign_writers
        self._metrics.show_foreign(self._foreign)
        named = tuple(
            f"{' and '.join(product(manager) for manager in sorted(managers))} writes the {kind}"
            for kind, managers in self._foreign.items()
            if managers
        )
        self._conditions.note(_OTHER_WRITER, named)

    async def _own_node(self) -> nrt.OwnerReference | None:
        """The owner reference; a Node that is not there (yet), or that we may not read, is asked for now and then.

        One that was there stays the owner: an object without would outlive a node that is being removed.
        """
        if self._must_read_own():
            try:
                self._own = await read_own_node(self._api, self._node_name)
                self._own_is_due = self._node_is_gone = False
                self._conditions.clear(_NO_OWNER)
                self._owner_backoff.reset()
            except ApiError as exc:
                if exc.status not in (403, 404):
                    raise
                self._node_is_gone = exc.status == 404 and self._own is not None
                self._conditions.set(_NO_OWNER, str(exc))
                self._owner_not_before = self._monotonic() + self._owner_backoff.next_delay(at_least=exc.retry_after)
        return None if self._own is None else self._own.owner()

    def _must_read_own(self) -> bool:
        return self._own_is_due and self._monotonic() >= self._owner_not_before

    @property
    def kubelet_version(self) -> str | None:
        """As the Node tells it; None until it could be read."""
        return None if self._own is None else self._own.status.nodeInfo.kubeletVersion or None
