"""Decides Kueue's AdmissionChecks of our controller name: does a Workload fit at once, aligned?

Kueue reserves the quota of a Workload first, then waits for its checks, then starts its pods. The leader places the
pods of the Workload together on copies of the nodes (overlay/fit_together.py). If all fit, they are reserved for a
while and the check is Ready; each pod of the job takes the place of a reserved copy when kube-scheduler asks for it. If
not all fit, the check is Retry with a pause, or Rejected if no node could take a pod even if it were empty. With
scale-up it stays Pending while nodes for the missing pods are requested, and the other pods keep their reservations.

Invariant: the states on the Workloads are the state. Every replica reserves for the pods of Ready Workloads that are
not bound yet, for the rest of the time: kube-scheduler may ask any replica, and a new leader decides after that.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from topowise.bounded import Bounded
from topowise.errors import ApiError, ParseError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime import clock
from topowise.runtime.event_loop import collected
from topowise.runtime.log import OncePerChange, kv
from topowise_scheduler.controllers import controller, events, objects
from topowise_scheduler.controllers import kueue_objects as kueue
from topowise_scheduler.controllers.kueue_objects import AdmissionCheck, Flavor, FlavorSpec, State, Workload
from topowise_scheduler.controllers.scale_up_demand import is_examined, left_over
from topowise_scheduler.controllers.workload_pods import WorkloadPods
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.refusal_texts import not_together
from topowise_scheduler.explain.text import plural
from topowise_scheduler.overlay.fit_together import MOST_PODS, FitTogether, FitTogetherService, GroupPlacement
from topowise_scheduler.report import timestamps
from topowise_scheduler.verdicts.kube_scheduler import Pod

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5
# AdmissionChecks and ResourceFlavors change rarely.
_RELIST_S: Final = 30.0
_MOST_BYTES: Final = 64 << 20
_RESERVATIONS: Final = "reservations"
# Both versions have the fields that are read and written.
_WORKLOADS: Final = (f"{kueue.GROUP}/v1beta1/workloads", f"{kueue.GROUP}/v1beta2/workloads")
# Seconds for which the pods of an admitted Workload are reserved: their controller makes them, and kube-scheduler asks
# for them, within some seconds.
_HOLD_S: Final = 120.0
# Seconds for which other controllers wait for the first decisions of a leader.
_FIRST_S: Final = 60.0
_decode_workload: Final = msgspec.json.Decoder(Workload).decode


class _Checks(msgspec.Struct, frozen=True):
    items: tuple[AdmissionCheck, ...] = ()


class _Flavors(msgspec.Struct, frozen=True):
    items: tuple[Flavor, ...] = ()


_decode_checks: Final = msgspec.json.Decoder(_Checks).decode
_decode_flavors: Final = msgspec.json.Decoder(_Flavors).decode


class _Kept(msgspec.Struct, frozen=True):
    """A Workload that may have a check to decide or pods to reserve for, and its size in bytes."""

    workload: Workload
    size: int


class AdmissionChecks:
    """Decides checks while `is_leader`.

    `nodes`: takes the pods that need new nodes, None without scale-up.
    """

    def __init__(
        self,
        api: Api,
        view: ClusterView,
        fitting: FitTogetherService,
        *,
        nodes: WorkloadPods | None = None,
        is_leader: Callable[[], bool] = lambda: True,
        not_ready: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._api, self._ledger, self._view, self._fitting = api, view.ledger, view, fitting
        self._nodes = nodes
        self._is_leader, self._not_ready = is_leader, not_ready
        self._workloads: Bounded[str, _Kept] = Bounded(_MOST_BYTES, lambda _, kept: kept.size)
        self._source = Reflector(api, _WORKLOADS[0], self._decode, self, instead=_WORKLOADS[1:])
        self._listed_at = float("-inf")
        self._checks: frozenset[str] = frozenset()
        self._flavors: dict[str, FlavorSpec] = {}
        self._leads_since = clock.monotonic()
        # UIDs of the Workloads that this leader has yet to decide for the first time, None before it knows them.
        self._undecided: set[str] | None = None
        # UIDs of Ready Workloads without pods to reserve for.
        self._started: set[str] = set()
        self._problems = OncePerChange()

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._source.run(), name="workloads")
            tasks.create_task(
                controller.run("decide an admission check", self.due, self.settle, interval=_INTERVAL_S),
                name="admission checks",
            )
            tasks.create_task(
                controller.run("read admission checks", self._relist, self.relist, interval=_INTERVAL_S), name="checks"
            )

    @property
    def _base(self) -> str:
        """The path of Kueue's API, in the version that the API server has."""
        return self._source.path.rpartition("/")[0]

    # As Consumer of Workloads

    def replace(self, items: list[_Kept]) -> None:
        """Everything there is."""
        self._workloads.clear()
        for item in items:
            self.apply("ADDED", item)

    def apply(self, event: EventType, item: _Kept) -> None:
        """Keeps the Workloads with reserved quota that are not admitted yet, or have been admitted just now."""
        uid = item.workload.metadata.uid
        if event != "DELETED" and self._is_kept(item.workload):
            self._workloads.put(uid, item)
        else:
            self._workloads.pop(uid)

    def _is_kept(self, workload: Workload) -> bool:
        is_new = clock.wall() - workload.changed_at < _HOLD_S
        return workload.is_current and (is_new or not workload.is_true("Admitted"))

    @staticmethod
    def _decode(raw: bytes | msgspec.Raw) -> _Kept:
        return _Kept(_decode_workload(raw), memoryview(raw).nbytes)

    # Checks

    def due(self) -> Mapping[str, Workload | None]:
        """Returns the Workloads with a check to decide, by UID, in the order of priority and age. None precedes them if
        a Ready Workload lacks its reservation."""
        if not (is_leader := self._is_leader()):
            self._leads_since = clock.monotonic()
        if self._not_ready() or not self._is_known:
            return {}
        for uid, kept in list(self._workloads.items()):
            if not self._is_kept(kept.workload):
                self._workloads.pop(uid)
        workloads = [kept.workload for _, kept in self._workloads.items()]
        waiting = [workload for workload in workloads if is_leader and workload.pending(self._checks)]
        uids = {workload.metadata.uid for workload in waiting}
        self._undecided = (uids if self._undecided is None else self._undecided & uids) if is_leader else None
        for uid in () if self._nodes is None else self._nodes.keep(uids | self._ready()):
            self._fitting.release(uid)
        waiting.sort(key=lambda item: (-(item.spec.priority or 0), item.metadata.creationTimestamp, item.metadata.uid))
        lost: dict[str, Workload | None] = {_RESERVATIONS: None} if any(map(self._lacks_places, workloads)) else {}
        return lost | {workload.metadata.uid: workload for workload in waiting}

    @property
    def _is_known(self) -> bool:
        """Whether our checks and all Workloads have been listed."""
        return self._listed_at > float("-inf") and self._source.synced

    def undecided(self) -> str | None:
        """Returns what this leader has yet to decide for the first time, None once it has, or if Kueue's objects cannot
        be listed for a while."""
        if clock.monotonic() > self._leads_since + _FIRST_S:
            return None
        if self._undecided is None:
            return "the Workloads are not listed"
        return f"{plural(len(self._undecided), 'Workload')} not decided" if self._undecided else None

    async def settle(self, workload: Workload | None) -> None:
        """Decides the check of a Workload, or reserves for Ready Workloads. Raises ApiError."""
        if workload is None:
            await self._reserve()
        else:
            await self.decide(workload)

    def _relist(self) -> Mapping[str, str]:
        return {"all": ""} if self._source.synced and clock.monotonic() >= self._listed_at + _RELIST_S else {}

    async def relist(self, _: str = "") -> None:
        """Reads our checks and the flavors, and marks our checks as active. Raises ApiError."""
        listed = await objects.read(self._api, f"{self._base}/admissionchecks", _decode_checks)
        checks = [check for check in listed.items if check.is_ours]
        flavors = await objects.read(self._api, f"{self._base}/resourceflavors", _decode_flavors)
        self._flavors = {item.metadata.name: item.spec for item in flavors.items}
        for check in checks:
            if not check.is_active and self._is_leader():
                path = paths.path(f"{self._base}/admissionchecks", check.metadata.name, "status")
                await objects.patch(self._api, path, kueue.active_patch(check, clock.wall()))
        self._checks = frozenset(check.metadata.name for check in checks)
        self._listed_at = clock.monotonic()

    async def decide(self, workload: Workload) -> None:
        """Decides the check of a Workload. Raises ApiError."""
        state, message = await self._decision(workload)
        meta = workload.metadata
        body = kueue.patch(workload, workload.pending(self._checks), state, message, clock.wall())
        path = paths.path(f"{self._base}/namespaces", meta.namespace, "workloads", meta.name, "status")
        if self._undecided:
            self._undecided.discard(meta.uid)
        if state == "Pending":
            if message != workload.message(workload.pending(self._checks)):
                await objects.patch(self._api, path, body)
            return
        if not await objects.patch(self._api, path, body):
            self._fitting.release(meta.uid)
            return
        self._workloads.pop(meta.uid)
        self._ledger.count(f"admission_check_{state.lower()}")
        if state != "Ready":
            await self._post(workload, state, message)
        log.info(
            "Decided an admission check", extra=kv(workload=f"{meta.namespace}/{meta.name}", state=state, why=message)
        )

    async def _post(self, workload: Workload, state: State, message: str) -> None:
        """Posts the message as an event: Kueue resets the check when it evicts the Workload."""
        meta, version = workload.metadata, self._base.rpartition("/")[2]
        reason = f"AlignmentCheck{state}"
        try:
            await events.post_about_workload(self._api, version, meta.namespace, meta.name, meta.uid, reason, message)
        except ApiError as exc:
            # The namespace is being deleted.
            if exc.is_general:
                raise

    async def _decision(self, workload: Workload) -> tuple[State, str]:
        # A count may be any number.
        pods = tuple(islice(kueue.pods_of(workload, self._flavors), MOST_PODS + 1))
        if not pods:
            return "Ready", "The workload has no pods"
        if len(pods) > MOST_PODS:
            return (
                "Rejected",
                f"The workload has more than {MOST_PODS} pods, expected at most so many to place together",
            )
        seconds = int(_HOLD_S)
        self._release(workload.metadata.uid)
        try:
            request = FitTogether(pods=pods, reserve_seconds=seconds)
            placement, _ = await self._fitting.fit(request, hand_over=True, name=workload.metadata.uid)
        except ParseError as exc:
            return "Retry", str(exc)
        if placement.fits:
            if self._nodes is not None:
                self._nodes.fits(workload.metadata.uid, _nodes_of(workload, placement))
            return "Ready", f"{plural(len(pods), 'pod')} fit together, aligned; reserved for {seconds} s"
        why = not_together(placement.refused, placement.refusing)
        why = f"{len(placement.placements)} of {plural(len(pods), 'pod')} fit together: {why}"
        if self._nodes is not None:
            refusal = await self._request_nodes(self._nodes, workload, pods)
            if not refusal:
                text = "waits for a decision about new nodes" if refusal is None else "new nodes are requested"
                return "Pending", f"{why}; {text}"
            why = f"{why}; no node is requested: {refusal}"
            self._nodes.drop(workload.metadata.uid)
            self._fitting.release(workload.metadata.uid)
        return ("Rejected" if await self._is_hopeless(pods, placement) else "Retry"), why

    def _release(self, workload: str) -> None:
        """Ends the reservations of an attempt whose answer could not be written, and of a Workload that waits for
        nodes."""
        self._fitting.release(workload)
        for uid in () if self._nodes is None else self._nodes.uids(workload):
            self._ledger.reservations.release(uid)

    async def _request_nodes(self, nodes: WorkloadPods, workload: Workload, pods: Sequence[Pod]) -> str | None:
        """Wants nodes for the pods without a place, and reserves for the others. Returns why no node is requested, ""
        if nodes are, None if that is not decided yet."""
        uid = workload.metadata.uid
        missing = await left_over(self._view.trial, [_with_uid(workload, pod) for pod in pods])
        records = [self._view.trial.record(pod) for pod in missing]
        if not records or not all(is_examined(self._ledger.gates, record) for record in records):
            return "a pod has requirements that are not checked" if records else "the cluster has changed"
        names = {pod.metadata.name for pod in missing}
        placed: Mapping[str, str] = {}
        if rest := tuple([pod for pod in pods if pod.metadata.name not in names]):
            request = FitTogether(pods=rest, reserve_seconds=int(_HOLD_S))
            try:
                placement, _ = await self._fitting.fit(request, name=uid)
            except ParseError as exc:
                return str(exc)
            placed = _nodes_of(workload, placement) if placement.fits else {}
        nodes.put(uid, records, placed)
        return nodes.answer(uid)

    async def _is_hopeless(self, pods: tuple[Pod, ...], placement: GroupPlacement) -> bool:
        """Returns whether no node could take the refused pod even if it were empty."""
        record = self._view.trial.record(pods[len(placement.placements)])
        verdicts = await collected(self._view.verdicts(record, self._view.trial.names))
        return bool(verdicts) and all(node.otherwise == "never" for node in verdicts)

    # Reservations of Ready Workloads

    def _ready(self) -> set[str]:
        """Returns the UIDs of the Workloads whose check is Ready."""
        workloads = [kept.workload for _, kept in self._workloads.items()]
        return {item.metadata.uid for item in workloads if item.ready_since(self._checks) is not None}

    def _lacks_places(self, workload: Workload) -> bool:
        """Returns whether the check of the Workload is Ready, and this process does not reserve for its pods."""
        uid, since = workload.metadata.uid, workload.ready_since(self._checks)
        if since is None or since + _HOLD_S <= clock.wall():
            return False
        return uid not in self._started and not self._fitting.is_reserved(uid)

    async def _reserve(self) -> None:
        """Reserves for the pods that are not bound yet, as the leader that has decided the checks."""
        workloads = [kept.workload for _, kept in self._workloads.items()]
        ready = sorted([(since, item) for item in workloads if (since := item.ready_since(self._checks))], key=_since)
        namespaces = {workload.metadata.namespace for _, workload in ready}
        bound: dict[tuple[str, bytes], list[float]] = {}
        for key, started in sorted(await collected(self._bound(namespaces))):
            bound.setdefault(key, []).append(started)
        unbound = {workload.metadata.uid: self._unbound(since, workload, bound) for since, workload in ready}
        self._started = {uid for uid, pods in unbound.items() if not pods}
        for since, workload in ready:
            uid = workload.metadata.uid
            if not self._lacks_places(workload):
                continue
            seconds = int(since + _HOLD_S - clock.wall()) + 1
            try:
                request = FitTogether(pods=tuple(unbound[uid]), reserve_seconds=seconds)
                placement, _ = await self._fitting.fit(request, hand_over=True, name=uid)
                why = not_together(placement.refused, placement.refusing)
            except ParseError as exc:
                why = str(exc)
            name, pods = f"{workload.metadata.namespace}/{workload.metadata.name}", len(unbound[uid])
            if not why:
                log.info("Reserved for a Ready Workload", extra=kv(workload=name, pods=pods, seconds=seconds))
            elif self._problems.is_change(name):
                log.warning("Cannot reserve for a Ready Workload", extra=kv(workload=name, pods=pods, why=why))

    def _bound(self, namespaces: Collection[str]) -> Iterator[tuple[tuple[str, bytes], float]]:
        """Yields namespace and shape of each bound pod of these namespaces, and when it was started."""
        for name in self._view.trial.names:
            for record in self._ledger.pods_on(name):
                if record.namespace in namespaces:
                    yield (record.namespace, record.shape), timestamps.seconds(record.status.started)

    def _unbound(self, since: float, workload: Workload, bound: Mapping[tuple[str, bytes], list[float]]) -> list[Pod]:
        """Returns the pods of a Ready Workload without a node, and takes the others from `bound`: like a reserved
        place, any pod of the namespace with equal requests that was started since then is a pod of the Workload."""
        missing = []
        for pod in islice(kueue.pods_of(workload, self._flavors), MOST_PODS):
            started = bound.get((pod.metadata.namespace, self._view.trial.record(pod).shape), [])
            at = bisect_left(started, since)
            if at < len(started):
                del started[at]
            else:
                missing.append(pod)
        return missing


def _with_uid(workload: Workload, pod: Pod) -> Pod:
    uid = f"{workload.metadata.uid}/{pod.metadata.name}"
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=uid))


def _nodes_of(workload: Workload, placement: GroupPlacement) -> dict[str, str]:
    """Returns the node of each placed pod, by the UID of `_with_uid`."""
    return {f"{workload.metadata.uid}/{pod.record.name}": pod.node for pod in placement.placements}


def _since(item: tuple[float, Workload]) -> float:
    return item[0]
