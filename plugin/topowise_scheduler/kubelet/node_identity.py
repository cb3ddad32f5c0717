"""What of a node stays while pods come and go: as long as it is the same objects, what is read of it is the same."""

from __future__ import annotations

from operator import is_

from topowise_scheduler.kubelet.node import Kubelet


def sources(kubelet: Kubelet) -> tuple[object, ...]:
    """All that stays while pods come and go, and is shared by all states of a node."""
    cpu, memory = kubelet.cpu, kubelet.memory
    return (
        kubelet.settings,
        kubelet.topology,
        kubelet.topology_manager,
        kubelet.capacity,
        kubelet.predicates,
        kubelet.integer_scores,
        None if cpu is None else cpu.policy,
        None if memory is None else memory.tables.policy,
        *kubelet.devices.tables.values(),
    )


def is_same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Whether these are the same objects."""
    return len(one) == len(other) and all(map(is_, one, other))


def is_same_node(one: Kubelet, other: Kubelet) -> bool:
    """Whether these are states of one node, with the same hardware, devices and settings."""
    return is_same(sources(one), sources(other))
