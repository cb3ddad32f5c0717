"""The share of a device's capacity that a request takes (DRAConsumableCapacity). Pure; amounts are in billionths.

Upstream: consumable_capacity.go in k8s.io/dynamic-resource-allocation/structured/internal/incubating (1.36).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topowise.quantity import nano_value
from topowise_scheduler.options.claims.allocated import Capacity
from topowise_scheduler.options.claims.objects import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Device,
    DeviceCapacity,
)

_BILLION: Final = 1_000_000_000


def consumed(requests: Mapping[str, int], device: Device) -> Capacity:
    """Returns the share of each capacity that a request takes (GetConsumedCapacityFromRequest)."""
    return {name: _share(requests.get(name), item) for name, item in (device.capacity or {}).items()}


def fits(requests: Mapping[str, int], device: Device, taken: Mapping[str, int], coming: Mapping[str, int]) -> bool:
    """Whether a request fits on a device (CmpRequestOverCapacity): `taken` are the shares of allocated claims, `coming`
    the shares of the claims that are being allocated. A request for a capacity that the device lacks does not fit."""
    capacity = device.capacity or {}
    if any(name not in capacity for name in requests):
        return False
    for name, item in capacity.items():
        share = _share(requests.get(name), item)
        if _violates(share, item.requestPolicy):
            return False
        if taken.get(name, 0) + share + coming.get(name, 0) > nano_value(item.value):
            return False
    return True


def _share(requested: int | None, capacity: DeviceCapacity) -> int:
    policy = capacity.requestPolicy
    if requested is None:
        return nano_value(capacity.value if policy is None or policy.default is None else policy.default)
    if policy is None:
        return requested
    if policy.validRange is not None and policy.validRange.min is not None:
        return _rounded_to_range(requested, policy.validRange)
    if policy.validValues is not None:
        return next((value for value in map(nano_value, policy.validValues) if requested <= value), requested)
    return requested


def _rounded_to_range(requested: int, limits: CapacityRequestPolicyRange) -> int:
    least = nano_value(limits.min or "0")
    if requested < least:
        return least
    if limits.step is None:
        return requested
    # Upstream counts whole units here.
    step, start = _units(nano_value(limits.step)), _units(least)
    return (start - (start - _units(requested)) // step * step) * _BILLION


def _units(nano: int) -> int:
    """Returns the amount in whole units, rounded up (Quantity.Value)."""
    return -(-nano // _BILLION)


def _violates(share: int, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and share == nano_value(policy.default)):
        return False
    limits = policy.validRange
    if limits is not None:
        if limits.max is not None and share > nano_value(limits.max):
            return True
        if limits.step is None:
            return False
        return (_units(share) - _units(nano_value(limits.min or "0"))) % _units(nano_value(limits.step)) != 0
    return bool(policy.validValues) and share not in map(nano_value, policy.validValues or ())
