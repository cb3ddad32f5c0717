"""The fields of v1.Pod that both daemons need, and a pod's requests as exact integers.

A pod object has a hundred fields. Decoding into these structs skips the rest, which makes a watch of a whole cluster
cheap. `needs` converts quantities to integers once (milli-CPU for cpu, units for all other resources), after the
defaulting of the API server. So every later step is integer arithmetic.

Upstream: k8s.io/component-helpers/resource/helpers.go (PodRequests), pkg/apis/core/v1/helper/qos/qos.go (GetPodQOS),
pkg/apis/core/v1/defaults.go (SetDefaults_Pod), KEP-753 (sidecars), KEP-2837 (pod-level resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

import msgspec

from topowise import quantity
from topowise.errors import ParseError

Quantity = str | int | float | None
Quantities = dict[str, Quantity]
Amounts = dict[str, int]
Kind = Literal["app", "init", "sidecar"]
Qos = Literal["Guaranteed", "Burstable", "BestEffort"]

HUGEPAGES: Final = "hugepages-"
# 8 PiB, or nine trillion CPUs.
MAX_AMOUNT: Final = 1 << 53
_LONGEST: Final = 100
_TERMINAL_PHASES: Final = frozenset(("Succeeded", "Failed"))
_QOS_RESOURCES: Final = frozenset(("cpu", "memory"))
_STATED_QOS: Final[Mapping[str, Qos]] = {
    "Guaranteed": "Guaranteed",
    "Burstable": "Burstable",
    "BestEffort": "BestEffort",
}
_NONE: Final[Quantities] = {}


class Resources(msgspec.Struct, frozen=True, gc=False):
    """`resources` of a container or, with KEP-2837, of the pod."""

    requests: Quantities | None = None
    limits: Quantities | None = None


class Container(msgspec.Struct, frozen=True, gc=False):
    name: str
    resources: Resources | None = None
    restartPolicy: str | None = None


class Metadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class SchedulingGroup(msgspec.Struct, frozen=True, gc=False):
    """The PodGroup with which a pod is scheduled (KEP-4671)."""

    podGroupName: str = ""


class PodResourceClaim(msgspec.Struct, frozen=True, gc=False):
    """A claim of a pod (DRA): the name of a ResourceClaim, or of a template from which a claim is generated."""

    name: str = ""
    resourceClaimName: str | None = None
    resourceClaimTemplateName: str | None = None


class ResourceClaimStatus(msgspec.Struct, frozen=True, gc=False):
    """The claim that was generated for an entry of `spec.resourceClaims`; None if the pod needs none."""

    name: str = ""
    resourceClaimName: str | None = None


class ExtendedResourceClaimStatus(msgspec.Struct, frozen=True, gc=False):
    """The claim that kube-scheduler has made for extended resources of the pod (KEP-5004)."""

    resourceClaimName: str = ""


class LabelSelector(msgspec.Struct, frozen=True, gc=False):
    """A selector, of which only the presence is decoded."""


class PodAffinityTerm(msgspec.Struct, frozen=True, gc=False):
    namespaces: tuple[str, ...] | None = None
    namespaceSelector: LabelSelector | None = None


class WeightedPodAffinityTerm(msgspec.Struct, frozen=True, gc=False):
    podAffinityTerm: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(msgspec.Struct, frozen=True, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: tuple[PodAffinityTerm, ...] | None = None
    preferredDuringSchedulingIgnoredDuringExecution: tuple[WeightedPodAffinityTerm, ...] | None = None


class Affinity(msgspec.Struct, frozen=True, gc=False):
    podAffinity: PodAffinity | None = None
    podAntiAffinity: PodAffinity | None = None


class SchedulingGate(msgspec.Struct, frozen=True, gc=False):
    """A gate: no scheduler looks at the pod while it has one."""

    name: str = ""


class Spec(msgspec.Struct, frozen=True, gc=False):
    containers: tuple[Container, ...] | None = ()
    initContainers: tuple[Container, ...] | None = ()
    resources: Resources | None = None
    overhead: Quantities | None = None
    nodeName: str = ""
    schedulerName: str = ""
    priority: int | None = None
    schedulingGroup: SchedulingGroup | None = None
    affinity: Affinity | None = None
    resourceClaims: tuple[PodResourceClaim, ...] | None = None
    schedulingGates: tuple[SchedulingGate, ...] | None = None


class Condition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    lastTransitionTime: str | None = None


class ContainerStatus(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    allocatedResources: Quantities | None = None


class Status(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    qosClass: str = ""
    nominatedNodeName: str = ""
    startTime: str | None = None
    conditions: tuple[Condition, ...] | None = ()
    containerStatuses: tuple[ContainerStatus, ...] | None = ()
    initContainerStatuses: tuple[ContainerStatus, ...] | None = ()
    allocatedResources: Quantities | None = None
    resourceClaimStatuses: tuple[ResourceClaimStatus, ...] | None = None
    extendedResourceClaimStatus: ExtendedResourceClaimStatus | None = None


class Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata
    spec: Spec
    status: Status | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is True."""
        conditions = None if self.status is None else self.status.conditions
        return any(condition.type == "Ready" and condition.status == "True" for condition in conditions or ())

    @property
    def is_terminal(self) -> bool:
        """Whether the pod has ended and its resources are released. A terminating pod still holds all its resources."""
        return self.status is not None and self.status.phase in _TERMINAL_PHASES


