"""Which devices the claims of the cluster have. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topowise.quantity import nano_value
from topowise_scheduler.options.claims.objects import DeviceID, DeviceRequestAllocationResult

Capacity = dict[str, int]
"""Amounts by the name of a capacity, in billionths."""

_NOTHING: Final[dict[str, Capacity | None]] = {}


class AllocatedDevices:
    """Devices of allocated claims: `devices` belong to a single claim, `shares` are the devices that several claims
    share, with the capacity of each share by its id.

    A device with admin access does not count (foreachAllocatedDevice in kube-scheduler's allocateddevices.go).
    """

    def __init__(self) -> None:
        self.devices: set[DeviceID] = set()
        self.shares: dict[DeviceID, dict[str, Capacity | None]] = {}

    def __contains__(self, device: object) -> bool:
        """Whether a claim has the device, or a share of it."""
        return device in self.devices or device in self.shares

    def add(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        """Adds the devices of a claim's allocation."""
        for result in results:
            if result.adminAccess:
                continue
            if result.shareID is None:
                self.devices.add(result.id)
                continue
            texts = result.consumedCapacity
            capacity = None if texts is None else {name: nano_value(text) for name, text in texts.items()}
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

    def consumed(self, device: DeviceID) -> Capacity | None:
        """Returns the capacity of all shares of a device, None if no share has any."""
        capacities = [item for item in self.shares.get(device, _NOTHING).values() if item is not None]
        if not capacities:
            return None
        total: Capacity = {}
        for capacity in capacities:
            for name, amount in capacity.items():
                total[name] = total.get(name, 0) + amount
        return total
