"""The ResourceSlices of the cluster, by node and by pool."""

from __future__ import annotations

from topowise_scheduler.claims.objects import ResourceSlice


class Inventory:
    """All ResourceSlices of the cluster; the watch puts and removes them."""

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}

    def put(self, resource_slice: ResourceSlice) -> None:
        """Adds a slice, or replaces the slice of this name."""
        self._slices[resource_slice.name] = resource_slice

    def remove(self, name: str) -> None:
        """Removes a slice; a name without a slice changes nothing."""
        self._slices.pop(name, None)
