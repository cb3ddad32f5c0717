"""Which allocations are free again once pods have left the cluster. Pure.

The resource claim controller takes the allocation of a claim back when the last pod in `status.reservedFor` is gone,
whether the claim was made from a template or not. It deletes a claim from a template with the pod that owns the claim.
An allocation that no pod uses or owns stays: so does an entry of `reservedFor` that is no pod, such as a PodGroup.
Upstream: syncClaim in pkg/controller/resourceclaim/controller.go (1.36).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from topowise_scheduler.options.claims.objects import ResourceClaim


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
