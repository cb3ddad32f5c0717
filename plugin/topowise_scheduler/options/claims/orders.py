"""The orders in which kube-scheduler may look at the pools of a node. Pure.

The default of 1.36 sorts pools and slices by name. 1.34 and 1.35 take them as Go's maps and informers list them: in
random order. So an allocation is known there only if each order leads to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, permutations, product
from math import factorial, prod
from typing import Final

import msgspec

from topowise_scheduler.options.claims.inventory import Pool, PoolDevice
from topowise_scheduler.options.claims.requests import Alternatives, Context, Request
from topowise_scheduler.options.claims.work import AttemptError, NotModelledError

MOST_ORDERS: Final = 24

Slice = tuple[PoolDevice, ...]
"""The devices of a slice."""


def orders(
    context: Context, pools: Sequence[Pool], claims: Sequence[Sequence[Alternatives]]
) -> Iterator[Sequence[Pool]]:
    """Yields the pools in each order that may lead to another allocation. Raises NotModelledError for many orders."""
    requests = list(chain.from_iterable(chain.from_iterable(claims)))
    slices = {pool.id: _slices(pool) for pool in pools}
    counts = [0] * len(requests)
    moving: list[Pool] = []
    for pool in pools:
        wanted = [[_is_wanted(context, request, devices) for request in requests] for devices in slices[pool.id]]
        for row in wanted:
            counts = [count + is_wanted for count, is_wanted in zip(counts, row, strict=True)]
        if any(map(any, wanted)) or (pool.invalid and context.features.minor == 34):
            moving.append(pool)
    has_invalid = any(pool.invalid for pool in moving)
    if not has_invalid and all(count <= 1 for count in counts):
        yield pools
        return
    number = factorial(len(moving)) * prod(factorial(len(slices[pool.id])) for pool in moving)
    if number > MOST_ORDERS:
        raise NotModelledError(_random_order(context))
    rest = [pool for pool in pools if pool not in moving]
    for order in permutations(moving):
        for choice in product(*(permutations(slices[pool.id]) for pool in order)):
            yield [*(_with(pool, devices) for pool, devices in zip(order, choice, strict=True)), *rest]


def differ(context: Context) -> NotModelledError:
    """Returns the exception for orders that lead to different allocations."""
    return NotModelledError(_random_order(context))


def _random_order(context: Context) -> str:
    return f"devices in several pools or slices, which 1.{context.features.minor} takes in random order"


def _slices(pool: Pool) -> list[Slice]:
    return [tuple(devices) for _, devices in groupby(pool.devices, key=lambda item: item.stored.serial)]


def _is_wanted(context: Context, request: Request, devices: Slice) -> bool:
    try:
        return any(context.is_selectable(request, item) for item in devices)
    except AttemptError:
        # Whether the expression fails before the search ends depends on the order.
        return True


def _with(pool: Pool, slices: Sequence[Slice]) -> Pool:
    return msgspec.structs.replace(pool, devices=tuple(chain.from_iterable(slices)))
