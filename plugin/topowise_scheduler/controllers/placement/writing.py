"""Writes the decisions to their pods, several at a time, and ends placements that came to nothing.

A write names UID and resourceVersion of the pod that was decided on, so that it changes no other pod and overwrites no
other writer. After a failed write:

- the pod has changed or is gone (409, 404, 422): its next event leads to another decision;
- the pod is refused (403 and the like): it is tried again after a while, other pods meanwhile after a pause;
- the API server throttles, or did not take the write: the pod waits again, and all writes pause;
- no answer: whether it was written is unknown. An event shows it, or the booking ends by its time (placements.py).

The steps of options before a Binding come before the gate is opened: the markers of a pod are labelled by then.

A decision is made only when a writer is free: while the API server is slow, nothing is booked ahead. A new leader waits
until the last writes of the leader before it have become visible.

A placed pod whose only node is gone, cordoned or filled by others can go nowhere. Its gate cannot be put back, so the
pod is deleted after a while, for its controller to make another. Pods without a controller, and pods of Jobs, for which
a deleted pod counts as a failed one, get an event instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from topowise.bounded import Bounded
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise.placement import DECISION, GATE, PLACED_ON
from topowise.runtime import clock
from topowise.runtime.backoff import Backoff
from topowise.runtime.event_loop import sliced
from topowise.runtime.log import V2, OncePerChange, kv
from topowise_scheduler.controllers import events
from topowise_scheduler.controllers.nomination import CHANGED, nominate
from topowise_scheduler.controllers.placement.deciding import Decisions, Write
from topowise_scheduler.ledger.gates.option import PreBind
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.pods.placements import Placement
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.kube_scheduler import NodeSelector, Requirement, Term

log = logging.getLogger(__name__)

NotReady = Callable[[], str | None]
"""Returns why no decision can be made yet, None if decisions can be made."""

# A pod notices no shorter wait, and a look without news costs microseconds.
_IDLE_S: Final = 0.01
_TIMEOUT_S: Final = 2.0
# Concurrent writes: an API server answers each in some milliseconds.
_WRITES: Final = 16
# What an option has prepared for a pod lasts so long (prebind.py of steering).
_KEPT_S: Final = 10.0
# After a change of the leader: longer than a write takes, so that its event is seen before anything is decided.
_SETTLING_S: Final = 2 * _TIMEOUT_S
# A pod that was refused in this version is not tried again for so long: other pods come first meanwhile. A step of an
# option that could not be done may be possible soon.
_REFUSED_S: Final = 30.0
_PREPARED_S: Final = 1.0
# The server's or the token's problem, not the pod's.
_OF_ALL_PODS: Final = (401, 408, 429)
# For so long kube-scheduler may have no room for a placed pod on its node.
_LOST_S: Final = 30.0
_LOOK_S: Final = 1.0
# Gates whose controllers do not wait for others, and for how long other gates need no event.
_WELL_KNOWN: Final = ("kueue.x-k8s.io/",)
_OTHERS_S: Final = 30.0
_JOB: Final = "Job"
_NO_ANNOTATION: Final[Mapping[str, str]] = {}
_TOLD_BYTES: Final = 1 << 20


class Placer:
    """`settles`: whether another process may have led before. `prebinds` are the steps of options before a Binding,
    which are done before the gate is opened. Nothing is decided while `not_ready` returns a reason. `clock` gives
    seconds, monotonic."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        decisions: Decisions,
        *,
        settles: bool,
        prebinds: Sequence[PreBind] = (),
        not_ready: NotReady = lambda: None,
        writes: int = _WRITES,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._decisions = decisions
        self._settles = settles
        self._prebinds = prebinds
        # By node: a placement that waits for the step of an option. Other placements do not wait for it.
        self._steps: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._not_ready = not_ready
        self._writers = asyncio.Semaphore(writes)
        self._clock = clock
        self._backoff = Backoff()
        self._paused_until = 0.0
        self._failures = OncePerChange()
        # By UID: when the placement of a pod that cannot be bound is ended, and pods with an event that says so.
        self._lost: dict[str, float] = {}
        self._told: Bounded[str, bool] = Bounded(_TOLD_BYTES, lambda uid, _: len(uid))

    async def run(self) -> None:
        """Places pods until cancelled."""
        if self._settles:
            await asyncio.sleep(_SETTLING_S)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._end_lost())
            while True:
                for write in await self._next():
                    await self._writers.acquire()
                    group.create_task(self._write(write))
                # Requests of schedulers have priority on the event loop.
                await asyncio.sleep(0)

    async def _next(self) -> list[Write]:
        while True:
            await self._writers.acquire()
            self._writers.release()
            if (pause := self._paused_until - self._clock()) > 0:
                await asyncio.sleep(pause)
            if self._not_ready() is None and (writes := await self._decide()):
                return writes
            await asyncio.sleep(_IDLE_S)

    async def _decide(self) -> list[Write]:
        result: list[Write] = []

        def steps() -> Any:
            result.extend((yield from self._decisions.steps()))

        await sliced(steps())
        return result

    async def _write(self, write: Write) -> None:
        try:
            is_written = await self._prepared_and_written(write)
        except ApiError as exc:
            self._note_failure(write, exc)
        else:
            self._backoff.reset()
            self._failures.clear()
            self._ledger.count("placement_written" if is_written else "placement_conflict")
            if is_written:
                log.log(V2, "Placed a pod", extra=kv(pod=_name(write.record), node=write.node))
        finally:
            self._writers.release()

    def _is_booked(self, write: Write) -> bool:
        """Returns whether the node is still kept for the pod: the bookings of a large group may end before its last
        writes begin, and another pod may have the room by then."""
        placement = self._ledger.placements.of(write.record.uid)
        return placement is not None and not placement.is_seen and placement.node == write.node

    async def _prepared_and_written(self, write: Write) -> bool:
        """Returns False if the pod has changed, or cannot be prepared now. Raises ApiError."""
        steps = self._prebinds if write.node else ()
        # The pods of a group are decided at once, so they are written in order where they mind it.
        minds_order = write.decision and write.node and self._ledger.gates.minds_order(write.record, write.node)
        waits = minds_order or any(step.wait_s(write.record) for step in steps)
        async with self._steps.setdefault(write.node, asyncio.Lock()) if waits else contextlib.nullcontext():
            prepared, record, is_written = list[PreBind](), write.record, False
            try:
                for step in steps:
                    record, problem = await step.prebind(record, write.node, partial(self._book_again, write.node))
                    prepared.append(step)
                    if problem:
                        log.warning(
                            "Pod cannot be placed yet", extra=kv(pod=_name(record), node=write.node, why=problem)
                        )
                        self._ledger.retract(write.record.uid, pause=_PREPARED_S)
                        return False
                is_written = self._is_booked(write) and await self._written_or_set_aside(write)
                if is_written and waits:
                    # Placements on other nodes do not wait for this bind.
                    self._writers.release()
                    try:
                        await self._until_bound(record.uid)
                    finally:
                        await self._writers.acquire()
                return is_written
            except ApiError as exc:
                # Without an answer the gate may be open, and the pod needs what was prepared.
                is_written = not 0 < exc.status < 500
                raise
            finally:
                for step in prepared if not is_written else ():
                    await step.unreserve(record, write.node)

    async def _until_bound(self, uid: str) -> None:
        """Waits until a prepared pod is bound: its kubelet would give the labels of the next pod to this pod. The step
        of the next pod waits for pods that are bound and not admitted."""
        until = self._clock() + _KEPT_S
        while True:
            if uid not in self._ledger.placements or self._clock() >= until:
                return
            await asyncio.sleep(_IDLE_S)

    def _book_again(self, node: str, record: PodRecord) -> str:
        """Books a pod as it is now expected on its node. Returns "", as its kubelet takes it."""
        self._ledger.reservations.unplace(record.uid)
        self._ledger.reservations.place(record, node)
        return ""

    async def _written_or_set_aside(self, write: Write) -> bool:
        """As `_written`; a pod that has changed is tried again in its next version, or much later in this one."""
        is_written = await self._written(write)
        if not is_written:
            self._ledger.retract(write.record.uid, pause=_REFUSED_S)
        return is_written

    async def _written(self, write: Write) -> bool:
        """Returns False if the pod has changed. Raises ApiError."""
        record, version = write.record, write.record.status.version
        if write.form == "nominated" and write.node:
            # First, while no scheduler looks at the pod: kube-scheduler then keeps the room for it.
            answer = await nominate(self._api, record, write.node, version=version)
            if not answer:
                return False
            version = answer
        # A nominated pod may be bound elsewhere.
        predicted = self._ledger.predicted(record.uid, write.node) if write.form == "required" else _NO_ANNOTATION
        try:
            await self._api.request(
                "PATCH",
                paths.pod(record.namespace, record.name),
                body=msgspec.json.encode(patch(write, version, predicted)),
                content_type=MERGE_PATCH,
                timeout=_TIMEOUT_S,
            )
        except ApiError as exc:
            if exc.status not in CHANGED:
                raise
            return False
        return True

    def _note_failure(self, write: Write, exc: ApiError) -> None:
        if self._failures.is_change(f"{exc.status} {exc.reason}"):
            log.warning("Cannot place a pod", extra=kv(pod=_name(write.record), node=write.node, why=exc))
        self._ledger.count("placement_failed")
        # Without permission every write fails, so the pause keeps the failures rare. Writes that were under way when it
        # began make it no longer, unless the server says so.
        now = self._clock()
        pause = self._backoff.next_delay(at_least=exc.retry_after) if now >= self._paused_until else exc.retry_after
        self._paused_until = max(self._paused_until, now + (pause or 0.0))
        # Without an answer, or after a 5xx status, the placement may be written.
        if 0 < exc.status < 500:
            self._ledger.retract(write.record.uid, pause=0.0 if exc.status in _OF_ALL_PODS else _REFUSED_S)

    # Placements that came to nothing

    async def _end_lost(self) -> None:
        backoff = Backoff()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = self._clock()
            lost = {placement.record.uid: placement for placement in self._decisions.lost()}
            self._lost = {uid: self._lost.get(uid, now + _LOST_S) for uid in lost}
            for record, since in list(self._ledger.placements.gated_by_others.values()):
                if now - since >= _OTHERS_S and not self._told.get(_of_gates(record)):
                    await self._tell_of_gates(record)
            for uid, placement in lost.items():
                if now < self._lost[uid]:
                    continue
                try:
                    if await self._end(placement):
                        self._lost[uid] = inf
                except ApiError as exc:
                    if self._failures.is_change(f"{exc.status} {exc.reason}"):
                        log.warning("Cannot end a lost placement", extra=kv(pod=_name(placement.record), why=exc))
                    # The others first: what fails may be this pod alone.
                    self._lost[uid] = now + _LOST_S
                    await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))
                    break
                backoff.reset()

    async def _tell_of_gates(self, record: PodRecord) -> None:
        """Of two controllers that each want to open the last gate none ever does."""
        self._told.put(_of_gates(record), True)
        unknown = [name for name in record.status.gates if name != GATE and not name.startswith(_WELL_KNOWN)]
        if not unknown:
            return
        note = (
            f"topowise places the pod once its other scheduling gates are removed: {', '.join(unknown)}. If their "
            f"controller waits for {GATE} in turn, the pod waits for ever."
        )
        with contextlib.suppress(ApiError):
            await events.post(self._api, record, "OtherGates", note, kind="Normal", action="Place")

    async def _end(self, placement: Placement) -> bool:
        """Returns False if the placement may have to be ended later. Raises ApiError."""
        record, path = placement.record, paths.pod(placement.record.namespace, placement.record.name)
        try:
            pod: dict[str, Any] = json.loads(await self._api.request("GET", path, timeout=_TIMEOUT_S))
            metadata, spec = pod["metadata"], pod["spec"]
            is_over = metadata.get("uid") != record.uid or "deletionTimestamp" in metadata or spec.get("nodeName")
            if is_over or not _requires(spec, placement.node):
                return True
            if (pod.get("status") or {}).get("nominatedNodeName"):
                return False
            owner = next((one["kind"] for one in metadata.get("ownerReferences") or () if one.get("controller")), "")
            remade = owner not in ("", _JOB)
            if not self._told.get(record.uid):
                why = f"kube-scheduler finds no room on {placement.node}, the only node that the pod may go to"
                then = "it is deleted, and its controller makes another" if remade else "delete it, and make another"
                await events.post(self._api, record, "PlacementLost", f"{why}: {then}.", kind="Warning", action="Place")
                self._told.put(record.uid, True)
            if remade:
                conditions = {"uid": record.uid, "resourceVersion": metadata["resourceVersion"]}
                body = msgspec.json.encode({"preconditions": conditions})
                await self._api.request("DELETE", path, body=body, timeout=_TIMEOUT_S)
                self._ledger.count("placement_remade")
        except ApiError as exc:
            if exc.status not in CHANGED:
                raise
            return False
        return True


