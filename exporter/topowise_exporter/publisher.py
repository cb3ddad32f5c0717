"""From an observation to the API server: builds the objects, writes what is new, notices when others write too."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from topowise import nrt, numatopology
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.kubeletconfig import KubeletConfiguration
from topowise.quantity import from_milli
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, kv
from topowise_exporter import exclusions
from topowise_exporter.complaints import Complaints
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.metrics import Metrics
from topowise_exporter.publish import numatopology as volcano
from topowise_exporter.publish import topology
from topowise_exporter.publish.topology import Observation
from topowise_exporter.publish.writer import OwnNode, Writer, read_own_node, topology_writer

log = logging.getLogger(__name__)

_NO_OWNER = "Cannot read the own Node, publishing without owner reference"
_ODD_MACHINE = "Parts of /sys are missing or damaged"
_ODD_NUMBERS = "The kubelet's numbers do not add up"
_NO_NUMATOPOLOGY = "Cannot publish for Volcano, trying again"
_OTHER_WRITER = "Somebody else writes the same object: switch one of the two off"


class Publisher:
    """Raises ApiError from its coroutines; the caller tries again with a new observation."""

    def __init__(
        self,
        settings: ExporterConfiguration,
        api: Api,
        metrics: Metrics,
        complaints: Complaints,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is for people, `monotonic` for waiting: the time of a node may be set back by years at boot."""
        self._settings = settings
        self._api = api
        self._metrics = metrics
        self._complaints = complaints
        self._clock = clock
        self._monotonic = monotonic
        self._node_name = settings.resolved_node_name()
        self._own: OwnNode | None = None
        self._topology = topology_writer(api, self._node_name)
        self._numatopology: Writer[numatopology.Numatopology] | None = None
        if settings.numatopology:
            path = f"{numatopology.PATH}/{self._node_name}"
            self._numatopology = Writer(api, path, volcano.same, numatopology.decode, numatopology.KIND)
        self._owner_backoff = Backoff(maximum=300.0)
        self._owner_not_before = 0.0
        self._volcano_backoff = Backoff(maximum=300.0)
        self._volcano_not_before = 0.0
        self._foreign: dict[str, frozenset[str]] = {}
        self._published: Observation | None = None
        self.has_published = False

    async def publish(self, seen: Observation) -> None:
        """Writes the objects that say something new."""
        if seen is self._published and self._is_settled():
            # The observer gives the same object for the same facts: there is nothing to build or to compare.
            self._metrics.last_publish.set_to_current_time()
            return
        self._complaints.note(_ODD_MACHINE, seen.machine.problems)
        owner = await self._own_node()
        made = topology.build(self._node_name, seen, self._settings.publish, self._settings.exclude, owner)
        self._complaints.note(_ODD_NUMBERS, made.problems)
        if made.problems:
            self._metrics.clamped.inc()
        self._metrics.pods.set(len(seen.allocations.pods))
        self._metrics.show_claims(_claims(seen))
        if await self._write(nrt.KIND, self._topology, made.topology):
            self._metrics.show_accounts(made.accounts)
        self.has_published = True
        self._metrics.last_publish.set_to_current_time()
        self._published = None
        if self._numatopology is None or await self._publish_for_volcano(
            self._numatopology, self._volcano(seen, owner)
        ):
            self._published = seen

    def _is_settled(self) -> bool:
        """Whether all that was wanted has been written, nobody has undone it since, and the owner is not due."""
        owner_is_due = self._own is None and self._monotonic() >= self._owner_not_before
        return not owner_is_due and all(writer.has_written for _, writer in self._writers())

    async def _publish_for_volcano(
        self, writer: Writer[numatopology.Numatopology], wanted: numatopology.Numatopology
    ) -> bool:
        """Whether the object says what is wanted. It must not hold up the first: its failures are its own, and are
        retried at their own pace."""
        if self._monotonic() < self._volcano_not_before:
            return False
        try:
            await self._write(numatopology.KIND, writer, numatopology.stamped(wanted, int(self._clock())))
        except ApiError as exc:
            self._complaints.raise_(_NO_NUMATOPOLOGY, str(exc))
            self._volcano_not_before = self._monotonic() + self._volcano_backoff.next_delay(at_least=exc.retry_after)
            return False
        self._complaints.settle(_NO_NUMATOPOLOGY)
        self._volcano_backoff.reset()
        return True

    async def check_drift(self) -> None:
        """Compares the objects on the server with what was written; what differs is written anew with the next look.

        The own Node is read anew as well: a node that was deleted and came back has another uid.
        """
        self._own, self._owner_not_before = None, 0.0
        for kind, writer in self._writers():
            about = f"Cannot compare the {kind} with what was written, trusting that nobody changed it"
            try:
                drift = await writer.check()
            except ApiError as exc:
                # Nobody may be allowed to read, and the second object must not hold up the first.
                if exc.status != 403 and writer is self._topology:
                    raise
                self._complaints.raise_(about, str(exc))
                continue
            self._complaints.settle(about)
            if drift is not None:
                self._metrics.drifts.labels(kind).inc()
                log.warning("Published object is not as it was left, writing it anew", extra=kv(kind=kind, why=drift))
            self._note_foreign(kind, writer)

    async def _write(self, kind: str, writer: Writer[Any], wanted: object) -> bool:
        started = time.perf_counter()
        try:
            written = await writer.publish(wanted)
        except ApiError:
            self._metrics.writes.labels(kind, "failed").inc()
            raise
        if not written:
            self._metrics.writes.labels(kind, "unchanged").inc()
            return False
        took = time.perf_counter() - started
        self._metrics.publish_seconds.observe(took)
        self._metrics.writes.labels(kind, "written").inc()
        self._note_foreign(kind, writer)
        level = V2 if self.has_published else logging.INFO
        log.log(level, "Published", extra=kv(kind=kind, node=self._node_name, took_ms=round(took * 1e3, 1)))
        return True

    def _writers(self) -> Iterator[tuple[str, Writer[Any]]]:
        yield nrt.KIND, self._topology
        if self._numatopology is not None:
            yield numatopology.KIND, self._numatopology

    def _note_foreign(self, kind: str, writer: Writer[Any]) -> None:
        self._foreign[kind] = writer.foreign_writers
        self._metrics.show_foreign(self._foreign)
        named = tuple(
            f"{', '.join(sorted(managers))} writes the {kind}" for kind, managers in self._foreign.items() if managers
        )
        self._complaints.note(_OTHER_WRITER, named)

    async def _own_node(self) -> nrt.OwnerReference | None:
        """The owner reference; a Node that is not there (yet), or that we may not read, is asked for now and then."""
        if self._own is None and self._monotonic() >= self._owner_not_before:
            try:
                self._own = await read_own_node(self._api, self._node_name)
                self._complaints.settle(_NO_OWNER)
                self._owner_backoff.reset()
            except ApiError as exc:
                if exc.status not in (403, 404):
                    raise
                self._complaints.raise_(_NO_OWNER, str(exc))
                self._owner_not_before = self._monotonic() + self._owner_backoff.next_delay(at_least=exc.retry_after)
        return None if self._own is None else self._own.owner()

    @property
    def kubelet_version(self) -> str | None:
        """As the Node tells it; None until it could be read."""
        return None if self._own is None else self._own.status.nodeInfo.kubeletVersion or None

    def _volcano(self, seen: Observation, owner: nrt.OwnerReference | None) -> numatopology.Numatopology:
        allocations = exclusions.apply(self._settings.exclude, seen.allocations)
        kubelet = seen.kubelet
        unlisted = frozenset[int]().union(*allocations.unlisted.values())
        return volcano.build(
            self._node_name,
            seen.machine,
            cpu_policy=kubelet.cpuManagerPolicy,
            topology_policy=kubelet.topologyManagerPolicy,
            reserved_cpu=_reserved_cpu(kubelet),
            reserved_cpus=kubelet.reserved_cpus,
            allocatable=allocations.allocatable.cpus,
            used=unlisted.union(*(pod.own_cpus for pod in allocations.pods)),
            containers={
                (pod.namespace, pod.name, container.name): container.cpus
                for pod in allocations.pods
                for container in pod.containers
            },
            owner=owner,
            with_cpus=not self._settings.exclude.has_resource(numatopology.CPU),
        )


def _reserved_cpu(kubelet: KubeletConfiguration) -> str:
    return from_milli(kubelet.reserved({}).get("cpu", 0))


def _claims(seen: Observation) -> dict[str, int]:
    held = {claim for pod in seen.allocations.pods for container in pod.containers for claim in container.claims}
    return dict(Counter(claim.driver for claim in held))
