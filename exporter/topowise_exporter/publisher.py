"""Builds the objects of an observation, and writes to the API server what is new.

Each call returns an `Outcome`; display.py logs and counts it. A failed request is part of the outcome, too.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec

from topowise import nrt
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise_exporter import zones
from topowise_exporter.conditions import Condition
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.dra.slices import held_by_node
from topowise_exporter.own_node import Owner, OwnNodeReader, RetryPace
from topowise_exporter.publish import numatopology, size_limit, topology
from topowise_exporter.publish.other_writers import product
from topowise_exporter.publish.topology import Observation
from topowise_exporter.publish.writer import TooLargeError, Writer, WriteResult, is_newer, topology_writer

_NOT_COMPARED: Final = {
    nrt.KIND: Condition.TOPOLOGY_NOT_COMPARED,
    numatopology.KIND: Condition.NUMATOPOLOGY_NOT_COMPARED,
}


class Write(NamedTuple):
    """A try to write an object; `is_first`: before it, this exporter had published nothing."""

    kind: str
    result: WriteResult | Literal["failed"]
    seconds: float
    is_first: bool


class Drift(NamedTuple):
    """An object on the API server that is not as it was written; `is_repeated`: another writer is known."""

    kind: str
    why: str
    is_repeated: bool


class Content(NamedTuple):
    """Amounts for the metrics: pods in List, claimed devices by driver and NUMA node, and the zones."""

    pods: int
    claims: Mapping[tuple[str, int | None], int]
    accounts: zones.Accounts


class Standing(NamedTuple):
    """Whether this node has an object, whether the object agrees with the observation, and the Node's kubelet."""

    is_published: bool = False
    is_current: bool = False
    kubelet_version: str | None = None


class Outcome(msgspec.Struct):
    """What a call did."""

    standing: Standing = Standing()
    conditions: dict[Condition, tuple[str, ...]] = {}
    """Condition -> problems, () if the problem is over; conditions that were not looked at are missing."""
    writes: list[Write] = []
    drifts: list[Drift] = []
    content: Content | None = None
    other_writers: Mapping[str, frozenset[str]] | None = None
    """Kind -> field managers, when each was last written or compared; None if neither happened."""
    error: ApiError | None = None
    """Why the call ended early; the caller tries again with a new observation."""


class _LastTrue(NamedTuple):
    """The last true object, and for which doubts (of devices) it is incomplete."""

    topology: nrt.NodeResourceTopology | None = None
    lacks: frozenset[str] = frozenset()


