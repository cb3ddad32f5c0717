"""Allocates devices to the claims of a pod on a single node. Pure.

The choice is ours: the devices of the best rank, and of those the devices that leave the others whole. What is
allocated is what kube-scheduler's allocator returns if it has the chosen devices alone: after the choice the search
runs again on them, in kube-scheduler's order. Upstream: k8s.io/dynamic-resource-allocation/structured (1.36).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from topowise.errors import ParseError
from topowise_scheduler.options.claims.allocated import AllocatedDevices
from topowise_scheduler.options.claims.constraints import Constraint
from topowise_scheduler.options.claims.inventory import Inventory, Pool, PoolDevice, have_binding_conditions
from topowise_scheduler.options.claims.objects import AllocationResult, DeviceClass, DeviceID, ResourceClaim
from topowise_scheduler.options.claims.requests import Alternatives, Context, Request, requests_of
from topowise_scheduler.options.claims.results import allocation_of
from topowise_scheduler.options.claims.search import MOST_DEVICES, Search
from topowise_scheduler.options.claims.selectors import Selectors
from topowise_scheduler.options.claims.work import NotModelledError, RefusedError, SpentError, Work
from topowise_scheduler.verdicts.kube_scheduler import Node


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """The allocation of each claim, in the order of the claims: as the API stores it, without `allocationTimestamp`.
    The `shareID` of a device that several claims share is "", which `results.with_share_ids` replaces."""

    claims: tuple[AllocationResult, ...]


class NoFit(msgspec.Struct, frozen=True, gc=False):
    """The claims cannot be allocated on this node."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The result depends on something that is not modelled: `feature` names it."""

    feature: str


def allocate(
    node: Node,
    claims: Sequence[ResourceClaim],
    inventory: Inventory,
    classes: Mapping[str, DeviceClass],
    allocated: AllocatedDevices,
    selectors: Selectors,
    work: Work,
    rank: Callable[[DeviceID], int | None],
) -> Allocation | NoFit | Unknown:
    """Returns the allocation of the claims on the node.

    `claims` are the claims of a pod without an allocation, in the order of `spec.resourceClaims`. `classes` are by
    name. `allocated` includes what is chosen but not yet written. Devices whose `rank` is None are not allocated; of
    the others lower is better. A device is not allocated either if it is not known whether it matches: the result is
    unknown if there is none without it, or once the `work` is spent.
    """
    pools = inventory.pools(node)
    ranks = {item.id: rank(item.id) for pool in pools for item in pool.devices}
    context = Context(node, selectors, allocated, classes, work, ranks)
    try:
        return Allocation(_allocated(context, claims, pools))
    except RefusedError as error:
        return Unknown(context.unknown) if context.unknown else NoFit(str(error))
    except NotModelledError as error:
        return Unknown(str(error))
    except RecursionError:
        # A search for 256 devices leaves little of Python's stack to a selector.
        return Unknown("a search for many devices with nested selectors")
    except (ParseError, ZeroDivisionError) as error:
        # The API server stores neither unreadable quantities nor steps of 0.
        return Unknown(f"an object that the API server rejects: {error}")


def _allocated(
    context: Context, claims: Sequence[ResourceClaim], pools: Sequence[Pool]
) -> tuple[AllocationResult, ...]:
    requests = [requests_of(claim, context, pools) for claim in claims]
    if sum(max(item.count for item in alternatives) for claim in requests for alternatives in claim) > MOST_DEVICES:
        raise NotModelledError(f"more than {MOST_DEVICES} devices of a pod")
    problem: NotModelledError | None = None
    # kube-scheduler's own order is the second try: where kube-scheduler finds devices, so does this.
    for order in (_Preference(context, pools, requests), lambda request, _: request.candidates):
        search = Search(context, requests, _constraints_of(claims), pools, order)
        if not search.run():
            break
        chosen = {taken.item for devices in search.results for taken in devices}
        try:
            return _canonical(context, claims, pools, requests, chosen)
        except SpentError:
            raise
        except (RefusedError, NotModelledError) as error:
            problem = problem or NotModelledError(str(error))
    raise problem or RefusedError(_reason(context, requests))


