"""The requests of claims as the search uses them: checked, with their class and their candidates. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from topowise_scheduler.options.claims import capacity
from topowise_scheduler.options.claims.allocated import AllocatedDevices
from topowise_scheduler.options.claims.inventory import Pool, PoolDevice, node_matches
from topowise_scheduler.options.claims.objects import (
    DeviceClass,
    DeviceID,
    DeviceRequest,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from topowise_scheduler.options.claims.selectors import Match, Selectors
from topowise_scheduler.options.claims.work import NotModelledError, RefusedError, SpentError, Work
from topowise_scheduler.verdicts.kube_scheduler import Node

MOST_RESULTS: Final = 32
"""The most devices of a claim (AllocationResultsMaxSize)."""


class Request(msgspec.Struct, eq=False):
    """A request, or an alternative of a request with `firstAvailable`. `selectors` are the CEL expressions of the class
    and of the request. `candidates` are the devices that match, in the order of the pools: the request gets `count` of
    them, all with `is_all`. `problem`: why it cannot be allocated."""

    claim: str
    name: str
    parent: str
    spec: ExactDeviceRequest | DeviceSubRequest
    device_class: DeviceClass
    is_admin: bool
    selectors: tuple[str, ...]
    candidates: tuple[PoolDevice, ...] = ()
    count: int = 0
    problem: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def is_all(self) -> bool:
        return self.spec.allocationMode == "All"

    @property
    def capacity(self) -> Mapping[str, str]:
        return (self.spec.capacity.requests if self.spec.capacity is not None else None) or {}

    def tolerates(self, item: PoolDevice) -> bool:
        """Whether the taints of a device let the request have it."""
        return all(
            any(_tolerates(toleration, taint) for toleration in self.spec.tolerations or ())
            for taint in item.device.taints or ()
            if taint.effect in ("NoSchedule", "NoExecute")
        )


Alternatives = tuple[Request, ...]
"""The alternatives of a request; a request without alternatives is alone and has no parent."""


class Context(msgspec.Struct, eq=False):
    """What all requests of a pod share on a node. `failed` is the first failure of a selector, and `unknown` the first
    feature for which a device is no candidate because the feature is not modelled."""

    node: Node
    selectors: Selectors
    allocated: AllocatedDevices
    classes: Mapping[str, DeviceClass]
    work: Work
    ranks: Mapping[DeviceID, int | None]
    failed: str = ""
    unknown: str = ""

    def matches(self, request: Request, item: PoolDevice) -> bool:
        """Whether a device matches the class and the request. Raises RefusedError if a selector fails for the device,
        and NotModelledError."""
        self.work.spend(1)
        for selector in request.selectors:
            match = self.selectors.match(selector, item, self.work)
            if match is Match.NO:
                return False
            if match is not Match.YES:
                reason = self.selectors.reason(selector, item, self.work)
                text = f"claim {request.claim}, request {request.full_name}, device {'/'.join(item.id)}: {reason}"
                raise RefusedError(text) if match is Match.FAILS else NotModelledError(text)
        if not item.stored.slice.spec.perDeviceNodeSelection:
            return True
        device = item.device
        return node_matches(self.node, device.nodeName, device.allNodes, device.nodeSelector)

    def has_capacity(self, request: Request, item: PoolDevice, coming: Sequence[Mapping[str, str]]) -> bool:
        """Whether a device has the capacity that a request takes; `coming` is what the claims of the pod take."""
        if item.is_plain and not request.capacity and item.id not in self.allocated.shares:
            return True
        taken = self.allocated.consumed(item.id) if self.allocated.shares else None
        return capacity.fits(request.capacity, item.device, taken or {}, coming)


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """ToleratesTaint in k8s.io/dynamic-resource-allocation/resourceclaim/devicetoleration.go."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def requests_of(claim: ResourceClaim, context: Context, pools: Sequence[Pool]) -> list[Alternatives]:
    """Returns the requests of a claim. Raises RefusedError and NotModelledError."""
    if claim.not_modelled:
        raise NotModelledError(f"field {claim.not_modelled[0]} of ResourceClaim {claim.key}")
    requests = [_alternatives(claim, request, context, pools) for request in claim.spec.devices.requests or ()]
    least = sum(min(alternative.count for alternative in alternatives) for alternatives in requests)
    if least > MOST_RESULTS:
        raise RefusedError(f"claim {claim.key}: number of requested devices {least} exceeds the claim limit of 32")
    return requests


