"""The devices of a pod's claims on a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from topowise.claimed_devices import Location
from topowise_scheduler.options.claims.objects import DeviceID, DeviceRequestAllocationResult


class ClaimedDevice(NamedTuple):
    """A device of a pod's claim. `location` is None for a device that is not on the node, such as a device of the
    network."""

    id: DeviceID
    location: Location | None


class ClaimedDevices(NamedTuple):
    """The devices of a pod's claims on a node, without devices with admin access. `is_allocated`: all claims have their
    allocation; otherwise a part is predicted. `problem`: why the devices are not known, "" if they are. `is_short`:
    the node is known to lack devices for the claims, which `problem` says as well. `results` are the predicted devices
    by claim."""

    devices: tuple[ClaimedDevice, ...] = ()
    is_allocated: bool = False
    problem: str = ""
    is_short: bool = False
    results: Mapping[str, tuple[DeviceRequestAllocationResult, ...]] = {}
