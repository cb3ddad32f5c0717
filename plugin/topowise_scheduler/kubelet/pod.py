"""The pod as the kubelet's managers see it: who gets exclusive CPUs and memory, and how much.

Upstream: cm/cpumanager/policy_static.go (guaranteedCPUs, podGuaranteedCPUs), cm/memorymanager/policy_static.go
(getContainerRequestedResources, getPodRequestedResources), cm/devicemanager/topology_hints.go (getPodDeviceRequest),
cm/qos/helpers.go (IsContainerEquivalentQOSGuaranteed), KEP-5526 (pod-level resource managers).
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from topowise import pods
from topowise.pods import HUGEPAGES, Amounts, Kind, Qos
from topowise_scheduler.kubelet.behaviour import Behaviour
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED

_NO_REQUESTS: Amounts = {}

# The memory manager's refusal of a request that is not a whole number of bytes.
NOT_WHOLE = "[memorymanager] failed to represent quantity as int64"


class ContainerView(msgspec.Struct, frozen=True, gc=False):
    """One container. `cpus`: exclusive ones, 0 for the shared pool. `memory` None: not a whole number of bytes.

    `kind` is what the managers take it for, `declared` what it is in the pod.
    """

    name: str
    kind: Kind
    cpus: int
    memory: Amounts | None
    limits: Amounts
    declared: Kind


class PodView(msgspec.Struct, frozen=True, gc=False):
    """One pod; the containers in spec order, init containers first.

    `pinned`: the memory manager allocates for it (Guaranteed, and not left alone because of pod-level resources).
    `by_pod_level`: pod-level resources that the managers handle themselves. Its `cpus` and `memory` are then the
    pod's own totals, and a container has `cpus` and `memory` only if it is exclusive. `init_requests` is what the init
    containers alone request, sidecars among them.
    """

    uid: str
    qos: Qos
    containers: tuple[ContainerView, ...]
    requests: Amounts
    pinned: bool
    by_pod_level: bool
    cpus: int
    memory: Amounts | None
    init_requests: Amounts = {}


def view(
    uid: str,
    needs: pods.Needs,
    *,
    pod_level_resource_managers: bool = False,
    behaviour: Behaviour = NEWEST_RECORDED.behaviour,
) -> PodView:
    """The pod under this feature gate (KEP-5526), as a kubelet with this behaviour sees it."""
    by_pod_level = needs.pod_level is not None and pod_level_resource_managers
    left_alone = needs.pod_level is not None and behaviour.pod_level_pods_are_not_aligned and not by_pod_level
    pinned = needs.qos == "Guaranteed" and not left_alone
    keeps = behaviour.sidecars_are_kept
    containers = tuple([_container(container, pinned, by_pod_level, keeps) for container in needs.containers])
    cpus, memory = 0, None
    if pinned and by_pod_level and needs.pod_level is not None:
        cpus = _whole_cpus(needs.pod_level.requests)
        memory = {name: amount for name, amount in _memory(needs.pod_level.requests).items() if amount > 0}
    elif pinned:
        cpus = pods.peak((one.kind, one.cpus) for one in containers)
        memory = _pod_memory(containers)
    return PodView(
        uid=uid,
        qos=needs.qos,
        containers=containers,
        requests=needs.requests,
        pinned=pinned,
        by_pod_level=by_pod_level,
        cpus=cpus,
        memory=memory,
        init_requests=_NO_REQUESTS
        if behaviour.unknown_resources_of_init_containers_are_dropped
        else _init_requests(needs.containers),
    )


def device_requests(pod: PodView, resource: str) -> int | None:
    """How many devices the pod needs at once (resourcehelper.PodLimits), None if it does not name the resource.

    The helper knows sidecars in every version, whatever the managers make of them.
    """
    asked = [(one.declared, one.limits[resource]) for one in pod.containers if resource in one.limits]
    return pods.peak(asked) if asked else None


def finished(pod: PodView, started: Container[str] | None) -> list[str]:
    """The plain init containers that are done once these containers (None: all) have started (AddContainer)."""
    last = 0
    for index, container in enumerate(pod.containers):
        if started is None or container.name in started:
            last = index
    return [container.name for container in pod.containers[:last] if container.kind == "init"]


def _container(
    container: pods.ContainerNeeds, pinned: bool, by_pod_level: bool, sidecars_are_kept: bool
) -> ContainerView:
    declared = container.kind
    kind = "init" if declared == "sidecar" and not sidecars_are_kept else declared
    if not pinned or (by_pod_level and not _is_exclusive(container)):
        return ContainerView(container.name, kind, 0, {}, container.limits, declared)
    memory = None if container.fractional else _memory(container.requests)
    return ContainerView(container.name, kind, _whole_cpus(container.requests), memory, container.limits, declared)


def _init_requests(containers: tuple[pods.ContainerNeeds, ...]) -> Amounts:
    before = [container for container in containers if container.kind != "app"]
    return pods.aggregate(before, [container.requests for container in before])


def _is_exclusive(container: pods.ContainerNeeds) -> bool:
    requests, limits = container.requests, container.limits
    return all(0 < requests.get(name, 0) == limits.get(name, 0) for name in ("cpu", "memory"))


def _whole_cpus(requests: Amounts) -> int:
    cpus, rest = divmod(requests.get("cpu", 0), 1000)
    return 0 if rest else cpus


def _memory(requests: Amounts) -> Amounts:
    return {name: amount for name, amount in requests.items() if name == "memory" or name.startswith(HUGEPAGES)}


def _pod_memory(containers: tuple[ContainerView, ...]) -> Amounts | None:
    """The sum for the pod; a type that only init containers request is dropped, as getPodRequestedResources does."""
    held = [(one.kind, one.memory) for one in containers if one.memory is not None]
    if len(held) < len(containers):
        return None
    named = dict.fromkeys(name for kind, memory in held if kind == "app" for name in memory)
    return {name: pods.peak((kind, memory.get(name, 0)) for kind, memory in held) for name in named}
