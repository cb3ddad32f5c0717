"""The search for the devices of a pod's claims: depth first, with the first solution. Pure.

It takes the devices of a request in the order that it is given, so it finds kube-scheduler's solution among the same
devices in kube-scheduler's order. Upstream: allocateOne and allocateDevice in
k8s.io/dynamic-resource-allocation/structured/internal/incubating, allocator_incubating.go (1.36).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from topowise.quantity import nano_value
from topowise_scheduler.options.claims import capacity
from topowise_scheduler.options.claims.constraints import Constraint
from topowise_scheduler.options.claims.inventory import Counters, Pool, PoolDevice, PoolID
from topowise_scheduler.options.claims.objects import Device, DeviceID
from topowise_scheduler.options.claims.requests import MOST_RESULTS, Alternatives, Context, Request
from topowise_scheduler.options.claims.work import SEARCH_STEP, RefusedError

# Two function calls a device are on Python's stack.
MOST_DEVICES: Final = 256
"""The most devices of all claims of a pod that are searched for."""

CounterSetID = tuple[PoolID, str]


class Taken(msgspec.Struct, frozen=True, eq=False):
    """A device that the search has taken for a request; `consumed` is its share (quantities), None if it has none.
    `is_counted`: its counters were taken for it."""

    request: Request
    item: PoolDevice
    consumed: dict[str, str] | None
    is_counted: bool


class Search:
    """A single search. `order` returns the devices for a request, which may depend on the devices that the search has
    taken. With `is_strict` a device that is looked at must be known to match or not. Raises NotModelledError, also once
    the work of the context is spent, and RefusedError."""

    def __init__(
        self,
        context: Context,
        claims: Sequence[Sequence[Alternatives]],
        constraints: Sequence[Sequence[Constraint]],
        pools: Sequence[Pool],
        order: Callable[[Request, Search], Sequence[PoolDevice]],
        *,
        is_strict: bool = False,
    ) -> None:
        self._context = context
        self._claims = claims
        self._constraints = constraints
        self._order = order
        self._is_strict = is_strict
        self._pools = {pool.id: pool for pool in pools}
        self.results: list[list[Taken]] = [[] for _ in claims]
        # For which of the claims a device is taken, and the shares of a device that are taken.
        self._taking: dict[DeviceID, list[int]] = {}
        self._coming: dict[DeviceID, list[dict[str, str]]] = {}
        self._left: dict[PoolID, Counters] = {}

    def run(self) -> bool:
        """Returns whether all claims can be allocated; `results` has their devices."""
        return self._next(0, 0)

    def is_in_use(self, item: PoolDevice) -> bool:
        """Whether other claims, or the claims of the pod, have a share of the device or counters of its sets."""
        if item.is_shared and (item.id in self._context.allocated.shares or item.id in self._coming):
            return True
        if not item.device.consumesCounters:
            return False
        pool = self._pools[PoolID(*item.id[:2])]
        left = self._counters(pool)
        return any(left[used.counterSet] != pool.counters[used.counterSet] for used in item.device.consumesCounters)

    def _next(self, claim: int, request: int) -> bool:
        """Searches from a request on."""
        if claim >= len(self._claims):
            return True
        requests = self._claims[claim]
        if request >= len(requests):
            return self._next(claim + 1, 0)
        return any(self._request(claim, request, alternative) for alternative in requests[request])

    def _request(self, claim: int, number: int, request: Request) -> bool:
        if request.problem or len(self.results[claim]) + request.count > MOST_RESULTS:
            return False
        return self._devices(claim, number, request, self._order(request, self), 0, request.count)

    def _devices(
        self, claim: int, number: int, request: Request, devices: Sequence[PoolDevice], start: int, missing: int
    ) -> bool:
        """Searches for the devices of a request that are missing, from a position on."""
        if not missing:
            return self._next(claim, number + 1)
        for position in range(start, len(devices)):
            item = devices[position]
            self._context.work.spend(SEARCH_STEP)
            if self._take(claim, request, item):
                if self._devices(claim, number, request, devices, position + 1, missing - 1):
                    return True
                self._give_back(claim, request)
            if request.is_all:
                break
        return False

    def _is_taken(self, claim: int, request: Request, item: PoolDevice) -> bool:
        taking = self._taking.get(item.id, ())
        if request.is_admin:
            return claim in taking
        allocated = self._context.allocated
        return bool(taking) or item.id in allocated.devices or (not item.is_shared and item.id in allocated.shares)

    def _take(self, claim: int, request: Request, item: PoolDevice) -> bool:
        """Takes a device for a request if nothing prevents it."""
        context = self._context
        if self._is_taken(claim, request, item) or (self._is_strict and not context.matches(request, item)):
            return False
        if not context.has_capacity(request, item, self._coming.get(item.id, ())) or not request.tolerates(item):
            return False
        # The first share of a device takes its counters.
        is_shared_already = item.is_shared and (
            item.id in self._coming or context.allocated.consumed(item.id) is not None
        )
        is_counted = bool(item.device.consumesCounters) and not is_shared_already
        if is_counted and not self._count(item):
            return False
        if not self._constrain(claim, request, item):
            if is_counted:
                self._uncount(item)
            return False
        share: dict[str, str] | None = None
        if item.is_shared:
            share = capacity.consumed(request.capacity, item.device)
            self._coming.setdefault(item.id, []).append(share)
        else:
            self._taking.setdefault(item.id, []).append(claim)
        self.results[claim].append(Taken(request, item, share, is_counted))
        return True

    def _give_back(self, claim: int, request: Request) -> None:
        """Gives the device back that was taken last."""
        taken = self.results[claim].pop()
        item = taken.item
        for constraint in self._constraints[claim]:
            constraint.remove(request)
        held = self._taking if taken.consumed is None else self._coming
        held[item.id].pop()
        if not held[item.id]:
            del held[item.id]
        if taken.is_counted:
            self._uncount(item)

    def _constrain(self, claim: int, request: Request, item: PoolDevice) -> bool:
        constraints = self._constraints[claim]
        for index, constraint in enumerate(constraints):
            if constraint.add(request, item):
                continue
            if request.is_all and self._is_strict:
                raise RefusedError(f"claim {request.claim}, request {request.name}: a constraint excludes {item.id}")
            for added in constraints[:index]:
                added.remove(request)
            return False
        return True

    def _counters(self, pool: Pool) -> Counters:
        """Returns the counters of a pool that are left."""
        left = self._left.get(pool.id)
        if left is None:
            left = self._left[pool.id] = {name: dict(counters) for name, counters in pool.counters.items()}
            devices = (*((item.id, item.device) for item in pool.devices), *pool.others)
            for device_id, device in devices:
                if device.consumesCounters and device_id in self._context.allocated:
                    _add(left, device, -1)
        return left

    def _count(self, item: PoolDevice) -> bool:
        """Takes the counters of a device if they suffice."""
        left = self._counters(self._pools[PoolID(*item.id[:2])])
        _add(left, item.device, -1)
        # Upstream compares all counters of the pool.
        if any(amount < 0 for counters in left.values() for amount in counters.values()):
            _add(left, item.device, 1)
            return False
        return True

    def _uncount(self, item: PoolDevice) -> None:
        _add(self._left[PoolID(*item.id[:2])], item.device, 1)


def _add(counters: Counters, device: Device, sign: int) -> None:
    for consumption in device.consumesCounters or ():
        amounts = counters[consumption.counterSet]
        for name, counter in (consumption.counters or {}).items():
            amounts[name] += sign * nano_value(counter.value)
