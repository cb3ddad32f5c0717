"""Leaves resources and pods out of the object, by globs.

An exclusion applies to amounts, fingerprint, holdings and placement vectors. If a resource were missing in the zones
but made a pod "exclusive" in the fingerprint, schedulers would never trust the object.
Globs are Go's filepath.Match as far as names need it: `*`, `?` and `[...]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from topowise.runtime.config import Section
from topowise_exporter.kubelet.allocations import (
    Allocatable,
    Allocations,
    Device,
    MemoryBlock,
    PodAllocation,
)


class PodPattern(Section, frozen=True):
    """Both globs must match."""

    namespace: str = "*"
    """Glob of the pod's namespace."""
    name: str = "*"
    """Glob of the pod's name."""


class Exclusions(Section, frozen=True):
    """Nothing by default."""

    resources: tuple[str, ...] = ()
    """Globs of resource names, "example.com/*". scheduler-plugins refuses every pod that requests cpu, memory or
    hugepages where these are excluded."""
    pods: tuple[PodPattern, ...] = ()
    """Pods that are ignored: their resources count as free. For pods whose CPUs and devices another component manages.
    The cache of scheduler-plugins accepts no fingerprint of the node while such a pod runs."""

    def has_resource(self, name: str) -> bool:
        """Whether the resource is left out."""
        return any(fnmatchcase(name, pattern) for pattern in self.resources)

    def has_pod(self, namespace: str, name: str) -> bool:
        """Whether the pod is left out."""
        return any(
            fnmatchcase(namespace, pattern.namespace) and fnmatchcase(name, pattern.name) for pattern in self.pods
        )


def apply(exclusions: Exclusions, allocations: Allocations) -> Allocations:
    """The allocations without what is left out."""
    if not exclusions.resources and not exclusions.pods:
        return allocations
    whole = allocations.allocatable
    pods = [pod for pod in allocations.pods if not exclusions.has_pod(pod.namespace, pod.name)]
    # The managers count all pods: without an excluded pod, only List shows what the remaining pods have.
    is_whole = len(pods) == len(allocations.pods)
    free_memory = allocations.free_memory if is_whole else None
    if free_memory is not None:
        free = {key: size for key, size in free_memory.free.items() if not exclusions.has_resource(key[1])}
        free_memory = msgspec.structs.replace(free_memory, free=free)
    without_cpu = exclusions.has_resource("cpu")
    return msgspec.structs.replace(
        allocations,
        allocatable=Allocatable(
            cpus=frozenset() if without_cpu else whole.cpus,
            memory=_blocks(exclusions, whole.memory),
            devices=_devices(exclusions, whole.devices),
        ),
        pods=tuple(_pod(exclusions, pod) for pod in pods),
        unlisted={} if without_cpu else allocations.unlisted,
        free_memory=free_memory,
        unlisted_devices={
            uid: left
            for uid, devices in allocations.unlisted_devices.items()
            if (left := _devices(exclusions, devices))
        },
        admitting=frozenset(name for name in allocations.admitting if not exclusions.has_pod(*name)),
        absent=_devices(exclusions, allocations.absent),
        free_cpus=None if without_cpu or not is_whole else allocations.free_cpus,
    )


def _pod(exclusions: Exclusions, pod: PodAllocation) -> PodAllocation:
    cpus: dict[str, frozenset[int]] = {"cpus": frozenset()} if exclusions.has_resource("cpu") else {}
    containers = tuple(
        msgspec.structs.replace(
            container,
            memory=_blocks(exclusions, container.memory),
            devices=_devices(exclusions, container.devices),
            **cpus,
        )
        for container in pod.containers
    )
    own_cpus = frozenset() if cpus else pod.own_cpus
    own_memory = _blocks(exclusions, pod.own_memory)
    return msgspec.structs.replace(pod, containers=containers, own_cpus=own_cpus, own_memory=own_memory)


def _devices(exclusions: Exclusions, devices: Iterable[Device]) -> tuple[Device, ...]:
    return tuple(device for device in devices if not exclusions.has_resource(device.resource))


def _blocks(exclusions: Exclusions, blocks: Iterable[MemoryBlock]) -> tuple[MemoryBlock, ...]:
    return tuple(block for block in blocks if not exclusions.has_resource(block.type))
