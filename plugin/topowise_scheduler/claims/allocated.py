"""Which devices the claims of the cluster have."""

from __future__ import annotations

from collections.abc import Iterable

from topowise.quantity import nano_value
from topowise_scheduler.claims.objects import DeviceID, DeviceRequestAllocationResult

Capacity = dict[str, int]
"""Amounts by the name of a capacity, in billionths."""


class AllocatedDevices:
    """Devices of allocated claims: `devices` belong to a single claim, `shares` are the devices that several claims
    share, with the share of each, and `consumed` their consumed capacity.

    A device with admin access counts for nobody (foreachAllocatedDevice in kube-scheduler's allocateddevices.go).
    """

    def __init__(self) -> None:
        self.devices: set[DeviceID] = set()
        self.shares: dict[DeviceID, dict[str, Capacity]] = {}

    def add(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        """Adds the devices of a claim's allocation."""
        for result in results:
            if result.adminAccess:
                continue
            if result.shareID is None:
                self.devices.add(result.id)
            else:
                capacity = {name: nano_value(text) for name, text in (result.consumedCapacity or {}).items()}
                self.shares.setdefault(result.id, {})[result.shareID] = capacity

    def remove(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        """Removes the devices of a claim's allocation."""
        for result in results:
            if result.adminAccess:
                continue
            if result.shareID is None:
                self.devices.discard(result.id)
                continue
            shares = self.shares.get(result.id, {})
            shares.pop(result.shareID, None)
            if not shares:
                self.shares.pop(result.id, None)
