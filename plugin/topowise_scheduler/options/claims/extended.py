"""The claim that kube-scheduler makes for the extended resources of a pod that a node has as devices of a class
(DRAExtendedResource). Pure.

Upstream: extendeddynamicresources.go in pkg/scheduler/framework/plugins/dynamicresources (1.36), and
k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from topowise import quantity
from topowise.errors import ParseError
from topowise.pods import Amounts, Container, Quantities, Spec
from topowise_scheduler.options.claims.allocator import Unknown
from topowise_scheduler.options.claims.objects import (
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


class ExtendedResources:
    """The class of each extended resource. Of several classes that name the same resource the youngest has it, and of
    equally old classes the first by name.

    Whether each other of these classes still has the resource of its own name depends on the order in which
    kube-scheduler saw them.
    """

    def __init__(self, classes: Iterable[DeviceClass]) -> None:
        self._classes: dict[str, DeviceClass] = {}
        self._uncertain: set[str] = set()
        ordered = sorted(classes, key=lambda item: item.name, reverse=True)
        # A stable sort: the last class of a resource stays.
        for item in sorted(ordered, key=lambda item: item.metadata.creationTimestamp or ""):
            self._classes[CLASS_PREFIX + item.name] = item
            if item.spec.extendedResourceName is None:
                continue
            before = self._classes.get(item.spec.extendedResourceName)
            if before is not None:
                self._uncertain.add(CLASS_PREFIX + before.name)
            self._classes[item.spec.extendedResourceName] = item

    def requested_by(self, spec: Spec) -> tuple[str, ...]:
        """Returns the resources of a pod that a class backs, sorted. On nodes that list a resource as allocatable the
        device plug-in provides it, on other nodes the class."""
        containers = _containers(spec)
        names = {name for item in containers for name in _requests(item) if name in self._classes}
        return tuple(sorted(name for name in names if any(_count(item, name) for item in containers)))

    def claim(
        self, namespace: str, spec: Spec, resources: Sequence[str], allocatable: Amounts
    ) -> ResourceClaim | Unknown | None:
        """Returns the claim for a node with these allocatable resources, None if it needs none. `resources` is the
        result of `requested_by`. The claim follows the pod's other claims (filterExtendedResources)."""
        lacking = [name for name in resources if not allocatable.get(name)]
        if not lacking:
            return None
        for name in lacking:
            if name in self._uncertain:
                return Unknown(f"extended resource {name} of a class that shares its extendedResourceName")
        requests: list[DeviceRequest] = []
        for resource in lacking:
            for needed in _needed(_containers(spec), len(spec.initContainers or ()), resource):
                exactly = ExactDeviceRequest(deviceClassName=self._classes[resource].name, count=needed.count)
                requests.append(DeviceRequest(needed.name, exactly))
        requests.sort(key=lambda request: request.name)
        devices = DeviceClaim(tuple(requests))
        return ResourceClaim(ClaimMeta(name=NAME, namespace=namespace), ResourceClaimSpec(devices))


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
