"""kube-scheduler's allocator for ResourceClaims, for a single node.

Upstream: staging/src/k8s.io/dynamic-resource-allocation/structured (1.34 to 1.36).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from topowise_scheduler.claims.allocated import AllocatedDevices, Capacity
from topowise_scheduler.claims.features import Features
from topowise_scheduler.claims.inventory import Inventory
from topowise_scheduler.claims.objects import Device, DeviceClass, DeviceID, ResourceClaim
from topowise_scheduler.claims.selectors import Selectors
from topowise_scheduler.kube_scheduler import Node


class AllocatedDevice(msgspec.Struct, frozen=True, gc=False):
    """A device of a claim. `request` is the name of the request, "name/subrequest" for a request with `firstAvailable`.
    `consumed` is the share of a device that several claims share."""

    request: str
    id: DeviceID
    device: Device
    admin_access: bool = False
    consumed: Capacity | None = None


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """The devices of each claim, in the order of the claims."""

    claims: tuple[tuple[AllocatedDevice, ...], ...]


class NoFit(msgspec.Struct, frozen=True, gc=False):
    """kube-scheduler allocates nothing on this node. With `ends_attempt` the error is not of this node alone: it ends
    the attempt to schedule the pod, for example a selector that fails at run time."""

    reason: str
    ends_attempt: bool = False


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The result depends on something that is not modelled: `feature` names it."""

    feature: str


def allocate(
    node: Node,
    claims: Sequence[ResourceClaim],
    inventory: Inventory,
    classes: Mapping[str, DeviceClass],
    allocated: AllocatedDevices,
    features: Features,
    selectors: Selectors,
) -> Allocation | NoFit | Unknown:
    """Returns the devices that kube-scheduler allocates to the claims on the node.

    `claims` are the claims of a pod without an allocation, in the order of `spec.resourceClaims`; claims with an
    allocation are not passed. `classes` are by name. `allocated` includes the claims that kube-scheduler has allocated
    but not yet written. `features` are by kube-scheduler's version and gates.
    """
    return Unknown("the allocator")
