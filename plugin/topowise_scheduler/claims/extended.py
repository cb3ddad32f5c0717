"""The claim that kube-scheduler makes for the extended resources of a pod that a node has as devices of a class
(DRAExtendedResource). Pure.

Upstream: extendeddynamicresources.go in pkg/scheduler/framework/plugins/dynamicresources (1.36), and
k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from topowise import quantity
from topowise.errors import ParseError
from topowise.pods import Amounts, Container, Quantities, Spec
from topowise_scheduler.claims.objects import (
    ClaimMeta,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)

CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that each class has without naming it."""
NAME: Final = "<extended-resources>"
"""The name of the claim until kube-scheduler writes it."""


class _Needed(msgspec.Struct, frozen=True, gc=False):
    """The request of a container: `count` devices beyond the devices of other containers that it may use."""

    name: str
    count: int


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """Returns the class of each extended resource. Of several classes that name the same resource the youngest has it,
    and of equally old classes the first by name."""
    by_resource: dict[str, DeviceClass] = {}
    ordered = sorted(classes, key=lambda item: item.name, reverse=True)
    # A stable sort: the last class of a resource stays.
    for item in sorted(ordered, key=lambda item: item.metadata.creationTimestamp or ""):
        by_resource[CLASS_PREFIX + item.name] = item
        if item.spec.extendedResourceName is not None:
            by_resource[item.spec.extendedResourceName] = item
    return by_resource


def resources_of(spec: Spec, by_resource: Mapping[str, DeviceClass]) -> tuple[str, ...]:
    """Returns the extended resources of a pod that a class backs, sorted: on nodes that list them as allocatable the
    device plug-in provides them, on other nodes the class."""
    names = {name for item in _containers(spec) for name in _requests(item) if name in by_resource}
    return tuple(sorted(name for name in names if any(_count(item, name) for item in _containers(spec))))


def claim_of_pod(
    namespace: str, spec: Spec, resources: Sequence[str], allocatable: Amounts, by_resource: Mapping[str, DeviceClass]
) -> ResourceClaim | None:
    """Returns the claim for a node with these allocatable resources, None if it needs none. `resources` is the result
    of `resources_of`. The claim follows the pod's other claims (filterExtendedResources)."""
    lacking = [name for name in resources if not allocatable.get(name)]
    if not lacking:
        return None
    requests: list[DeviceRequest] = []
    for resource in lacking:
        for needed in _needed(_containers(spec), len(spec.initContainers or ()), resource):
            exactly = ExactDeviceRequest(deviceClassName=by_resource[resource].name, count=needed.count)
            requests.append(DeviceRequest(needed.name, exactly))
    requests.sort(key=lambda request: request.name)
    spec_of_claim = ResourceClaimSpec(DeviceClaim(tuple(requests)))
    return ResourceClaim(ClaimMeta(name=NAME, namespace=namespace), spec_of_claim)


def _needed(containers: Sequence[Container], init: int, resource: str) -> list[_Needed]:
    """createRequestsAndMappings: init containers may use the devices of the containers that start after them."""
    lasting: list[_Needed | None] = [None] * len(containers)
    for index, container in enumerate(containers):
        if index >= init or container.restartPolicy == "Always":
            lasting[index] = _needed_by(container, index, resource, 0)
    largest: _Needed | None = None
    for index, container in enumerate(containers[:init]):
        if container.restartPolicy == "Always":
            continue
        usable = sum(item.count for item in lasting[index:] if item is not None)
        needed = _needed_by(container, index, resource, usable)
        if needed is not None and (largest is None or largest.count < needed.count):
            largest = needed
    return [item for item in (largest, *lasting) if item is not None]


def _needed_by(container: Container, index: int, resource: str, usable: int) -> _Needed | None:
    count = _count(container, resource) - usable
    if count <= 0:
        return None
    return _Needed(f"container-{index}-request-{sorted(_requests(container)).index(resource)}", count)


def _count(container: Container, resource: str) -> int:
    amount = _requests(container).get(resource)
    if not isinstance(amount, str | int):
        return 0
    try:
        return quantity.whole(amount) or 0
    except ParseError:
        return 0


def _requests(container: Container) -> Quantities:
    return (container.resources.requests if container.resources is not None else None) or {}


def _containers(spec: Spec) -> tuple[Container, ...]:
    return (*(spec.initContainers or ()), *(spec.containers or ()))
