"""The share of a device's capacity that a request takes (DRAConsumableCapacity). Pure; amounts are in billionths.

Upstream: consumable_capacity.go in k8s.io/dynamic-resource-allocation/structured/internal/incubating (1.36).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise.quantity import nano_value
from topowise_scheduler.options.claims.objects import CapacityRequestPolicy, Device, DeviceCapacity

_BILLION: Final = 1_000_000_000
_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def consumed(requests: Mapping[str, str], device: Device) -> dict[str, str]:
    """Returns the share of each capacity that a request takes, as quantities (GetConsumedCapacityFromRequest)."""
    return {name: _share(requests.get(name), item) for name, item in (device.capacity or {}).items()}


def fits(
    requests: Mapping[str, str], device: Device, taken: Mapping[str, int], coming: Sequence[Mapping[str, str]]
) -> bool:
    """Whether a request fits on a device (CmpRequestOverCapacity): `taken` are the shares of allocated claims, `coming`
    the shares of the claims that are being allocated. A request for a capacity that the device lacks does not fit."""
    capacity = device.capacity or {}
    if any(name not in capacity for name in requests):
        return False
    for name, item in capacity.items():
        share = nano_value(_share(requests.get(name), item))
        if _violates(share, item.requestPolicy):
            return False
        others = taken.get(name, 0) + sum(nano_value(shares.get(name, "0")) for shares in coming)
        if others + share > nano_value(item.value):
            return False
    return True


def _share(requested: str | None, capacity: DeviceCapacity) -> str:
    policy = capacity.requestPolicy
    if requested is None:
        return capacity.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return requested
    if policy.validRange is not None and policy.validRange.min is not None:
        return _rounded_to_range(requested, policy.validRange.min, policy.validRange.step)
    amount = nano_value(requested)
    return next((value for value in policy.validValues or () if amount <= nano_value(value)), requested)


def _rounded_to_range(requested: str, least: str, step: str | None) -> str:
    if nano_value(requested) < nano_value(least):
        return least
    if step is None:
        return requested
    # Upstream counts whole units here.
    start, width = _units(nano_value(least)), _units(nano_value(step))
    return _binary(start + -(-(_units(nano_value(requested)) - start) // width) * width)


def _binary(amount: int) -> str:
    """Returns a quantity as Kubernetes writes it in binary form."""
    power = 0
    while amount and amount % 1024 == 0 and power < len(_SUFFIXES) - 1:
        amount //= 1024
        power += 1
    return f"{amount}{_SUFFIXES[power]}"


def _units(nano: int) -> int:
    """Returns the amount in whole units, rounded up (Quantity.Value)."""
    return -(-nano // _BILLION)


def _violates(share: int, policy: CapacityRequestPolicy | None) -> bool:
    limits = None if policy is None else policy.validRange
    if limits is not None:
        if limits.max is not None and share > nano_value(limits.max):
            return True
        width = _BILLION if limits.step is None else nano_value(limits.step)
        return limits.step is not None and (_units(share) - _units(nano_value(limits.min or "0"))) % _units(width) != 0
    values = () if policy is None else policy.validValues or ()
    return bool(values) and share not in map(nano_value, values)