def _canonical(
    context: Context,
    claims: Sequence[ResourceClaim],
    pools: Sequence[Pool],
    requests: Sequence[Sequence[Alternatives]],
    chosen: set[PoolDevice],
) -> tuple[AllocationResult, ...]:
    """Returns what kube-scheduler allocates of the chosen devices. Raises RefusedError if it allocates nothing, because
    a selector fails for one of them; with other devices it may succeed."""
    parts = [[item for item in pool.devices if item in chosen] for pool in sorted(pools, key=lambda pool: pool.id)]
    devices = [item for part in sorted(parts, key=have_binding_conditions) for item in part]

    def order(request: Request, _: Search) -> Sequence[PoolDevice]:
        if not request.is_all:
            return devices
        # If one of all devices was not chosen, an alternative was: the others must not meet a constraint.
        every = set(request.candidates)
        return [item for item in devices if item in every] if chosen >= every else ()

    for request in (item for claim in requests for alternatives in claim for item in alternatives if item.is_all):
        for item in devices:
            context.matches(request, item)
    search = Search(context, requests, _constraints_of(claims), pools, order, is_strict=True)
    if not search.run():
        raise NotModelledError("the chosen devices do not suffice in the order of kube-scheduler")
    used = {taken.item for results in search.results for taken in results}
    if used != chosen:
        # Shares let fewer devices suffice, which may change the order of the pools.
        return _canonical(context, claims, pools, requests, used)
    return tuple(
        allocation_of(context.node, claim.spec.devices.config, taken)
        for claim, taken in zip(claims, search.results, strict=True)
    )


def _constraints_of(claims: Sequence[ResourceClaim]) -> list[list[Constraint]]:
    """Returns the constraints of the claims without devices."""
    return [[Constraint(constraint) for constraint in claim.spec.devices.constraints or ()] for claim in claims]


def _reason(context: Context, requests: Sequence[Sequence[Alternatives]]) -> str:
    every = [request for claim in requests for alternatives in claim for request in alternatives]
    for request in every:
        if request.problem:
            return request.problem
    lacking = [request for request in every if len(request.candidates) < request.count]
    if context.failed or not lacking:
        return context.failed or "the free devices cannot satisfy all claims together"
    request = lacking[0]
    return f"claim {request.claim}, request {request.full_name}: {len(request.candidates)} of {request.count} devices"


class _Preference:
    """The order of the choice: the best rank; devices that need no preparation (binding conditions); devices and
    counter sets that are in use, so that others stay whole; PCIe roots of which the pod has a device, then those with
    devices for most of its requests; roots with enough devices, and of those the fullest; the name."""

    def __init__(self, context: Context, pools: Sequence[Pool], requests: Sequence[Sequence[Alternatives]]) -> None:
        self._context = context
        taken = context.allocated.devices
        self._free = Counter([item.root for pool in pools for item in pool.devices if item.id not in taken])
        self._reach = Counter(
            root
            for claim in requests
            for alternatives in claim
            for root in {item.root for request in alternatives for item in request.candidates}
        )

    def __call__(self, request: Request, search: Search) -> Sequence[PoolDevice]:
        candidates = request.candidates
        if request.is_all or len(candidates) <= 1:
            return candidates
        self._context.work.spend(len(candidates))
        ranks = self._context.ranks
        suitable = Counter([item.root for item in candidates])
        taken = {taken.item.root for devices in search.results for taken in devices}
        roots = {
            root: (root not in taken, -self._reach[root], max(0, request.count - number), self._free[root], root)
            if root
            else (True, 0, 0, 0, "")
            for root, number in suitable.items()
        }

        def key(item: PoolDevice) -> tuple[object, ...]:
            has_conditions = bool(item.device.bindingConditions)
            return ranks[item.id], has_conditions, not search.is_in_use(item), roots[item.root], item.id

        return sorted(candidates, key=key)
