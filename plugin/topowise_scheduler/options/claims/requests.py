"""The requests of claims as the search uses them: checked, with their class and their candidates. Pure.

Upstream: Allocate and validateDeviceRequest in allocator_incubating.go (1.36).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from topowise.quantity import nano_value
from topowise_scheduler.options.claims import capacity
from topowise_scheduler.options.claims.allocated import AllocatedDevices
from topowise_scheduler.options.claims.features import Features
from topowise_scheduler.options.claims.inventory import Pool, PoolDevice, node_matches
from topowise_scheduler.options.claims.objects import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from topowise_scheduler.options.claims.selectors import Match, Selectors
from topowise_scheduler.options.claims.work import AttemptError, NotModelledError, Work
from topowise_scheduler.verdicts.kube_scheduler import Node

MOST_RESULTS: Final = 32
"""The most devices of a claim (AllocationResultsMaxSize)."""


class Request(msgspec.Struct, eq=False):
    """A request, or an alternative of a request with `firstAvailable`. `count` is the number of its devices, `every`
    the devices of the mode "All", None in the mode "ExactCount". `matches` keeps which devices match the selectors."""

    claim: str
    name: str
    parent: str
    spec: ExactDeviceRequest | DeviceSubRequest
    device_class: DeviceClass
    is_admin: bool
    capacity: Mapping[str, int]
    count: int = 0
    every: tuple[PoolDevice, ...] | None = None
    matches: dict[PoolDevice, bool] = {}

    @property
    def full_name(self) -> str:
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def base_and_sub(self) -> tuple[str, str]:
        """The names that constraints use."""
        return (self.parent, self.name) if self.parent else (self.name, "")


Alternatives = tuple[Request, ...]
"""The alternatives of a request; a request without alternatives is alone and has no parent."""


class Context(msgspec.Struct, frozen=True, eq=False):
    """What all requests of a pod share on a node."""

    node: Node
    features: Features
    selectors: Selectors
    allocated: AllocatedDevices
    classes: Mapping[str, DeviceClass]
    work: Work

    def is_selectable(self, request: Request, item: PoolDevice) -> bool:
        """Whether a device matches the class and the request. Raises AttemptError and NotModelledError."""
        if item.device.bindingConditions and not self.features.binding_conditions:
            return False
        known = request.matches.get(item)
        if known is None:
            known = request.matches[item] = self._selects(request, item)
        return known

    def _selects(self, request: Request, item: PoolDevice) -> bool:
        device_class = request.device_class
        spec = item.stored.slice.spec
        return (
            self._match(f"class {device_class.name}", device_class.spec.selectors or (), item)
            and self._match(f"claim {request.claim}", request.spec.selectors or (), item)
            and (
                not spec.perDeviceNodeSelection
                or node_matches(self.node, item.device.nodeName, item.device.allNodes, item.device.nodeSelector)
            )
        )

    def _match(self, owner: str, selectors: Sequence[DeviceSelector], item: PoolDevice) -> bool:
        knows_shares = self.features.consumable_capacity
        for number, selector in enumerate(selectors):
            self.work.spend(1)
            if selector.cel is None:
                raise AttemptError(f"{owner}: selector #{number}: CEL expression empty (unsupported selector type?)")
            text = selector.cel.expression
            match = self.selectors.match(text, item, knows_shares, self.work)
            if match is Match.NO:
                return False
            if match is not Match.YES:
                reason = self.selectors.reason(text, item, knows_shares, self.work)
                if match is Match.FAILS:
                    raise AttemptError(f"{owner}: selector #{number}: CEL runtime error: {reason}")
                raise NotModelledError(f"{owner}: selector #{number}: {reason}")
        return True

    def has_capacity(self, request: Request, item: PoolDevice, coming: Mapping[str, int]) -> bool:
        """Whether a device has the capacity that a request takes; `coming` is what the claims of the pod take."""
        if item.is_plain and not request.capacity and item.id not in self.allocated.shares:
            return True
        taken = self.allocated.consumed(item.id) if self.allocated.shares else None
        return capacity.fits(request.capacity, item.device, taken or {}, coming)

    def tolerates(self, request: Request, item: PoolDevice) -> bool:
        """Whether the taints of a device let the request have it."""
        if not self.features.device_taints:
            return True
        tolerations = request.spec.tolerations or ()
        every_effect = self.features.minor == 34
        return all(
            any(_tolerates(toleration, taint) for toleration in tolerations)
            for taint in item.device.taints or ()
            if every_effect or taint.effect in ("NoSchedule", "NoExecute")
        )


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """ToleratesTaint in k8s.io/dynamic-resource-allocation/resourceclaim/devicetoleration.go."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def requests_of(claim: ResourceClaim, context: Context, pools: Sequence[Pool]) -> list[Alternatives]:
    """Returns the requests of a claim. Raises AttemptError and NotModelledError."""
    if claim.not_modelled:
        raise NotModelledError(f"field {claim.not_modelled[0]} of ResourceClaim {claim.key}")
    requests: list[Alternatives] = []
    least = 0
    for request in claim.spec.devices.requests or ():
        alternatives = _alternatives(claim, request, context, pools)
        least += min(alternative.count for alternative in alternatives)
        requests.append(alternatives)
    if least > MOST_RESULTS:
        raise AttemptError(f"claim {claim.key}: number of requested devices {least} exceeds the claim limit of 32")
    return requests


