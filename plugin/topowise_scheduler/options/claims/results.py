"""The allocation of a claim as the API stores it, from the devices that were chosen. Pure.

Upstream: Allocate and createNodeSelector in k8s.io/dynamic-resource-allocation/structured/internal/incubating,
allocator_incubating.go (1.36).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from topowise_scheduler.options.claims.objects import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClaimConfiguration,
    DeviceRequestAllocationResult,
)
from topowise_scheduler.options.claims.requests import Request
from topowise_scheduler.options.claims.search import Taken
from topowise_scheduler.verdicts.kube_scheduler import Node, NodeSelector, Requirement, Term


def allocation_of(
    node: Node, config: Sequence[DeviceClaimConfiguration] | None, devices: Sequence[Taken]
) -> AllocationResult:
    """Returns the allocation of a claim with this configuration on a node, without timestamp. The share id of a device
    that several claims share is "": `with_share_ids` gives it one."""
    requests = list(dict.fromkeys(taken.request for taken in devices))
    configuration = (*_of_classes(requests), *_of_claim(requests, config or ()))
    results = tuple(_result(taken) for taken in devices)
    return AllocationResult(DeviceAllocationResult(results, configuration or None), _node_selector(node, devices))


def with_share_ids(allocation: AllocationResult, new_id: Callable[[], str]) -> AllocationResult:
    """Returns the allocation with an id (a UUID as the API stores it) for each device that several claims share."""
    results = tuple(
        result if result.shareID is None else msgspec.structs.replace(result, shareID=new_id())
        for result in allocation.devices.results or ()
    )
    return msgspec.structs.replace(allocation, devices=msgspec.structs.replace(allocation.devices, results=results))


def _result(taken: Taken) -> DeviceRequestAllocationResult:
    request, item = taken.request, taken.item
    return DeviceRequestAllocationResult(
        request.full_name,
        *item.id,
        adminAccess=request.is_admin or None,
        tolerations=request.spec.tolerations or None,
        shareID=None if taken.consumed is None else "",
        consumedCapacity=taken.consumed or None,
        bindingConditions=item.device.bindingConditions or None,
        bindingFailureConditions=item.device.bindingFailureConditions or None,
    )


def _of_classes(requests: Iterable[Request]) -> Iterator[DeviceAllocationConfiguration]:
    """Yields the configuration of each class once, for all its requests."""
    by_class: dict[str, list[Request]] = {}
    for request in requests:
        by_class.setdefault(request.device_class.name, []).append(request)
    for of_class in by_class.values():
        names = tuple(request.full_name for request in of_class)
        for config in of_class[0].device_class.spec.config or ():
            yield DeviceAllocationConfiguration(config.opaque, "FromClass", names)


def _of_claim(
    requests: Sequence[Request], config: Iterable[DeviceClaimConfiguration]
) -> Iterator[DeviceAllocationConfiguration]:
    """Yields the configuration of a claim; with names of requests, once for each of them that was chosen."""
    for item in config:
        names = item.requests or ()
        count = sum(not names or request.parent in names or request.full_name in names for request in requests)
        for _ in range(count if names else 1):
            yield DeviceAllocationConfiguration(item.opaque, "FromClaim", item.requests or None)


def _node_selector(node: Node, devices: Iterable[Taken]) -> NodeSelector | None:
    """Returns for which nodes the devices are, None for all."""
    fields: list[Requirement] = []
    expressions: list[Requirement] = []
    for item in (taken.item for taken in devices):
        where = item.device if item.stored.slice.spec.perDeviceNodeSelection else item.stored.slice.spec
        if where.nodeName or item.device.bindsToNode:
            return NodeSelector((Term(matchFields=(Requirement("metadata.name", "In", (node.name,)),)),))
        # The API server accepts a single term here.
        for term in (where.nodeSelector.nodeSelectorTerms or () if where.nodeSelector is not None else ())[:1]:
            _add(fields, term.matchFields)
            _add(expressions, term.matchExpressions)
    if not fields and not expressions:
        return None
    return NodeSelector((Term(tuple(expressions), tuple(fields)),))


def _add(requirements: list[Requirement], more: Iterable[Requirement] | None) -> None:
    known = {(item.key, item.operator, frozenset(item.values or ())) for item in requirements}
    for item in more or ():
        if (item.key, item.operator, frozenset(item.values or ())) not in known:
            known.add((item.key, item.operator, frozenset(item.values or ())))
            requirements.append(item)
