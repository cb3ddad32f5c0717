"""kube-scheduler's search for the devices of a pod's claims: depth first, with the first solution. Pure.

It keeps what upstream keeps when it goes back, its mistakes included: a device that is turned down for a taint or for a
constraint after its counters were taken does not return them, and a shared device never returns them.

Upstream: allocateOne and allocateDevice in k8s.io/dynamic-resource-allocation/structured/internal/incubating,
allocator_incubating.go (1.36), and the same in 1.34 and 1.35.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from topowise.quantity import nano_value
from topowise_scheduler.options.claims import capacity
from topowise_scheduler.options.claims.allocated import Capacity
from topowise_scheduler.options.claims.constraints import Constraint
from topowise_scheduler.options.claims.inventory import Counters, Pool, PoolDevice, PoolID
from topowise_scheduler.options.claims.objects import Device, DeviceID
from topowise_scheduler.options.claims.requests import MOST_RESULTS, Alternatives, Context, Request
from topowise_scheduler.options.claims.work import SEARCH_STEP, AttemptError, NotModelledError

# Two function calls a device are on Python's stack.
MOST_DEVICES: Final = 256
"""The most devices of all claims of a pod that are searched for."""

_NOTHING: Final[Mapping[str, int]] = {}


class Outcome(Enum):
    """`TOO_MANY`: a claim would have more than 32 devices (errAllocationResultMaxSizeExceeded)."""

    FOUND = 1
    NONE = 2
    TOO_MANY = 3


class Taken(msgspec.Struct, frozen=True, eq=False):
    """A device that the search has taken for a request; `consumed` is its share, None if it has none."""

    request: Request
    item: PoolDevice
    consumed: Capacity | None


class Search:
    """A single search. `sequence` are the devices in the order of the allocator; a pool in it is invalid, and ends the
    attempt in 1.34. Raises AttemptError and NotModelledError, the latter also once the work of the context is spent."""

    def __init__(
        self,
        context: Context,
        claims: Sequence[Sequence[Alternatives]],
        constraints: Sequence[Sequence[Constraint]],
        pools: Sequence[Pool],
        sequence: Sequence[PoolDevice | Pool],
    ) -> None:
        self._context = context
        self._claims = claims
        self._constraints = constraints
        self._sequence = sequence
        self._pools: dict[PoolID, Pool] = {pool.id: pool for pool in pools}
        self.results: list[list[Taken]] = [[] for _ in claims]
        # For which of the claims a device is taken.
        self._taking: dict[DeviceID, set[int]] = {}
        self._coming: dict[DeviceID, Capacity] = {}
        # Counters by the name of the pool: all drivers share the name upstream.
        self._available: dict[str, Counters] = {}
        self._counted: dict[str, Counters] = {}

    def run(self) -> bool:
        """Returns whether all claims can be allocated; `results` has their devices."""
        return self._next(0, 0, 0) is Outcome.FOUND

    def _next(self, claim: int, request: int, start: int) -> Outcome:
        """Searches from a request on."""
        if claim >= len(self._claims):
            return Outcome.FOUND
        requests = self._claims[claim]
        if request >= len(requests):
            outcome = self._next(claim + 1, 0, 0)
            return Outcome.NONE if outcome is Outcome.TOO_MANY else outcome
        alternatives = requests[request]
        if not alternatives[0].parent:
            return self._devices(claim, request, alternatives[0], 0, start)
        are_all_too_many = True
        for alternative in alternatives:
            outcome = self._devices(claim, request, alternative, 0, 0)
            if outcome is Outcome.FOUND:
                return outcome
            are_all_too_many = are_all_too_many and outcome is Outcome.TOO_MANY
        return Outcome.TOO_MANY if are_all_too_many else Outcome.NONE

    def _devices(self, claim: int, number: int, request: Request, index: int, start: int) -> Outcome:
        """Searches for the devices of a request from its `index`-th on."""
        if request.every is not None and not request.every:
            return Outcome.NONE
        if index >= request.count:
            return self._next(claim, number + 1, 0)
        if len(self.results[claim]) + request.count - index > MOST_RESULTS:
            return Outcome.TOO_MANY
        if request.every is None:
            return self._any(claim, number, request, index, start)
        return self._every(claim, number, request, index, request.every[index])

    def _every(self, claim: int, number: int, request: Request, index: int, item: PoolDevice) -> Outcome:
        if self._context.features.minor < 36 and request is not self._claims[claim][number][0] and request.count > 1:
            # Up to 1.35.6 the search goes on with the first alternative here.
            raise NotModelledError("allocationMode All of an alternative that is not the first")
        if not self._take(claim, request, item, must=True):
            return Outcome.NONE
        outcome = self._devices(claim, number, request, index + 1, 0)
        if outcome is not Outcome.FOUND:
            self._give_back(claim, request, item)
        return outcome

    def _any(self, claim: int, number: int, request: Request, index: int, start: int) -> Outcome:
        context = self._context
        for position in range(start, len(self._sequence)):
            item = self._sequence[position]
            if isinstance(item, Pool):
                raise AttemptError(f"pool {item.id.pool} is invalid: {item.invalid}")
            context.work.spend(SEARCH_STEP)
            if self._is_taken(claim, request, item.id):
                continue
            if not context.is_selectable(request, item):
                continue
            if context.features.consumable_capacity and not self._has_capacity(request, item):
                continue
            if not self._take(claim, request, item, must=False):
                continue
            following = position + 1 if context.features.is_sorted else 0
            outcome = self._devices(claim, number, request, index + 1, following)
            if outcome is Outcome.FOUND:
                return outcome
            self._give_back(claim, request, item)
            if outcome is Outcome.TOO_MANY:
                return outcome
        return Outcome.NONE

    def _is_taken(self, claim: int, request: Request, device: DeviceID) -> bool:
        taking = self._taking.get(device)
        if request.is_admin:
            return taking is not None and claim in taking
        allocated = self._context.allocated
        if device in allocated.devices or taking:
            return True
        return device in allocated.shares and not self._context.features.consumable_capacity

    def _has_capacity(self, request: Request, item: PoolDevice) -> bool:
        return self._context.has_capacity(request, item, self._coming.get(item.id, _NOTHING))

    def _take(self, claim: int, request: Request, item: PoolDevice, must: bool) -> bool:
        """Takes a device for a request if nothing prevents it (allocateDevice). `must`: no other device will do."""
        context, device = self._context, item.device
        features = context.features
        is_shared = features.consumable_capacity and bool(device.allowMultipleAllocations)
        if self._is_taken(claim, request, item.id) and not (is_shared and request.is_admin):
            return False
        if device.consumesCounters:
            if not features.partitionable_devices:
                return False
            in_use = is_shared and (item.id in self._coming or context.allocated.consumed(item.id) is not None)
            if not in_use and not self._count(item):
                return False
        if not context.tolerates(request, item) or not self._constrain(claim, request, item, must):
            return False
        if not is_shared:
            self._taking.setdefault(item.id, set()).add(claim)
        share: Capacity | None = None
        if features.consumable_capacity:
            if not self._has_capacity(request, item):
                return False
            if is_shared:
                share = capacity.consumed(request.capacity, device)
                coming = self._coming.setdefault(item.id, {})
                for name, amount in share.items():
                    coming[name] = coming.get(name, 0) + amount
        self.results[claim].append(Taken(request, item, share))
        return True

    def _give_back(self, claim: int, request: Request, item: PoolDevice) -> None:
        base, sub = request.base_and_sub
        for constraint in self._constraints[claim]:
            constraint.remove(base, sub)
        taken = self.results[claim].pop()
        if item.id in self._taking:
            self._taking[item.id].discard(claim)
        if taken.consumed is None:
            if item.device.consumesCounters:
                self._uncount(item)
        elif taken.consumed:
            coming = self._coming[item.id]
            for name, amount in taken.consumed.items():
                coming[name] -= amount
            if not any(coming.values()):
                del self._coming[item.id]

    def _constrain(self, claim: int, request: Request, item: PoolDevice, must: bool) -> bool:
        base, sub = request.base_and_sub
        constraints = self._constraints[claim]
        for index, constraint in enumerate(constraints):
            if constraint.add(base, sub, item):
                continue
            if must:
                raise AttemptError(
                    f"claim {request.claim}, request {request.name}: cannot add device {'/'.join(item.id)} because a "
                    "claim constraint would not be satisfied"
                )
            for added in constraints[:index]:
                added.remove(base, sub)
            return False
        return True

    def _count(self, item: PoolDevice) -> bool:
        """Takes the counters of a device if they suffice (checkAvailableCounters)."""
        pool = item.id.pool
        available = self._available.get(pool)
        if available is None:
            available = self._available[pool] = self._left(self._pools[PoolID(item.id.driver, pool)])
        counted = self._counted.setdefault(pool, {})
        for consumption in item.device.consumesCounters or ():
            amounts = counted.setdefault(consumption.counterSet, {})
            for name, counter in (consumption.counters or {}).items():
                amounts[name] = amounts.get(name, 0) + nano_value(counter.value)
        for name, counters in available.items():
            amounts = counted.get(name, {})
            if any(amount < amounts.get(counter, 0) for counter, amount in counters.items()):
                self._uncount(item)
                return False
        return True

    def _uncount(self, item: PoolDevice) -> None:
        counted = self._counted[item.id.pool]
        for consumption in item.device.consumesCounters or ():
            amounts = counted[consumption.counterSet]
            for name, counter in (consumption.counters or {}).items():
                amounts[name] -= nano_value(counter.value)

    def _left(self, pool: Pool) -> Counters:
        """Returns the counters of a pool without what its allocated devices consume."""
        left = {name: dict(counters) for name, counters in pool.counters.items()}
        allocated = self._context.allocated
        for device_id, device in (*((item.id, item.device) for item in pool.devices), *pool.others):
            if device.consumesCounters and device_id in allocated:
                _subtract(left, device)
        return left


def _subtract(counters: Counters, device: Device) -> None:
    for consumption in device.consumesCounters or ():
        amounts = counters.get(consumption.counterSet, {})
        for name, counter in (consumption.counters or {}).items():
            if name in amounts:
                amounts[name] -= nano_value(counter.value)
