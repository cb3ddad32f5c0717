"""Decides Kueue's AdmissionChecks of our controller name: does a Workload fit at once, aligned?

Kueue reserves the quota of a Workload first, then waits for its checks, then starts its pods. The leader places the
pods of the Workload together on copies of the nodes (fit_together/). If all fit, they are reserved for a while and the
check is Ready; each pod of the job takes the place of a reserved copy when kube-scheduler asks for it. If not all fit,
the check is Retry with a pause, or Rejected if no node could take a pod even if it were empty.

Invariant: the states on the Workloads are the state. A new leader decides the checks that are Pending; reservations of
the last leader are lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from topowise.bounded import Bounded
from topowise.errors import ApiError, ParseError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime.event_loop import collected
from topowise.runtime.log import kv
from topowise_scheduler import kueue
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.configuration import Kueue as Settings
from topowise_scheduler.fit_together import FitTogether, FitTogetherService, GroupPlacement
from topowise_scheduler.fit_together.group_placement import MOST_PODS
from topowise_scheduler.kube_scheduler import Pod
from topowise_scheduler.kueue import AdmissionCheck, Flavor, FlavorSpec, State, Workload
from topowise_scheduler.leader import controller
from topowise_scheduler.presentation.explain.cluster_view import ClusterView
from topowise_scheduler.presentation.text import plural

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5
# AdmissionChecks and ResourceFlavors change rarely.
_RELIST_S: Final = 30.0
_MOST_BYTES: Final = 64 << 20
_decode_workload: Final = msgspec.json.Decoder(Workload).decode


class _Checks(msgspec.Struct, frozen=True):
    items: tuple[AdmissionCheck, ...] = ()


class _Flavors(msgspec.Struct, frozen=True):
    items: tuple[Flavor, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    """A Workload that may have a check to decide, and its size in bytes."""

    workload: Workload
    size: int


class AdmissionChecks:
    """Decides checks. `clock` gives seconds, monotonic, `now` seconds since 1970."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        view: ClusterView,
        fitting: FitTogetherService,
        settings: Settings,
        *,
        not_ready: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._ledger, self._view, self._fitting = api, ledger, view, fitting
        self._settings = settings
        self._not_ready = not_ready
        self._clock, self._now = clock, now
        self._base = f"{kueue.GROUP}/{settings.api_version}"
        self._workloads: Bounded[str, _Kept] = Bounded(_MOST_BYTES, lambda _, kept: kept.size)
        self._source = Reflector(api, f"{self._base}/workloads", self._decode, self)
        self._listed_at = float("-inf")
        self._checks: frozenset[str] = frozenset()
        self._flavors: dict[str, FlavorSpec] = {}

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._source.run(), name="workloads")
            tasks.create_task(
                controller.run("decide an admission check", self.due, self.decide, interval=_INTERVAL_S),
                name="admission checks",
            )
            tasks.create_task(
                controller.run("read admission checks", self._relist, self.relist, interval=_INTERVAL_S), name="checks"
            )

    # As Consumer of Workloads

    def replace(self, items: list[_Kept]) -> None:
        """Everything there is."""
        self._workloads.clear()
        for item in items:
            self.apply("ADDED", item)

    def apply(self, event: EventType, item: _Kept) -> None:
        """Keeps the Workloads with reserved quota that are not admitted yet."""
        uid = item.workload.metadata.uid
        if event == "DELETED" or not item.workload.is_true("QuotaReserved") or item.workload.is_true("Admitted"):
            self._workloads.pop(uid)
        else:
            self._workloads.put(uid, item)

    @staticmethod
    def _decode(raw: bytes | msgspec.Raw) -> _Kept:
        return _Kept(_decode_workload(raw), memoryview(raw).nbytes)

    # Checks

    def due(self) -> Mapping[str, Workload]:
        """Returns the Workloads with a check to decide, by UID, in the order of priority and age."""
        if self._not_ready():
            return {}
        waiting = [kept.workload for _, kept in self._workloads.items() if kept.workload.pending(self._checks)]
        waiting.sort(key=lambda item: (-(item.spec.priority or 0), item.metadata.creationTimestamp, item.metadata.uid))
        return {workload.metadata.uid: workload for workload in waiting}

    def _relist(self) -> Mapping[str, str]:
        return {"all": ""} if self._clock() >= self._listed_at + _RELIST_S else {}

    async def relist(self, _: str = "") -> None:
        """Reads our checks and the flavors, and marks our checks as active. Raises ApiError."""
        checks = [check for check in (await self._read("admissionchecks", _Checks)).items if check.is_ours]
        self._flavors = {
            item.metadata.name: item.spec for item in (await self._read("resourceflavors", _Flavors)).items
        }
        for check in checks:
            if not check.is_active:
                path = paths.path(f"{self._base}/admissionchecks", check.metadata.name, "status")
                await self._patch(path, kueue.active_patch(check, self._now()))
        self._checks = frozenset(check.metadata.name for check in checks)
        self._listed_at = self._clock()

    async def decide(self, workload: Workload) -> None:
        """Decides the check of a Workload. Raises ApiError."""
        state, message = await self._decision(workload)
        meta = workload.metadata
        body = kueue.patch(workload, workload.pending(self._checks), state, message, self._now())
        path = paths.path(f"{self._base}/namespaces", meta.namespace, "workloads", meta.name, "status")
        await self._patch(path, body)
        self._workloads.pop(meta.uid)
        self._ledger.count(f"admission_check_{state.lower()}")
        log.info(
            "Decided an admission check", extra=kv(workload=f"{meta.namespace}/{meta.name}", state=state, why=message)
        )

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
        seconds = int(self._settings.hold)
        try:
            placement, _ = await self._fitting.fit(FitTogether(pods=pods, reserve_seconds=seconds), hand_over=True)
        except ParseError as exc:
            return "Retry", str(exc)
        if placement.fits:
            return "Ready", f"{plural(len(pods), 'pod')} fit together, aligned; reserved for {seconds} s"
        why = f"{len(placement.placements)} of {plural(len(pods), 'pod')} fit together: {placement.why}"
        return ("Rejected" if await self._is_hopeless(pods, placement) else "Retry"), why

    async def _is_hopeless(self, pods: tuple[Pod, ...], placement: GroupPlacement) -> bool:
        """Returns whether no node could take the refused pod even if it were empty."""
        record = self._view.record(pods[len(placement.placements)])
        verdicts = await collected(self._view.verdicts(record, self._view.names))
        return bool(verdicts) and all(node.otherwise == "never" for node in verdicts)

    async def _read(self, resource: str, kind: type[Any]) -> Any:
        path = f"{self._base}/{resource}"
        raw = await self._api.request("GET", path, timeout=controller.REQUEST_TIMEOUT_S)
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as exc:
            raise ApiError(0, "Decode", str(exc), request=f"GET {path}") from exc

    async def _patch(self, path: str, body: Mapping[str, Any]) -> None:
        try:
            await self._api.request(
                "PATCH",
                path,
                body=msgspec.json.encode(body),
                content_type=MERGE_PATCH,
                timeout=controller.REQUEST_TIMEOUT_S,
            )
        except ApiError as exc:
            # Deleted, or changed meanwhile: the watch brings it as it is now.
            if exc.status not in (404, 409):
                raise
