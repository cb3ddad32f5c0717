"""kube-scheduler's allocator for ResourceClaims, for a single node. Pure.

Upstream: staging/src/k8s.io/dynamic-resource-allocation/structured (1.34 to 1.36).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from topowise.errors import ParseError
from topowise_scheduler.options.claims.allocated import AllocatedDevices, Capacity
from topowise_scheduler.options.claims.constraints import Constraint, DistinctAttribute, MatchAttribute
from topowise_scheduler.options.claims.features import Features
from topowise_scheduler.options.claims.inventory import Inventory, Pool, PoolDevice
from topowise_scheduler.options.claims.objects import Device, DeviceClass, DeviceID, ResourceClaim
from topowise_scheduler.options.claims.orders import differ, orders
from topowise_scheduler.options.claims.requests import Alternatives, Context, requests_of
from topowise_scheduler.options.claims.search import MOST_DEVICES, Search, Taken
from topowise_scheduler.options.claims.selectors import Selectors
from topowise_scheduler.options.claims.work import AttemptError, NotModelledError, Work
from topowise_scheduler.verdicts.kube_scheduler import Node


class AllocatedDevice(msgspec.Struct, frozen=True, gc=False):
    """A device of a claim. `request` is the name of the request, "name/subrequest" for a request with `firstAvailable`.
    `consumed` is the share of a device that several claims share."""

    request: str
    id: DeviceID
    device: Device
    admin_access: bool = False
    consumed: Capacity | None = None


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """The devices of each claim, in the order of the claims."""

    claims: tuple[tuple[AllocatedDevice, ...], ...]


class NoFit(msgspec.Struct, frozen=True, gc=False):
    """kube-scheduler allocates nothing on this node. With `ends_attempt` the error is not of this node alone: it ends
    the attempt to schedule the pod, for example a selector that fails at run time."""

    reason: str
    ends_attempt: bool = False


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The result depends on something that is not modelled: `feature` names it."""

    feature: str


def allocate(
    node: Node,
    claims: Sequence[ResourceClaim],
    inventory: Inventory,
    classes: Mapping[str, DeviceClass],
    allocated: AllocatedDevices,
    features: Features,
    selectors: Selectors,
    work: Work,
) -> Allocation | NoFit | Unknown:
    """Returns the devices that kube-scheduler allocates to the claims on the node.

    `claims` are the claims of a pod without an allocation, in the order of `spec.resourceClaims`; claims with an
    allocation are not passed. `classes` are by name. `allocated` includes the claims that kube-scheduler has allocated
    but not yet written. `features` are by kube-scheduler's version and gates. Once the `work` is spent the result is
    unknown.
    """
    if features.not_modelled:
        return Unknown(features.not_modelled)
    context = Context(node, features, selectors, allocated, classes, work)
    try:
        return _allocated(context, claims, inventory.pools(node, features))
    except AttemptError as error:
        return NoFit(str(error), ends_attempt=True)
    except NotModelledError as error:
        return Unknown(str(error))
    except RecursionError:
        # A search for 256 devices leaves little of Python's stack to a selector.
        return Unknown("a search for many devices with nested selectors")
    except (ParseError, ZeroDivisionError) as error:
        # The API server stores neither unreadable quantities nor steps of 0.
        return Unknown(f"an object that the API server rejects: {error}")


def _allocated(context: Context, claims: Sequence[ResourceClaim], pools: Sequence[Pool]) -> Allocation | NoFit:
    for pool in pools:
        if pool.not_modelled:
            raise NotModelledError(pool.not_modelled)
    requests = [requests_of(claim, context, pools) for claim in claims]
    constraints_of(claims, context.features)
    if sum(max(item.count for item in alternatives) for claim in requests for alternatives in claim) > MOST_DEVICES:
        raise NotModelledError(f"more than {MOST_DEVICES} devices of a pod")
    if context.features.is_sorted:
        return _found(context, claims, requests, pools)
    return _found_in_any_order(context, claims, requests, pools)


def _found_in_any_order(
    context: Context,
    claims: Sequence[ResourceClaim],
    requests: Sequence[Sequence[Alternatives]],
    pools: Sequence[Pool],
) -> Allocation | NoFit:
    """Returns the result if it is the same in each order of the pools."""
    result: Allocation | NoFit | None = None
    for order in orders(context, pools, requests):
        if order is not pools:
            requests = [requests_of(claim, context, order) for claim in claims]
        try:
            another = _found(context, claims, requests, order)
        except AttemptError as error:
            another = NoFit(str(error), ends_attempt=True)
        if result is not None and _comparable(another) != _comparable(result):
            raise differ(context)
        result = another
    assert result is not None, "there is at least one order"
    return result


def _found(
    context: Context,
    claims: Sequence[ResourceClaim],
    requests: Sequence[Sequence[Alternatives]],
    pools: Sequence[Pool],
) -> Allocation | NoFit:
    constraints = constraints_of(claims, context.features)
    search = Search(context, requests, constraints, pools, _sequence(pools, context.features))
    if not search.run():
        if context.features.minor > 34 and any(pool.invalid for pool in pools):
            return NoFit("invalid resource pools were encountered")
        return NoFit("cannot allocate all claims")
    devices = tuple(tuple(_device(taken) for taken in results) for results in search.results)
    for item in (item for results in devices for item in results):
        if item.device.nodeAllocatableResourceMappings:
            raise NotModelledError(f"field nodeAllocatableResourceMappings of device {'/'.join(item.id)}")
    return Allocation(devices)


def constraints_of(claims: Sequence[ResourceClaim], features: Features) -> list[list[Constraint]]:
    """Returns the constraints of the claims without devices. Raises AttemptError for an unsupported constraint."""
    constraints: list[list[Constraint]] = []
    for claim in claims:
        constraints.append([])
        for number, constraint in enumerate(claim.spec.devices.constraints or ()):
            if constraint.matchAttribute is not None:
                constraints[-1].append(MatchAttribute(constraint))
            elif constraint.distinctAttribute is not None and features.is_sorted:
                constraints[-1].append(DistinctAttribute(constraint))
            else:
                raise AttemptError(
                    f"claim {claim.key}, constraint #{number}: empty constraint (unsupported constraint type?)"
                )
    return constraints


def _sequence(pools: Sequence[Pool], features: Features) -> list[PoolDevice | Pool]:
    sequence: list[PoolDevice | Pool] = []
    for pool in pools:
        if pool.invalid:
            if features.minor == 34:
                sequence.append(pool)
        elif not pool.is_incomplete or features.minor == 34:
            sequence.extend(pool.devices)
    return sequence


def _device(taken: Taken) -> AllocatedDevice:
    request, item = taken.request, taken.item
    return AllocatedDevice(request.full_name, item.id, item.device, request.is_admin, taken.consumed)


def _comparable(result: Allocation | NoFit) -> object:
    """Returns a result for comparison: the order of devices within a request does not matter."""
    if isinstance(result, NoFit):
        return result.ends_attempt
    return [sorted((item.request, item.id, item.admin_access) for item in claim) for claim in result.claims]