def _alternatives(
    claim: ResourceClaim, request: DeviceRequest, context: Context, pools: Sequence[Pool]
) -> Alternatives:
    where = f"claim {claim.key}, request {request.name}"
    features = context.features
    subrequests = request.firstAvailable or ()
    if subrequests and not features.prioritized_list:
        raise AttemptError(f"{where}: has subrequests, but the DRAPrioritizedList feature is disabled")
    specs = subrequests or ((request.exactly,) if request.exactly is not None else ())
    if not specs:
        raise NotModelledError(f"{where}: neither exactly nor firstAvailable")
    if features.is_sorted and not features.consumable_capacity and any(spec.capacity is not None for spec in specs):
        raise AttemptError(f"{where}: has capacity requests, but the DRAConsumableCapacity feature is disabled")
    return tuple(
        _checked(where, claim, spec.name, request.name, spec, context, pools)
        if isinstance(spec, DeviceSubRequest)
        else _checked(where, claim, request.name, "", spec, context, pools)
        for spec in specs
    )


def _checked(
    where: str,
    claim: ResourceClaim,
    name: str,
    parent: str,
    spec: ExactDeviceRequest | DeviceSubRequest,
    context: Context,
    pools: Sequence[Pool],
) -> Request:
    """validateDeviceRequest."""
    if any(selector.cel is None for selector in spec.selectors or ()):
        raise AttemptError(f"{where}: CEL expression empty (unsupported selector type?)")
    admin = spec.adminAccess if isinstance(spec, ExactDeviceRequest) else None
    if admin is not None and not context.features.admin_access:
        raise AttemptError(f"{where}: admin access is requested, but the feature is disabled")
    device_class = context.classes.get(spec.deviceClassName)
    if device_class is None:
        raise AttemptError(f"{where}: could not retrieve device class {spec.deviceClassName}")
    if device_class.not_modelled:
        raise NotModelledError(f"field {device_class.not_modelled[0]} of DeviceClass {device_class.name}")
    requested = spec.capacity.requests if spec.capacity is not None else None
    amounts = {item: nano_value(amount) for item, amount in (requested or {}).items()}
    request = Request(claim.key, name, parent, spec, device_class, bool(admin), amounts)
    if spec.allocationMode == "ExactCount":
        request.count = spec.count
    elif spec.allocationMode == "All":
        request.every = _every(where, request, context, pools)
        request.count = len(request.every)
    else:
        raise AttemptError(f"{where}: unsupported count mode {spec.allocationMode}")
    return request


def _every(where: str, request: Request, context: Context, pools: Sequence[Pool]) -> tuple[PoolDevice, ...]:
    devices: list[PoolDevice] = []
    for pool in pools:
        if pool.is_incomplete or pool.invalid:
            state = "being updated" if pool.is_incomplete else "invalid"
            raise AttemptError(f"{where}: asks for all devices, but resource pool {pool.id.pool} is currently {state}")
        devices.extend(
            item
            for item in pool.devices
            if context.is_selectable(request, item)
            and (not context.features.consumable_capacity or context.has_capacity(request, item, {}))
        )
    return tuple(devices)
