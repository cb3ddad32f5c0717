"""The bind verb: the last check, the reservation and the Binding, sequentially per node.

Before that come the steps of options (`PreBind`). A step that waits for the node runs sequentially per node, for the
pods alone that it concerns: an option that hangs delays no other pod.

kube-scheduler binds a pod while it decides the next pods, so the node may have changed since the answer. The bind verb
places the pod again on the present state. If the pod does not fit any more, kube-scheduler decides again after a
second; a refusal by the kubelet would fail the pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias
from weakref import WeakValueDictionary

import msgspec

from topowise import pods
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.text import without_uids
from topowise_scheduler.explain import refusal_texts
from topowise_scheduler.ledger.gates.option import PreBind
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.pods.records import PodRecord, Records
from topowise_scheduler.serve.extender import wire
from topowise_scheduler.serve.extender.replies import BadRequestError, NotReady, Observer, Reply

# Together less than the 2 s of kube-scheduler's httpTimeout in our documentation.
_WAIT_S = 0.5
_TIMEOUT_S = 1.3

_Locks: TypeAlias = WeakValueDictionary[str, asyncio.Lock]


class Binder:
    """Binds pods to nodes. `prebinds` are the steps of options, in order."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        records: Records,
        not_ready: NotReady,
        *,
        observer: Observer | None = None,
        prebinds: Sequence[PreBind] = (),
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._records = records
        self._not_ready = not_ready
        self._observer = observer
        self._prebinds = prebinds
        self._locks: _Locks = WeakValueDictionary()
        # Of binds that wait for this step of an option. Other binds do not.
        self._step_locks: Sequence[_Locks] = [WeakValueDictionary() for _ in prebinds]

    async def bind(self, body: bytes) -> Reply:
        """ExtenderBindingArgs -> ExtenderBindingResult. Raises BadRequestError."""
        try:
            args = wire.decode_binding(body)
        except wire.UNREADABLE as exc:
            raise BadRequestError(f"request is not ExtenderBindingArgs: {exc}") from exc
        problem = self._not_ready()
        if problem is not None:
            problem = f"not ready: {problem}"
        error = problem or await self._bind(args)
        answer = wire.encode(wire.ExtenderBindingResult(error))
        return Reply(answer, partial(self._after_bind, args, error), problem or "")

    def _after_bind(self, args: wire.ExtenderBindingArgs, error: str, seconds: float) -> None:
        if self._observer is not None:
            self._observer.bound(f"{args.PodNamespace}/{args.PodName}", args.PodUID, args.Node, error, seconds)

    async def _bind(self, args: wire.ExtenderBindingArgs) -> str:
        """Returns the error, "" if the pod is bound."""
        try:
            record = self._ledger.remembered(args.PodUID) or await self._read(args)
            if any(step.reads_anew(record) for step in self._prebinds):
                record = await self._read(args)
        except ApiError as exc:
            return without_uids(f"pod cannot be read: {exc}")
        if record.needs is None:
            return f"pod cannot be placed: {record.problem}"
        with ExitStack() as locked:
            for step, locks in zip(self._prebinds, self._step_locks, strict=True):
                if wait_s := step.wait_s(record):
                    lock = locks.setdefault(args.Node, asyncio.Lock())
                    # Behind a bind that waits as long.
                    if problem := await _acquire(lock, args.Node, _WAIT_S + wait_s):
                        return problem
                    locked.callback(lock.release)
                record, problem = await step.prebind(record, args.Node, partial(self._book, args.Node))
                if problem:
                    self._note_refused(record, args.Node)
                    return problem
            return await self._book_and_bind(args, record)

    def _note_refused(self, record: PodRecord, node: str) -> None:
        for option in self._ledger.gates.options_for(record):
            option.unreserve(record, node, self._ledger.clock())

    async def _give_up(self, record: PodRecord, node: str) -> None:
        """A pod is not bound after the steps of options."""
        for step in self._prebinds:
            await step.unreserve(record, node)

    async def _book_and_bind(self, args: wire.ExtenderBindingArgs, record: PodRecord) -> str:
        """Returns the error, "" if the pod is bound."""
        # A kubelet places pods in the order of their Bindings, so Bindings must follow the order of reservations.
        lock, problem = self._locks.setdefault(args.Node, asyncio.Lock()), "cancelled"
        try:
            problem = await _acquire(lock, args.Node, _WAIT_S)
        finally:
            if problem:
                await self._give_up(record, args.Node)
        if problem:
            return problem
        try:
            problem = self._book(args.Node, record)
            if problem:
                self._note_refused(record, args.Node)
                await self._give_up(record, args.Node)
                return problem
            return await self._post(args, record)
        finally:
            lock.release()

    def _book(self, node: str, record: PodRecord) -> str:
        """Returns why the kubelet would refuse the pod, "" if the pod is booked. The pod's amounts must be readable."""
        assert record.needs is not None
        refusal = self._ledger.reservations.assume(record, record.needs, node)
        if refusal is None:
            return ""
        on_numa_node = "" if record.steered is None else f" on NUMA node {record.steered}"
        why = refusal_texts.at_bind(refusal, self._ledger, record.uid, node)
        return f"kubelet of {node} would refuse the pod{on_numa_node} now: {why}"

    async def _post(self, args: wire.ExtenderBindingArgs, record: PodRecord) -> str:
        """Posts the Binding of a booked pod. Returns the error, "" if the pod is bound."""
        try:
            path = paths.pod(args.PodNamespace, args.PodName, "binding")
            await self._api.request("POST", path, body=self._binding(args), timeout=_TIMEOUT_S)
        except ApiError as exc:
            self._ledger.reservations.forget(args.PodUID, args.Node)
            # Without an answer, or after a 5xx status, the pod may be bound.
            if not exc.status or exc.status >= 500:
                self._keep_reservation(record, args.Node)
            else:
                await self._give_up(record, args.Node)
            return without_uids(f"binding failed: {exc}")
        except asyncio.CancelledError:
            self._ledger.reservations.forget(args.PodUID, args.Node)
            self._keep_reservation(record, args.Node)
            raise
        return ""

    def _binding(self, args: wire.ExtenderBindingArgs) -> bytes:
        # With the uid, the API server refuses to bind a new pod of the same name.
        metadata = {"name": args.PodName, "namespace": args.PodNamespace, "uid": args.PodUID}
        return msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {**metadata, "annotations": self._ledger.predicted(args.PodUID, args.Node)},
                "target": {"apiVersion": "v1", "kind": "Node", "name": args.Node},
            }
        )

    def _keep_reservation(self, record: PodRecord, node: str) -> None:
        """The pod may be bound: its reservation stays until its next event, or until the reservation expires."""
        if record.needs is not None:
            self._ledger.reservations.put(record, record.needs, node)

    async def _read(self, args: wire.ExtenderBindingArgs) -> PodRecord:
        path = paths.pod(args.PodNamespace, args.PodName)
        try:
            record = self._records.record(pods.decode(await self._api.request("GET", path, timeout=_TIMEOUT_S)))
        except msgspec.DecodeError as exc:
            raise ApiError(0, "BadAnswer", f"is not a pod: {exc}", request=f"GET {path}") from exc
        if record.uid != args.PodUID:
            raise ApiError(409, "Conflict", "the pod of this name is another one by now", request=f"GET {path}")
        return record


async def _acquire(lock: asyncio.Lock, node: str, seconds: float) -> str:
    """Returns why the lock of a node is not acquired, "" if it is."""
    try:
        async with asyncio.timeout(seconds):
            await lock.acquire()
    except TimeoutError:
        return f"another bind to {node} takes too long"
    return ""


def refuse(problem: str) -> Reply:
    """After an error, kube-scheduler tries the pod again with a back-off."""
    return Reply(wire.encode(wire.ExtenderBindingResult(problem)), problem=problem)
