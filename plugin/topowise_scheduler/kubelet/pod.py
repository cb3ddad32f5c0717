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

# The memory manager's refusal of a request that is not a whole number of bytes.
NOT_WHOLE = "[memorymanager] failed to represent quantity as int64"


class ContainerView(msgspec.Struct, frozen=True, gc=False):
    """One container. `cpus`: exclusive ones, 0 for the shared pool. `memory` None: not a whole number of bytes."""

    name: str
    kind: Kind
    cpus: int
    memory: Amounts | None
    limits: Amounts


class PodView(msgspec.Struct, frozen=True, gc=False):
    """One pod; the containers in spec order, init containers first.

    `pinned`: the memory manager allocates for it (Guaranteed, and not left alone because of pod-level resources).
    `by_pod_level`: pod-level resources that the managers handle themselves. Its `cpus` and `memory` are then the
    pod's own totals, and a container has `cpus` and `memory` only if it is exclusive.
    """

    uid: str
    qos: Qos
    containers: tuple[ContainerView, ...]
    requests: Amounts
    pinned: bool
    by_pod_level: bool
    cpus: int
    memory: Amounts | None


def view(uid: str, needs: pods.Needs, *, pod_level_resource_managers: bool = False) -> PodView:
    """The pod under this feature gate (KEP-5526)."""
    by_pod_level = needs.pod_level is not None and pod_level_resource_managers
    pinned = needs.qos == "Guaranteed" and (needs.pod_level is None or by_pod_level)
    containers = tuple([_container(container, pinned, by_pod_level) for container in needs.containers])
    cpus, memory = 0, None
    if pinned and needs.pod_level is not None:
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
    )


def device_requests(pod: PodView, resource: str) -> int | None:
    """How many devices the pod needs at once (resourcehelper.PodLimits), None if it does not name the resource."""
    asked = [(one.kind, one.limits[resource]) for one in pod.containers if resource in one.limits]
    return pods.peak(asked) if asked else None


def finished(pod: PodView, started: Container[str] | None) -> list[str]:
    """The plain init containers that are done once these containers (None: all) have started (AddContainer)."""
    last = 0
    for index, container in enumerate(pod.containers):
        if started is None or container.name in started:
            last = index
    return [container.name for container in pod.containers[:last] if container.kind == "init"]


def _container(container: pods.ContainerNeeds, pinned: bool, by_pod_level: bool) -> ContainerView:
    if not pinned or (by_pod_level and not _is_exclusive(container)):
        return ContainerView(container.name, container.kind, 0, {}, container.limits)
    memory = None if container.fractional else _memory(container.requests)
    return ContainerView(container.name, container.kind, _whole_cpus(container.requests), memory, container.limits)


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
