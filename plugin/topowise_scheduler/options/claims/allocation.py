"""The step of claims before the gate of a pod is opened: the devices that were chosen for its claims are written.

First the finalizer and the mark of the pod, then the allocation together with the reservation for the pod, in one
write: kube-scheduler has nothing left to do for such a claim. If a later step fails, the allocation is taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise.placement import ALLOCATED_FOR
from topowise.runtime.log import kv
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.claims.allocated import user_of
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.options.claims.ledger import Claims
from topowise_scheduler.options.claims.objects import AllocationResult, ResourceClaim
from topowise_scheduler.options.claims.results import with_share_ids
from topowise_scheduler.options.claims.watch import NAMESPACES, decode_claim

log = logging.getLogger(__name__)

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
_TIMEOUT_S: Final = 2.0
# The claim is gone, or has changed.
_CHANGED: Final = (404, 409, 422)


class ClaimAllocation:
    """See `PreBind`. `now` gives the time of day."""

    def __init__(self, api: Api, option: ClaimOption, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._api = api
        self._nodes = option.nodes
        self._claims = option.nodes.settings.claims
        self._now = now

    def reads_anew(self, record: PodRecord) -> bool:
        """See `PreBind`."""
        return False

    def wait_s(self, record: PodRecord) -> float:
        """See `PreBind`."""
        return 0.0

    async def prebind(self, record: PodRecord, node: str, book: Callable[[PodRecord], str]) -> tuple[PodRecord, str]:
        """See `PreBind`."""
        if not record.claims or not self._claims.drivers:
            return record, ""
        assumed = self._claims.assumed_of(record.uid)
        chosen = {} if assumed is None or assumed.node != node else {**assumed.allocations}
        problem = "cancelled"
        try:
            problem = await self._allocate_all(record, chosen)
            if not problem and not self._is_settled(record, node):
                problem = "the claims of the pod have changed"
        finally:
            if problem:
                await self.unreserve(record, node)
        return record, problem

    def _is_settled(self, record: PodRecord, node: str) -> bool:
        """Returns whether nothing is left to allocate here, for this pod or another that shares a claim; the devices of
        other drivers are kube-scheduler's."""
        devices = self._nodes.of(record, node).devices
        return devices.is_allocated or (bool(devices.problem) and not devices.is_short)

    async def _allocate_all(self, record: PodRecord, chosen: Mapping[str, AllocationResult]) -> str:
        for key, allocation in chosen.items():
            claim = self._claims.claim(key)
            if claim is None or claim.status.allocation is not None:
                return f"ResourceClaim {key} has changed"
            try:
                await self._allocate(record, claim, allocation)
            except ApiError as exc:
                if exc.status not in _CHANGED:
                    raise
                return f"ResourceClaim {key} cannot be allocated: {exc}"
        return ""

    async def _allocate(self, record: PodRecord, claim: ResourceClaim, allocation: AllocationResult) -> None:
        metadata, version = claim.metadata, claim.metadata.resourceVersion
        finalizers = metadata.finalizers or ()
        if FINALIZER not in finalizers or (metadata.annotations or {}).get(ALLOCATED_FOR) != record.uid:
            marked = {
                "finalizers": [*dict.fromkeys((*finalizers, FINALIZER))],
                "annotations": {ALLOCATED_FOR: record.uid},
            }
            version = (await self._patch(claim, version, {"metadata": marked})).metadata.resourceVersion
        user = {"resource": "pods", "name": record.name, "uid": record.uid}
        status = {"allocation": self._written(allocation), "reservedFor": [user]}
        await self._patch(claim, version, {"status": status}, "status")

    def _written(self, allocation: AllocationResult) -> dict[str, Any]:
        """Returns an allocation as the API has it. kube-scheduler would add a missing time, which it must not."""
        written: dict[str, Any] = msgspec.to_builtins(with_share_ids(allocation, lambda: str(uuid4())))
        return {**written, "allocationTimestamp": self._now().strftime("%Y-%m-%dT%H:%M:%SZ")}

    async def unreserve(self, record: PodRecord, node: str) -> None:
        """See `PreBind`. Takes back what was allocated for the pod; what cannot be taken back now, the sweeper takes
        back later (controllers/unused_claims.py)."""
        for name in record.claims:
            claim = self._claims.claim(f"{record.namespace}/{name}")
            user = None if claim is None else user_of(claim)
            if claim is None or user is None or user.uid != record.uid:
                continue
            try:
                await free(self._api, self._claims, claim)
            except ApiError as exc:
                log.warning("Devices of a pod that is not placed stay allocated", extra=kv(claim=claim.key, why=exc))

    async def _patch(
        self, claim: ResourceClaim, version: str, change: dict[str, Any], subresource: str = ""
    ) -> ResourceClaim:
        return await patch(self._api, self._claims, claim, version, change, subresource)


async def free(api: Api, claims: Claims, claim: ResourceClaim) -> None:
    """Takes the allocation of a claim back. Raises ApiError."""
    status = {"allocation": None, "reservedFor": None}
    await patch(api, claims, claim, claim.metadata.resourceVersion, {"status": status}, "status")


async def patch(
    api: Api, claims: Claims, claim: ResourceClaim, version: str, change: dict[str, Any], subresource: str = ""
) -> ResourceClaim:
    """Changes a claim in this version, and notes the answer. Raises ApiError."""
    path = paths.path(NAMESPACES, claim.metadata.namespace, "resourceclaims", claim.metadata.name)
    metadata = {**change.get("metadata", {}), "uid": claim.metadata.uid, "resourceVersion": version}
    answer = await api.request(
        "PATCH",
        f"{path}/{subresource}" if subresource else path,
        body=msgspec.json.encode({**change, "metadata": metadata}),
        content_type=MERGE_PATCH,
        timeout=_TIMEOUT_S,
    )
    try:
        item = decode_claim(answer)
    except msgspec.DecodeError as exc:
        raise ApiError(0, "", f"the answer cannot be read: {exc}", request=f"PATCH {path}") from exc
    claims.put_claim(item)
    return item.item