class Publisher:
    """Writes the objects of a node."""

    def __init__(
        self,
        settings: ExporterConfiguration,
        api: Api,
        clock: Callable[[], float] = clock.wall,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """`clock` is for timestamps, `monotonic` for waiting: at boot the time of a node may be set back by years."""
        self._settings = settings
        self._clock = clock
        self._node_name = settings.resolved_node_name()
        self._own_node = OwnNodeReader(api, self._node_name, monotonic)
        self._topology = topology_writer(api, self._node_name)
        self._numatopology: Writer[numatopology.Numatopology] | None = None
        if settings.numatopology:
            path = paths.path(numatopology.PATH, self._node_name)
            self._numatopology = Writer(api, path, numatopology.same, numatopology.decode, numatopology.KIND)
        self._numatopology_pace = RetryPace(monotonic)
        self._size_limit = size_limit.LIMIT
        self._other_writers: dict[str, frozenset[str]] = {}
        self._published: Observation | None = None
        self._last_true = _LastTrue()
        self._has_published = False

    async def publish(self, seen: Observation, doubts: frozenset[str] = frozenset()) -> Outcome:
        """Writes the objects that are new; with `doubts` of devices the object is marked as incomplete."""
        if not doubts and seen is self._published and self._is_settled():
            # The observer returns the same object for the same facts: there is nothing to build or to compare.
            return Outcome(self._standing(is_current=True))
        return await self._recorded(partial(self._publish, seen, doubts))

    async def keep(self, doubts: frozenset[str]) -> Outcome:
        """The answers of the kubelet are not true yet: marks the last true object, which stays."""
        return await self._recorded(partial(self._keep, doubts))

    async def check_drift(self) -> Outcome:
        """Compares the objects on the server with the last writes. The next publish writes what differs, and reads the
        own Node: a Node that was deleted and created again has another uid."""
        return await self._recorded(self._check_drift)

    async def recall(self) -> nrt.NodeResourceTopology | None:
        """The object of an earlier exporter, which is true until the kubelet is ready. Raises ApiError."""
        try:
            written = await self._topology.read()
        except ApiError as exc:
            # Without permission to read, start with nothing.
            if exc.status != 403:
                raise
            written = None
        self._last_true = _LastTrue(None if written is None else topology.recalled(written))
        return self._last_true.topology

    def differs_from(self, version: str | None) -> bool:
        """Whether the object on the server, of this resourceVersion ("": none), may not be what was written last."""
        if version is None or not self._topology.has_written:
            return False
        return not version or is_newer(version, self._topology.version)

    async def _recorded(self, steps: Callable[[Outcome], Awaitable[bool]]) -> Outcome:
        """`steps` returns whether the object agrees with the observation."""
        outcome, is_current = Outcome(), False
        try:
            is_current = await steps(outcome)
        except ApiError as exc:
            outcome.error = exc
        outcome.standing = self._standing(is_current=is_current)
        return outcome

    def _standing(self, *, is_current: bool) -> Standing:
        return Standing(self._has_published, is_current, self._own_node.kubelet_version)

    async def _publish(self, seen: Observation, doubts: frozenset[str], outcome: Outcome) -> bool:
        outcome.conditions[Condition.ODD_MACHINE] = seen.machine.problems
        owner = await self._owner(outcome)
        if self._is_orphan(owner):
            return False
        built = topology.build(self._node_name, seen, self._settings.publish, self._settings.exclude, owner.reference)
        outcome.conditions |= {
            Condition.ODD_NUMBERS: built.problems,
            Condition.HIGH_NODES: zones.high_nodes(seen.machine),
        }
        pods = seen.allocations.pods
        outcome.content = Content(len(pods), held_by_node(seen.devices, seen.machine, pods), built.accounts)
        self._last_true = _LastTrue(built.topology, doubts)
        result = await self._write_topology(
            topology.unconfirmed(built.topology, doubts) if doubts else built.topology, outcome
        )
        self._published = None
        is_current = is_done = result != "held-back"
        self._has_published |= is_current
        if doubts:
            # Volcano's object has no field for doubts: the last true object stays.
            return is_current
        if self._numatopology is not None:
            target = numatopology.observed(self._node_name, seen, self._settings.exclude, owner.reference)
            is_done &= await self._publish_for_volcano(self._numatopology, target, outcome)
        if is_done:
            self._published = seen
        return is_current

    async def _keep(self, doubts: frozenset[str], outcome: Outcome) -> bool:
        self._published = None
        last, lacks = self._last_true
        if last is None:
            return False
        self._has_published = True
        owner = await self._owner(outcome)
        if not self._is_orphan(owner):
            marked = topology.unconfirmed(last, doubts | lacks)
            await self._write_topology(topology.owned(marked, owner.reference), outcome)
        return False

    async def _check_drift(self, outcome: Outcome) -> bool:
        self._own_node.expire(at_once=True)
        for kind, writer in self._writers():
            try:
                drift = await writer.check()
            except ApiError as exc:
                # Permission to read may be missing, and a failure of the second object must not delay the first.
                if exc.status != 403 and writer is self._topology:
                    raise
                outcome.conditions[_NOT_COMPARED[kind]] = (str(exc),)
                continue
            outcome.conditions[_NOT_COMPARED[kind]] = ()
            if drift is not None:
                outcome.drifts.append(Drift(kind, drift, bool(writer.foreign_writers)))
            self._note_writers(kind, writer, outcome)
        return False

    def _note_writers(self, kind: str, writer: Writer[Any], outcome: Outcome) -> None:
        outcome.other_writers = self._other_writers = {**self._other_writers, kind: writer.foreign_writers}
        outcome.conditions[Condition.OTHER_WRITER] = tuple(
            f"{' and '.join(product(manager) for manager in sorted(managers))} writes the {kind}"
            for kind, managers in self._other_writers.items()
            if managers
        )

    async def _owner(self, outcome: Outcome) -> Owner:
        owner = await self._own_node.owner()
        if owner.problem is not None:
            outcome.conditions[Condition.NO_OWNER] = (owner.problem,) if owner.problem else ()
        return owner

    def _is_orphan(self, owner: Owner) -> bool:
        """Whether the object was deleted with its Node. Until the Node is back, a new object would be deleted, too."""
        return self._topology.is_lost and owner.is_gone

    def _is_settled(self) -> bool:
        """Whether everything is written, the server is believed to have it, and the owner is not due."""
        return not self._own_node.is_due and all(writer.has_written for _, writer in self._writers())

    async def _publish_for_volcano(
        self, writer: Writer[numatopology.Numatopology], target: numatopology.Numatopology, outcome: Outcome
    ) -> bool:
        """Whether the server has the object. Its failures must not delay the first object: they have their own pace."""
        if not self._numatopology_pace.is_due:
            return False
        try:
            stamped = numatopology.stamped(target, int(self._clock()))
            result = await self._write(numatopology.KIND, writer, stamped, outcome)
        except ApiError as exc:
            outcome.conditions[Condition.NO_NUMATOPOLOGY] = (str(exc),)
            self._numatopology_pace.fail(exc)
            return False
        outcome.conditions[Condition.NO_NUMATOPOLOGY] = ()
        self._numatopology_pace.succeed()
        return result != "held-back"

    async def _write_topology(self, target: nrt.NodeResourceTopology, outcome: Outcome) -> WriteResult:
        fitted = size_limit.fit(target, self._size_limit)
        if fitted.bytes > self._size_limit:
            message = f"the object is too large: {size_limit.warning(fitted, self._size_limit)}"
            raise ApiError(413, "TooLarge", message, request=f"PATCH {nrt.PATH}/{self._node_name}")
        outcome.conditions[Condition.LARGE] = (size_limit.warning(fitted, self._size_limit),) if fitted.left_out else ()
        try:
            return await self._write(nrt.KIND, self._topology, fitted.topology, outcome)
        except TooLargeError as exc:
            # The limit of this server is below etcd's default: the next try leaves out more.
            self._size_limit = min(self._size_limit, exc.size - 1)
            raise

    async def _write(self, kind: str, writer: Writer[Any], target: object, outcome: Outcome) -> WriteResult:
        started, is_first = time.perf_counter(), not self._has_published
        try:
            result = await writer.publish(target)
        except ApiError:
            outcome.writes.append(Write(kind, "failed", time.perf_counter() - started, is_first))
            raise
        outcome.writes.append(Write(kind, result, time.perf_counter() - started, is_first))
        if result == "written":
            self._note_writers(kind, writer, outcome)
            # An object that was deleted may have gone with its Node, and the new Node has another uid.
            if writer.was_remade:
                self._own_node.expire()
        return result

    def _writers(self) -> Iterator[tuple[str, Writer[Any]]]:
        yield nrt.KIND, self._topology
        if self._numatopology is not None:
            yield numatopology.KIND, self._numatopology
