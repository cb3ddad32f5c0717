"""The pod as the kubelet's managers see it: the containers with exclusive CPUs and memory, and the amounts.

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

# The memory manager's refusal of a request with a fraction of a byte.
NOT_WHOLE = "[memorymanager] failed to represent quantity as int64"


class ContainerView(msgspec.Struct, frozen=True, gc=False):
    """A container. `cpus` counts exclusive CPUs, 0 for the shared pool; `memory` is None for a fraction of a byte.

    `kind` is the kind for the managers, `declared` the kind in the pod's spec.
    """

    name: str
    kind: Kind
    cpus: int
    memory: Amounts | None
    limits: Amounts
    declared: Kind


class PodView(msgspec.Struct, frozen=True, gc=False):
    """A pod; the containers in spec order, init containers first.

    `pinned`: the memory manager allocates for the pod (Guaranteed, and not ignored because of pod-level resources).
    `by_pod_level`: the managers handle pod-level resources. Then `cpus` and `memory` are the pod's own totals, and only
    an exclusive container has `cpus` and `memory`. `init_requests` is the request of all init containers, including
    sidecars. `steered` is the NUMA node of all marker devices (topowise.steering) at the admission of the pod, None if
    the markers have no NUMA node. `lacks_gate`: the kubelet refuses the pod, as its gate PodLevelResources is off.
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
    steered: int | None = None
    lacks_gate: bool = False


def view(
    uid: str,
    needs: pods.Needs,
    *,
    pod_level_resource_managers: bool = False,
    behaviour: Behaviour = NEWEST_RECORDED.behaviour,
) -> PodView:
    """Returns the pod as a kubelet with this feature gate (KEP-5526) and behaviour sees it."""
    by_pod_level = needs.pod_level is not None and pod_level_resource_managers
    ignored = (
        behaviour.pod_level_pods_are_never_aligned
        if needs.lacks_gate
        else needs.pod_level is not None and behaviour.pod_level_pods_are_not_aligned and not by_pod_level
    )
    pinned = needs.qos == "Guaranteed" and not ignored
    sidecars_are_kept = behaviour.sidecars_are_kept
    containers = tuple(
        [_container(container, pinned, by_pod_level, sidecars_are_kept) for container in needs.containers]
    )
    cpus, memory = 0, None
    if pinned and by_pod_level and needs.pod_level is not None:
        cpus = _whole_cpus(needs.pod_level.requests)
        memory = {name: amount for name, amount in _memory(needs.pod_level.requests).items() if amount > 0}
    elif pinned:
        cpus = pods.peak((container.kind, container.cpus) for container in containers)
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
        lacks_gate=needs.lacks_gate and behaviour.pod_level_pods_need_their_gate,
    )


def device_requests(pod: PodView, resource: str) -> int | None:
    """Returns the number of devices that the pod needs at once (PodLimits), None without such a request."""
    # The helper knows sidecars in every version, so the declared kind counts.
    limits = [
        (container.declared, container.limits[resource]) for container in pod.containers if resource in container.limits
    ]
    return pods.peak(limits) if limits else None


def finished(pod: PodView, started: Container[str] | None) -> list[str]:
    """Returns the init containers that have ended when these containers (None: all) have started (AddContainer)."""
    last = 0
    for index, container in enumerate(pod.containers):
        if started is None or container.name in started:
            last = index
    return [container.name for container in pod.containers[:last] if container.kind == "init"]


def _container(
    container: pods.ContainerNeeds, pinned: bool, by_pod_level: bool, sidecars_are_kept: bool
) -> ContainerView:
    declared = container.kind
    # Before 1.29 the managers treated a sidecar like an init container.
    kind = "init" if declared == "sidecar" and not sidecars_are_kept else declared
    if not pinned or (by_pod_level and not _is_exclusive(container)):
        return ContainerView(container.name, kind, 0, {}, container.limits, declared)
    memory = None if container.fractional else _memory(container.requests)
    return ContainerView(container.name, kind, _whole_cpus(container.requests), memory, container.limits, declared)


def _init_requests(containers: tuple[pods.ContainerNeeds, ...]) -> Amounts:
    init_containers = [container for container in containers if container.kind != "app"]
    return pods.aggregate(init_containers, [container.requests for container in init_containers])


def _is_exclusive(container: pods.ContainerNeeds) -> bool:
    requests, limits = container.requests, container.limits
    # IsContainerEquivalentQOSGuaranteed: limits equal requests for CPU and memory.
    return all(0 < requests.get(name, 0) == limits.get(name, 0) for name in ("cpu", "memory"))


def _whole_cpus(requests: Amounts) -> int:
    cpus, rest = divmod(requests.get("cpu", 0), 1000)
    # guaranteedCPUs: a container with a fraction of a CPU uses the shared pool.
    return 0 if rest else cpus


def _memory(requests: Amounts) -> Amounts:
    return {name: amount for name, amount in requests.items() if name == "memory" or name.startswith(HUGEPAGES)}


def _pod_memory(containers: tuple[ContainerView, ...]) -> Amounts | None:
    """Returns the pod's sum; a type that only init containers request is dropped, as in getPodRequestedResources."""
    amounts = [(container.kind, container.memory) for container in containers if container.memory is not None]
    if len(amounts) < len(containers):
        return None
    types = dict.fromkeys(name for kind, memory in amounts if kind == "app" for name in memory)
    return {name: pods.peak((kind, memory.get(name, 0)) for kind, memory in amounts) for name in types}
