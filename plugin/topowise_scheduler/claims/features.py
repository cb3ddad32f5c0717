"""The features of kube-scheduler's allocator by its version and feature gates."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Features(msgspec.Struct, frozen=True, gc=False):
    """`minor` is kube-scheduler's, 34 for 1.34. The other fields are of structured/internal/types.go."""

    minor: int
    admin_access: bool = False
    consumable_capacity: bool = False
    binding_conditions: bool = False
    device_taints: bool = False
    list_attributes: bool = False
    partitionable_devices: bool = False
    prioritized_list: bool = False
    extended_resource: bool = False


# Feature gates by field, and the minor since which each is on by default; None for an alpha gate.
_GATES: dict[str, tuple[str, int | None]] = {
    "admin_access": ("DRAAdminAccess", 34),
    "consumable_capacity": ("DRAConsumableCapacity", 36),
    "binding_conditions": ("DRADeviceBindingConditions", 36),
    "device_taints": ("DRADeviceTaints", 36),
    "list_attributes": ("DRAListTypeAttributes", None),
    "partitionable_devices": ("DRAPartitionableDevices", 36),
    "prioritized_list": ("DRAPrioritizedList", 34),
    "extended_resource": ("DRAExtendedResource", 36),
}


def features_of(minor: int, gates: Mapping[str, bool] | None = None) -> Features:
    """Returns the features of kube-scheduler 1.`minor`; `gates` are its feature gates that are not at their default."""
    gates = gates or {}
    return Features(
        minor,
        **{field: gates.get(gate, since is not None and minor >= since) for field, (gate, since) in _GATES.items()},
    )
