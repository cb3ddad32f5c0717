"""Which devices the claims of the cluster have, and which are free again once pods have left the cluster. Pure.

The resource claim controller takes the allocation of a claim back when the last pod in `status.reservedFor` is gone,
whether the claim was made from a template or not. It deletes a claim from a template with the pod that owns the claim.
An allocation that no pod uses or owns stays: so does an entry of `reservedFor` that is no pod, such as a PodGroup.
Upstream: syncClaim in pkg/controller/resourceclaim/controller.go (1.36).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from topowise.placement import ALLOCATED_FOR
from topowise.quantity import nano_value
from topowise_scheduler.options.claims.objects import (
    DeviceID,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
)


class ClaimUsers:
    """Allocated claims by the UIDs of the pods that use or own them."""

    def __init__(self) -> None:
        self._by_uid: dict[str, dict[str, ResourceClaim]] = {}

    def __contains__(self, uid: object) -> bool:
        """Whether the pod uses or owns an allocated claim."""
        return uid in self._by_uid

    def put(self, claim: ResourceClaim) -> None:
        """Adds a claim, which has no effect without an allocation."""
        if claim.status.allocation is not None:
            for uid in _users(claim) | owners(claim):
                self._by_uid.setdefault(uid, {})[claim.key] = claim

    def drop(self, claim: ResourceClaim) -> None:
        """Removes a claim."""
        for uid in _users(claim) | owners(claim):
            claims = self._by_uid.get(uid, {})
            claims.pop(claim.key, None)
            if not claims:
                self._by_uid.pop(uid, None)

    def freed(self, leaving: Collection[str]) -> Iterator[ResourceClaim]:
        """Yields the claims whose devices are free once the pods `leaving` (UIDs) have left."""
        claims = {key: claim for uid in leaving for key, claim in self._by_uid.get(uid, {}).items()}
        for claim in claims.values():
            users = _users(claim)
            if users <= set(leaving) and (users or owners(claim) <= set(leaving)):
                yield claim


def _users(claim: ResourceClaim) -> set[str]:
    return {user.uid for user in claim.status.reservedFor or ()}


def owners(claim: ResourceClaim) -> set[str]:
    """Returns the UID of the pod for which the claim was made."""
    return {owner.uid for owner in claim.metadata.ownerReferences or () if owner.kind == "Pod" and owner.controller}


def user_of(claim: ResourceClaim) -> ResourceClaimConsumerReference | None:
    """Returns the pod for which this service has allocated the claim, None if another has, or other pods use it."""
    mark = (claim.metadata.annotations or {}).get(ALLOCATED_FOR)
    users = claim.status.reservedFor or ()
    if claim.status.allocation is None or not mark or any(user.uid != mark for user in users):
        return None
    return users[0] if users else ResourceClaimConsumerReference(uid=mark)


Capacity = dict[str, int]
"""Amounts by the name of a capacity, in billionths."""

_NOTHING: Final[dict[str, Capacity | None]] = {}


class AllocatedDevices:
    """Devices of allocated claims: `devices` belong to a single claim, `shares` are the devices that several claims
    share, with the capacity of each share by its id.

    A device with admin access does not count (foreachAllocatedDevice in kube-scheduler's allocateddevices.go).
    """

    def __init__(self) -> None:
        self.devices: set[DeviceID] = set()
        self.shares: dict[DeviceID, dict[str, Capacity | None]] = {}

    def __contains__(self, device: object) -> bool:
        """Whether a claim has the device, or a share of it."""
        return device in self.devices or device in self.shares

    def add(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        """Adds the devices of a claim's allocation."""
        for result in results:
            if result.adminAccess:
                continue
            if result.shareID is None:
                self.devices.add(result.id)
                continue
            texts = result.consumedCapacity
            capacity = None if texts is None else {name: nano_value(text) for name, text in texts.items()}
            self.shares.setdefault(result.id, {})[result.shareID] = capacity

    def remove(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        """Removes the devices of a claim's allocation."""
        for result in results:
            if result.adminAccess:
                continue
            if result.shareID is None:
                self.devices.discard(result.id)
                continue
            shares = self.shares.get(result.id, {})
            shares.pop(result.shareID, None)
            if not shares:
                self.shares.pop(result.id, None)

    def consumed(self, device: DeviceID) -> Capacity | None:
        """Returns the capacity of all shares of a device, None if no share has any."""
        capacities = [item for item in self.shares.get(device, _NOTHING).values() if item is not None]
        if not capacities:
            return None
        total: Capacity = {}
        for capacity in capacities:
            for name, amount in capacity.items():
                total[name] = total.get(name, 0) + amount
        return total