def _alternatives(
    claim: ResourceClaim, request: DeviceRequest, context: Context, pools: Sequence[Pool]
) -> Alternatives:
    specs = request.firstAvailable or ((request.exactly,) if request.exactly is not None else ())
    if not specs:
        raise NotModelledError(f"claim {claim.key}, request {request.name}: neither exactly nor firstAvailable")
    return tuple(_checked(claim, request.name, spec, context, pools) for spec in specs)


def _checked(
    claim: ResourceClaim,
    name: str,
    spec: ExactDeviceRequest | DeviceSubRequest,
    context: Context,
    pools: Sequence[Pool],
) -> Request:
    where = f"claim {claim.key}, request {name}"
    device_class = context.classes.get(spec.deviceClassName)
    if device_class is None:
        raise RefusedError(f"{where}: there is no DeviceClass {spec.deviceClassName}")
    if device_class.not_modelled:
        raise NotModelledError(f"field {device_class.not_modelled[0]} of DeviceClass {device_class.name}")
    if spec.allocationMode not in ("ExactCount", "All"):
        raise NotModelledError(f"{where}: allocationMode {spec.allocationMode}")
    selectors = (*(device_class.spec.selectors or ()), *(spec.selectors or ()))
    expressions = tuple([selector.cel.expression for selector in selectors if selector.cel is not None])
    if len(expressions) < len(selectors):
        raise NotModelledError(f"{where}: a selector that is not in CEL")
    own, parent = (spec.name, name) if isinstance(spec, DeviceSubRequest) else (name, "")
    is_admin = isinstance(spec, ExactDeviceRequest) and bool(spec.adminAccess)
    request = Request(claim.key, own, parent, spec, device_class, is_admin, expressions, count=spec.count)
    _find_candidates(where, request, context, pools)
    return request


def _find_candidates(where: str, request: Request, context: Context, pools: Sequence[Pool]) -> None:
    found: list[PoolDevice] = []
    problems: list[str] = []
    for pool in pools:
        if pool.problem:
            problems.append(f"pool {pool.id.pool} {pool.problem}")
        for item in pool.devices:
            # All devices that match include those that cannot be allocated.
            if not request.is_all and not _is_free(context, request, item):
                continue
            problem = _problem(context, request, item)
            if problem:
                problems.append(f"for {'/'.join(item.id)}: {problem}")
            elif problem is not None:
                found.append(item)
    request.candidates = tuple(found)
    if request.is_all:
        request.count = len(found)
        if problems or not found:
            request.problem = f"{where}: asks for all devices, but {problems[0] if problems else 'there are none'}"


def _is_free(context: Context, request: Request, item: PoolDevice) -> bool:
    is_taken = item.id in context.allocated.devices and not request.is_admin
    return context.ranks[item.id] is not None and not is_taken


def _problem(context: Context, request: Request, item: PoolDevice) -> str | None:
    """Returns why a device cannot be allocated, "" if it can, and None if it does not match the request."""
    try:
        if not context.matches(request, item) or not context.has_capacity(request, item, ()):
            return None
    except SpentError:
        raise
    except RefusedError as error:
        context.failed = context.failed or str(error)
        return str(error)
    except NotModelledError as error:
        context.unknown = context.unknown or str(error)
        return str(error)
    context.unknown = context.unknown or item.not_modelled
    return item.not_modelled or ("" if context.ranks[item.id] is not None else "it is not to be allocated")
