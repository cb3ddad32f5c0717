"""The features of kube-scheduler's allocator by its version and feature gates. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

OLDEST: Final = 34
NEWEST: Final = 36
"""The minors of kube-scheduler whose allocator is modelled."""


class Features(msgspec.Struct, frozen=True, gc=False):
    """`minor` is kube-scheduler's, 34 for 1.34. The other fields are whether its feature gates are on."""

    minor: int
    admin_access: bool = False
    consumable_capacity: bool = False
    binding_conditions: bool = False
    device_taints: bool = False
    device_taint_rules: bool = False
    list_attributes: bool = False
    partitionable_devices: bool = False
    prioritized_list: bool = False
    extended_resource: bool = False

    @property
    def is_sorted(self) -> bool:
        """Whether the allocator sorts pools and slices by name. Other versions take them in random order.

        1.36 has two implementations that are used: "incubating" with one of these gates (the default), else "stable".
        """
        return self.minor >= 36 and (self.consumable_capacity or self.binding_conditions)

    @property
    def not_modelled(self) -> str:
        """The feature that is not modelled, empty if all are."""
        if not OLDEST <= self.minor <= NEWEST:
            return f"kube-scheduler 1.{self.minor}"
        if self.list_attributes:
            return "feature gate DRAListTypeAttributes"
        if self.device_taint_rules:
            return "feature gate DRADeviceTaintRules"
        if self.minor < 36 and self.consumable_capacity:
            return f"feature gate DRAConsumableCapacity of 1.{self.minor}"
        if self.minor < 36 and self.binding_conditions:
            return f"feature gate DRADeviceBindingConditions of 1.{self.minor}"
        if self.minor < 35 and self.partitionable_devices:
            return f"feature gate DRAPartitionableDevices of 1.{self.minor}"
        return ""


# Feature gates by field, and the minor since which each is on by default; None for a gate that is off in 1.36.
_GATES: Final[Mapping[str, tuple[str, int | None]]] = {
    "admin_access": ("DRAAdminAccess", 34),
    "consumable_capacity": ("DRAConsumableCapacity", 36),
    "binding_conditions": ("DRADeviceBindingConditions", 36),
    "device_taints": ("DRADeviceTaints", 36),
    "device_taint_rules": ("DRADeviceTaintRules", None),
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
