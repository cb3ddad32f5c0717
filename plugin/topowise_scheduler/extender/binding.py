"""The bind verb: the last check, the reservation and the Binding, sequentially per node.

kube-scheduler binds a pod while it decides the next pods, so the node may have changed since the answer. The bind verb
places the pod again on the present state. If the pod does not fit any more, kube-scheduler decides again after a
second; a refusal by the kubelet would fail the pod.
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from topowise import pods
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime.log import kv
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler import predicted_annotation
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord, Records
from topowise_scheduler.extender import wire
from topowise_scheduler.extender.replies import BadRequestError, NotReady, Observer, Reply
from topowise_scheduler.extender.steering import NodeSteering
from topowise_scheduler.steering.choice import Choice

if TYPE_CHECKING:
    from topowise_scheduler.extender.claims import ClaimReader

log = logging.getLogger(__name__)

# Together less than the 2 s of kube-scheduler's httpTimeout in our documentation.
_WAIT_S = 0.5
_TIMEOUT_S = 1.3
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


class Binder:
    """Binds pods to nodes."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        records: Records,
        not_ready: NotReady,
        *,
        observer: Observer | None = None,
        tells_prediction: bool = True,
        steering: NodeSteering | None = None,
        claims: ClaimReader | None = None,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._records = records
        self._not_ready = not_ready
        self._observer = observer
        self._tells_prediction = tells_prediction
        self._steering = steering
        self._claims = claims
        # A steered bind waits for its own label and for the end of the label before.
        self._wait = _WAIT_S if steering is None else _WAIT_S + 2 * steering.wait
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

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
            if self._claims is not None and self._claims.may_be_extended(record):
                record = await self._read(args)
        except ApiError as exc:
            return _without_uids(f"pod cannot be read: {exc}")
        if record.needs is None:
            return f"pod cannot be placed: {record.problem}"
        if self._claims is not None and record.claims:
            problem = await self._claims.read(record)
            if problem and self._ledger.gates.claimed.is_required(record):
                return problem
        try:
            async with asyncio.timeout(self._wait):
                lock = self._locks.setdefault(args.Node, asyncio.Lock())
                await lock.acquire()
        except TimeoutError:
            return f"another bind to {args.Node} takes too long"
        # A kubelet places pods in the order of their Bindings, so Bindings must follow the order of reservations.
        try:
            return await self._book_and_bind(args, record, record.needs)
        finally:
            lock.release()

    async def _book_and_bind(self, args: wire.ExtenderBindingArgs, record: PodRecord, needs: pods.Needs) -> str:
        problem = await self._book(args.Node, record, needs)
        if problem:
            self._ledger.gates.claims.note_refused(record, args.Node, self._ledger.clock())
            return problem
        try:
            path = paths.pod(args.PodNamespace, args.PodName, "binding")
            await self._api.request("POST", path, body=self._binding(args), timeout=_TIMEOUT_S)
        except ApiError as exc:
            self._ledger.reservations.forget(args.PodUID, args.Node)
            # Without an answer, or after a 5xx status, the pod may be bound.
            if not exc.status or exc.status >= 500:
                self._keep_reservation(record, args.Node)
            elif self._steering is not None:
                await self._steering.withdraw(args.Node, args.PodUID)
            return _without_uids(f"binding failed: {exc}")
        except asyncio.CancelledError:
            self._ledger.reservations.forget(args.PodUID, args.Node)
            self._keep_reservation(record, args.Node)
            raise
        return ""

    async def _book(self, node: str, record: PodRecord, needs: pods.Needs) -> str:
        """Books the pod on the node, steered if a NUMA node is chosen. Returns why it is not booked, "" if it is."""
        reservations = self._ledger.reservations
        if self._steering is not None and _markers(needs):
            problem = await self._steering.rest(node)
            if problem:
                return problem
            choice = self._ledger.gates.numa_node.choice(record, node)
            if choice.numa is not None:
                problem = await self._book_steered(self._steering, node, record, needs, choice)
                if not problem or choice.is_required:
                    return problem
                log.warning("Pod is not steered", extra=kv(node=node, why=_without_uids(problem)))
                problem = await self._steering.rest(node)
                if problem:
                    return problem
        reason = reservations.assume(record, needs, node)
        return f"kubelet of {node} would refuse the pod now: {reason}" if reason else ""

    async def _book_steered(
        self, steering: NodeSteering, node: str, record: PodRecord, needs: pods.Needs, choice: Choice
    ) -> str:
        """Books the pod and has the markers labelled. Returns why the pod is not steered, "" if it is."""
        problem = await steering.admission(node)
        if problem:
            return problem
        numa, is_required = choice.numa, choice.is_required
        assert numa is not None
        reservations, steered = self._ledger.reservations, msgspec.structs.replace(record, steered=numa)

        def book() -> str:
            refusal = reservations.assume(steered, needs, node)
            return f"kubelet of {node} would refuse the pod on NUMA node {numa} now: {refusal}" if refusal else ""

        problem = book()
        if problem:
            return problem
        problem = "cancelled"
        try:
            # The node may have changed while the service waited.
            problem = await steering.request(node, record.uid, numa, _markers(needs), is_required=is_required) or book()
        finally:
            if problem:
                reservations.forget(record.uid, node)
                await steering.withdraw(node, record.uid)
        return problem

    def _binding(self, args: wire.ExtenderBindingArgs) -> bytes:
        # With the uid, the API server refuses to bind a new pod of the same name.
        metadata = {"name": args.PodName, "namespace": args.PodNamespace, "uid": args.PodUID}
        return msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {**metadata, "annotations": self._prediction(args)},
                "target": {"apiVersion": "v1", "kind": "Node", "name": args.Node},
            }
        )

    def _prediction(self, args: wire.ExtenderBindingArgs) -> dict[str, str]:
        state = self._ledger.node_states.of(args.Node)
        if not self._tells_prediction or state is None or state.kubelet is None or state.report is None:
            return {}
        if args.PodUID not in state.kubelet.active:
            return {}
        return predicted_annotation.for_binding(state.kubelet, args.PodUID, has_ids=state.report.precision == "exact")

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


def _markers(needs: pods.Needs) -> int:
    """Returns the number of containers that request a marker."""
    return sum(bool(container.limits.get(MARKER)) for container in needs.containers)


def _without_uids(text: str) -> str:
    """Redacts UIDs: a UID authorises a bind."""
    return _UID.sub("(uid)", text)


def refuse(problem: str) -> Reply:
    """After an error, kube-scheduler tries the pod again with a back-off."""
    return Reply(wire.encode(wire.ExtenderBindingResult(problem)), problem=problem)
