"""Writes the decisions to their pods, several at a time, and ends placements that came to nothing.

A write names UID and resourceVersion of the pod that was decided on, so that it changes no other pod and overwrites no
other writer. After a failed write:

- the pod has changed or is gone (409, 404, 422): its next event leads to another decision;
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
import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
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
_PREPARED_S: Final = 10.0
# After a change of the leader: longer than a write takes, so that its event is seen before anything is decided.
_SETTLING_S: Final = 2 * _TIMEOUT_S
# For so long kube-scheduler may have no room for a placed pod on its node.
_LOST_S: Final = 30.0
_LOOK_S: Final = 1.0
_JOB: Final = "Job"
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
        # By UID: since when a placed pod cannot be bound, and pods that nothing more is done about.
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
            else:
                self._ledger.retract(write.record.uid)
        finally:
            self._writers.release()

    async def _prepared_and_written(self, write: Write) -> bool:
        """Returns False if the pod has changed, or cannot be prepared now. Raises ApiError."""
        steps = [step for step in self._prebinds if write.node and step.wait_s(write.record)]
        if not steps:
            return await self._written(write)
        async with self._steps.setdefault(write.node, asyncio.Lock()):
            prepared, record, is_written = [], write.record, False
            try:
                for step in steps:
                    record, problem = await step.prebind(record, write.node, partial(self._book_again, write.node))
                    prepared.append(step)
                    if problem:
                        log.warning(
                            "Pod cannot be placed yet", extra=kv(pod=_name(record), node=write.node, why=problem)
                        )
                        return False
                is_written = await self._written(write)
                if is_written:
                    await self._until_bound(record.uid)
                return is_written
            finally:
                for step in prepared if not is_written else ():
                    await step.unreserve(record, write.node)

    async def _until_bound(self, uid: str) -> None:
        """Waits until a prepared pod is bound: its kubelet would give the labels of the next pod to this pod. The step
        of the next pod waits for pods that are bound and not admitted."""
        until = self._clock() + _PREPARED_S
        while True:
            if uid not in self._ledger.placements or self._clock() >= until:
                return
            await asyncio.sleep(_IDLE_S)

    def _book_again(self, node: str, record: PodRecord) -> str:
        """Books a pod as it is now expected on its node. Returns "", as its kubelet takes it."""
        self._ledger.reservations.unplace(record.uid)
        self._ledger.reservations.place(record, node)
        return ""

    async def _written(self, write: Write) -> bool:
        """Returns False if the pod has changed. Raises ApiError."""
        record, version = write.record, write.record.status.version
        if write.form == "nominated" and write.node:
            # First, while no scheduler looks at the pod: kube-scheduler then keeps the room for it.
            answer = await nominate(self._api, record, write.node, version=version)
            if not answer:
                return False
            version = answer
        try:
            await self._api.request(
                "PATCH",
                paths.pod(record.namespace, record.name),
                body=msgspec.json.encode(patch(write, version)),
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
        # Without permission every write fails, so the pause keeps the failures rare.
        pause = self._backoff.next_delay(at_least=exc.retry_after)
        self._paused_until = max(self._paused_until, self._clock() + pause)
        # Without an answer, or after a 5xx status, the placement may be written.
        if 0 < exc.status < 500:
            self._ledger.retract(write.record.uid)

    # Placements that came to nothing

    async def _end_lost(self) -> None:
        backoff = Backoff()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = self._clock()
            lost = {placement.record.uid: placement for placement in self._decisions.lost()}
            self._lost = {uid: self._lost.get(uid, now) for uid in lost}
            for uid, placement in lost.items():
                if now - self._lost[uid] < _LOST_S or self._told.get(uid):
                    continue
                try:
                    await self._end(placement)
                except ApiError as exc:
                    if self._failures.is_change(f"{exc.status} {exc.reason}"):
                        log.warning("Cannot end a lost placement", extra=kv(pod=_name(placement.record), why=exc))
                    await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))
                    break
                backoff.reset()
                self._told.put(uid, True)

    async def _end(self, placement: Placement) -> None:
        """Raises ApiError."""
        record, path = placement.record, paths.pod(placement.record.namespace, placement.record.name)
        try:
            pod: dict[str, Any] = json.loads(await self._api.request("GET", path, timeout=_TIMEOUT_S))
            metadata, spec = pod["metadata"], pod["spec"]
            is_over = metadata.get("uid") != record.uid or "deletionTimestamp" in metadata or spec.get("nodeName")
            if is_over or (pod.get("status") or {}).get("nominatedNodeName"):
                return
            owner = next((one["kind"] for one in metadata.get("ownerReferences") or () if one.get("controller")), "")
            remade = owner not in ("", _JOB)
            then = "it is deleted, and its controller makes another" if remade else "delete it, and make another"
            note = f"kube-scheduler finds no room on {placement.node}, the only node that the pod may go to: {then}."
            await events.post(self._api, record, "PlacementLost", note, kind="Warning", action="Place")
            if remade:
                conditions = {"uid": record.uid, "resourceVersion": metadata["resourceVersion"]}
                body = msgspec.json.encode({"preconditions": conditions})
                await self._api.request("DELETE", path, body=body, timeout=_TIMEOUT_S)
                self._ledger.count("placement_remade")
        except ApiError as exc:
            if exc.status not in CHANGED:
                raise


def patch(write: Write, version: str) -> dict[str, Any]:
    """Returns the merge patch that names the node and removes the gate from a pod in this version."""
    record = write.record
    annotations = {PLACED_ON: write.node}
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


def _name(record: PodRecord) -> str:
    return f"{record.namespace}/{record.name}"