decode = msgspec.json.Decoder(Pod).decode
_NO_STATUS: Final = Status()


def claim_names(pod: Pod) -> tuple[str, ...]:
    """Returns the names of the pod's ResourceClaims in the order of the spec, "template/number" for a claim that is not
    generated yet, which is no name of an object (k8s.io/dynamic-resource-allocation/resourceclaim, Name). The claim of
    extended resources is the last."""
    claims, status = pod.spec.resourceClaims, pod.status or _NO_STATUS
    extended = status.extendedResourceClaimStatus
    if not claims and extended is None:
        return ()
    generated = {item.name: item.resourceClaimName for item in status.resourceClaimStatuses or ()}
    names = [
        claim.resourceClaimName
        if claim.resourceClaimName is not None
        else generated.get(claim.name, f"{claim.resourceClaimTemplateName or ''}/{number}")
        for number, claim in enumerate(claims or ())
    ]
    if extended is not None:
        names.append(extended.resourceClaimName)
    return tuple([name for name in names if name is not None])


class _SpecOfMany(msgspec.Struct, frozen=True, gc=False):
    containers: list[msgspec.Raw] | None = None
    initContainers: list[msgspec.Raw] | None = None
    nodeName: str = ""
    priority: int | None = None


class _StatusOfMany(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    nominatedNodeName: str = ""
    startTime: str | None = None
    conditions: tuple[Condition, ...] | None = ()


class _PodOfMany(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _SpecOfMany
    status: _StatusOfMany | None = None


_decode_of_many = msgspec.json.Decoder(_PodOfMany).decode


def with_blank_containers(raw: bytes | msgspec.Raw) -> Pod:
    """Decodes a pod with its number of containers, but without their requests: a tenth of the time of `decode`."""
    decoded = _decode_of_many(raw)
    spec, status = decoded.spec, decoded.status or _StatusOfMany()
    known = Status(
        phase=status.phase,
        reason=status.reason,
        nominatedNodeName=status.nominatedNodeName,
        startTime=status.startTime,
        conditions=status.conditions,
    )
    containers = (Container(""),) * len(spec.containers or ())
    before = (Container(""),) * len(spec.initContainers or ())
    return Pod(decoded.metadata, Spec(containers, before, nodeName=spec.nodeName, priority=spec.priority), known)


class ContainerNeeds(msgspec.Struct, frozen=True, gc=False):
    """Requests and limits after API defaulting. `fractional` names memory resources that are not whole bytes."""

    name: str
    kind: Kind
    requests: Amounts
    limits: Amounts
    fractional: tuple[str, ...] = ()


class PodLevel(msgspec.Struct, frozen=True, gc=False):
    """`spec.resources` after API defaulting (KEP-2837)."""

    requests: Amounts
    limits: Amounts


class Needs(msgspec.Struct, frozen=True, gc=False):
    """A pod's requests and limits. `containers` are the init containers, including sidecars, followed by the app
    containers, each in the order of the spec. `requests` is the pod's effective request (PodRequests). `pod_level` is
    None unless `spec.resources` names a resource that can be set for a pod (IsPodLevelResourcesSet). `lacks_gate`: it
    names one, and the gate PodLevelResources is off."""

    containers: tuple[ContainerNeeds, ...]
    requests: Amounts
    qos: Qos
    pod_level: PodLevel | None = None
    lacks_gate: bool = False


def needs(pod: Pod, *, pod_level_resources: bool = True) -> Needs:
    """Returns the pod's requests and limits; `pod_level_resources` is the feature gate. Raises ParseError."""
    spec = pod.spec
    containers = tuple(
        [
            _container_needs(container, "sidecar" if container.restartPolicy == "Always" else "init")
            for container in spec.initContainers or ()
        ]
        + [_container_needs(container, "app") for container in spec.containers or ()]
    )
    resources = spec.resources if pod_level_resources else None
    requests = aggregate(containers, [container.requests for container in containers])
    level = None if resources is None else _pod_level(resources, containers, requests)
    # GetPodQOS computes the class only if the API server has recorded none.
    qos = (_STATED_QOS.get(pod.status.qosClass) if pod.status else None) or _qos(containers, level)
    level_set = level is not None and any(map(_is_pod_level, (*level.requests, *level.limits)))
    if level is not None:
        requests.update((name, amount) for name, amount in level.requests.items() if _is_pod_level(name))
    if spec.overhead:
        _add(requests, {name: amount_of(name, overhead) for name, overhead in spec.overhead.items()})
    lacks_gate = (
        not pod_level_resources
        and spec.resources is not None
        and any(map(_is_pod_level, (*(spec.resources.requests or ()), *(spec.resources.limits or ()))))
    )
    return Needs(containers, requests, qos, level if level_set else None, lacks_gate)


def allocated(pod: Pod) -> Pod:
    """Returns the pod with the requests that its kubelet has allocated; the same object if they equal the spec.

    They differ while an in-place resize is not (or never) granted. A kubelet reports them from 1.33 on (KEP-1287,
    `allocatedResources`; only CPUs and memory can be resized). A limit that equals its request changes with it. Raises
    ParseError.
    """
    spec, status = pod.spec, pod.status
    if status is None:
        return pod
    containers = _with_allocated(spec.containers, status.containerStatuses)
    init_containers = _with_allocated(spec.initContainers, status.initContainerStatuses)
    resources = None if spec.resources is None else _resized(spec.resources, status.allocatedResources)
    if containers is spec.containers and init_containers is spec.initContainers and resources is spec.resources:
        return pod
    changed = msgspec.structs.replace(spec, containers=containers, initContainers=init_containers, resources=resources)
    return msgspec.structs.replace(pod, spec=changed)


def aggregate(containers: Iterable[ContainerNeeds], amounts: Iterable[Mapping[str, int]]) -> Amounts:
    """Returns max(largest init step, app containers + sidecars) per resource, where a step includes the sidecars before
    it. `amounts` are the requests or the limits of the containers, in their order; the result is a new dict
    (AggregateContainerRequests, AggregateContainerLimits)."""
    by_container = list(zip((container.kind for container in containers), amounts, strict=True))
    if len(by_container) == 1:
        return dict(by_container[0][1])
    names = dict.fromkeys(name for _, requests in by_container for name in requests)
    return {name: peak([(kind, requests.get(name, 0)) for kind, requests in by_container]) for name in names}


def peak(amounts: Iterable[tuple[Kind, int]]) -> int:
    """Returns the maximum that containers need of a resource at the same time: an init container runs beside the
    sidecars before it, and before the remaining containers (PodRequests)."""
    running = sidecars = most = 0
    for kind, amount in amounts:
        if kind == "init":
            most = max(most, sidecars + amount)
            continue
        running += amount
        if kind == "sidecar":
            sidecars += amount
    return max(running, most)


def amount_of(resource: str, value: Quantity) -> int:
    """Returns the canonical integer of a JSON quantity: text, number or null (which is 0). Raises ParseError, also for
    an amount that no machine has: sums of such amounts would not fit into 64 bits."""
    # The cache must stay small: 16,384 entries of 200 bytes take 5 MiB. Longer texts are not cached. Plain integers are
    # not cached either: they are cheap to parse, and a tenant can create any number of them.
    if len(resource) > _LONGEST or (isinstance(value, str) and (len(value) > _LONGEST or value.isdigit())):
        return _amount_of.__wrapped__(resource, value)
    return _amount_of(resource, value)


@lru_cache(maxsize=16384, typed=True)
def _amount_of(resource: str, value: Quantity) -> int:
    if value is None:
        return 0
    amount = quantity.for_resource(resource, repr(value) if isinstance(value, float) else value)
    if abs(amount) > MAX_AMOUNT:
        most = "2^53 thousandths (9 trillion CPUs)" if resource == "cpu" else "2^53 (8Pi of bytes)"
        raise ParseError(resource, str(value), f"at most {most}, which is more than machines have")
    return amount


@lru_cache(maxsize=4096, typed=True)
def _is_fractional(value: Quantity) -> bool:
    return value is not None and quantity.whole(repr(value) if isinstance(value, float) else value) is None


def _container_needs(container: Container, kind: Kind) -> ContainerNeeds:
    resources = container.resources
    if resources is None:
        return ContainerNeeds(container.name, kind, {}, {})
    request_values = resources.requests or _NONE
    limit_values = resources.limits
    if not limit_values:
        limits: Amounts = {}
    else:
        limits = {name: amount_of(name, amount) for name, amount in limit_values.items()}
        # The API server sets request := limit where only the limit is set (SetDefaults_Pod).
        request_values = {**limit_values, **request_values}
    requests = {name: amount_of(name, amount) for name, amount in request_values.items()}
    fractional = tuple([name for name, amount in request_values.items() if _is_memory(name) and _is_fractional(amount)])
    return ContainerNeeds(container.name, kind, requests, limits, fractional)


def _with_allocated(
    containers: tuple[Container, ...] | None, statuses: tuple[ContainerStatus, ...] | None
) -> tuple[Container, ...] | None:
    if not containers or not statuses:
        return containers
    allocated_by_name = {status.name: status.allocatedResources for status in statuses if status.allocatedResources}
    changed = False
    resized_containers = []
    for container in containers:
        resources = container.resources
        resized = None if resources is None else _resized(resources, allocated_by_name.get(container.name))
        if resized is not resources:
            changed = True
            container = msgspec.structs.replace(container, resources=resized)
        resized_containers.append(container)
    return tuple(resized_containers) if changed else containers


def _resized(resources: Resources, allocated: Quantities | None) -> Resources:
    requests = resources.requests
    if not allocated or not requests:
        return resources
    changed = {
        name: amount
        for name, amount in allocated.items()
        if name in _QOS_RESOURCES
        and name in requests
        and amount != requests[name]
        and amount_of(name, amount) != amount_of(name, requests[name])
    }
    if not changed:
        return resources
    limits = resources.limits or _NONE
    equal = {
        name: amount
        for name, amount in changed.items()
        if name in limits and amount_of(name, limits[name]) == amount_of(name, requests[name])
    }
    return Resources({**requests, **changed}, {**limits, **equal} if limits else resources.limits)


def _pod_level(resources: Resources, containers: tuple[ContainerNeeds, ...], aggregated: Amounts) -> PodLevel:
    """Returns `spec.resources` with the defaults of defaultHugePagePodLimits and defaultPodRequests."""
    requests = {name: amount_of(name, amount) for name, amount in (resources.requests or _NONE).items()}
    limits = {name: amount_of(name, amount) for name, amount in (resources.limits or _NONE).items()}
    if requests or limits:
        for name, amount in aggregate(containers, [container.limits for container in containers]).items():
            if name.startswith(HUGEPAGES) and name not in requests:
                limits.setdefault(name, amount)
    if limits:
        for name, amount in aggregated.items():
            if name in _QOS_RESOURCES:
                requests.setdefault(name, amount)
        for name, amount in limits.items():
            if _is_pod_level(name):
                requests.setdefault(name, amount)
    return PodLevel(requests, limits)


def _qos(containers: tuple[ContainerNeeds, ...], level: PodLevel | None) -> Qos:
    """Returns ComputePodQOS: only cpu and memory above 0 count; pod-level resources replace those of the containers."""
    requests: Amounts = {}
    limits: Amounts = {}
    everywhere_limited = True
    for holder in containers if level is None else (level,):
        limited = 0
        for name in _QOS_RESOURCES:
            request = holder.requests.get(name, 0)
            if request > 0:
                requests[name] = requests.get(name, 0) + request
            limit = holder.limits.get(name, 0)
            if limit > 0:
                limits[name] = limits.get(name, 0) + limit
                limited += 1
        everywhere_limited = everywhere_limited and limited == len(_QOS_RESOURCES)
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if everywhere_limited and requests == limits else "Burstable"


def _is_memory(resource: str) -> bool:
    return resource == "memory" or resource.startswith(HUGEPAGES)


def _is_pod_level(resource: str) -> bool:
    return resource == "cpu" or _is_memory(resource)


def _add(to: Amounts, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        to[name] = to.get(name, 0) + amount