def _requires(spec: Mapping[str, Any], node: str) -> bool:
    """Returns whether a pod may go to this node alone; a nominated pod may go to others too."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    fields = [field for term in required.get("nodeSelectorTerms") or () for field in term.get("matchFields") or ()]
    return any(field["key"] == "metadata.name" and field.get("values") == [node] for field in fields)


def patch(write: Write, version: str, predicted: Mapping[str, str] = _NO_ANNOTATION) -> dict[str, Any]:
    """Returns the merge patch that names the node and removes the gate from a pod in this version. `predicted` is the
    annotation with its predicted allocation."""
    record = write.record
    annotations = {PLACED_ON: write.node, **predicted}
    if write.decision:
        annotations[DECISION] = write.decision
    gates = [{"name": name} for name in record.status.gates if name != GATE]
    spec: dict[str, Any] = {"schedulingGates": gates or None}
    if write.node and write.form == "required":
        required = {"nodeSelectorTerms": _terms(record, write.node)}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    metadata = {"uid": record.uid, "resourceVersion": version, "annotations": annotations}
    return {"metadata": metadata, "spec": spec}


def _terms(record: PodRecord, node: str) -> list[dict[str, Any]]:
    """Returns the pod's required terms, each with the node's name; a gated pod's terms may only become narrower."""
    named = Requirement("metadata.name", "In", (node,))
    affinity = record.constraints and record.constraints.spec.affinity and record.constraints.spec.affinity.nodeAffinity
    required = (affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution) or NodeSelector()
    terms: list[dict[str, Any]] = []
    for term in required.nodeSelectorTerms or (Term(),):
        # An empty term matches nothing, and stays as it is.
        is_empty = bool(required.nodeSelectorTerms) and not (term.matchExpressions or term.matchFields)
        fields = term.matchFields or () if is_empty else (*(term.matchFields or ()), named)
        entries = {"matchExpressions": term.matchExpressions, "matchFields": fields}
        terms.append({key: msgspec.to_builtins(entry) for key, entry in entries.items() if entry})
    return terms


def _of_gates(record: PodRecord) -> str:
    """Returns the key of the event about other gates; the UID is that of the event about a lost placement."""
    return f"gates of {record.uid}"


def _name(record: PodRecord) -> str:
    return f"{record.namespace}/{record.name}"
