"""Compares the constant parts of two states of a node."""

from __future__ import annotations

from operator import is_

from topowise_scheduler.kubelet.node import Kubelet


def constant_parts(kubelet: Kubelet) -> tuple[object, ...]:
    """Returns the objects that stay while pods come and go. All states of a node share them."""
    cpu, memory = kubelet.cpu, kubelet.memory
    return (
        kubelet.settings,
        kubelet.topology,
        kubelet.topology_manager,
        kubelet.capacity,
        kubelet.predicates,
        None if cpu is None else cpu.policy,
        None if memory is None else memory.tables.policy,
        *kubelet.devices.tables.values(),
    )


def are_identical(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    """Returns whether both tuples have the same objects."""
    # Identity, not equality: it is cheap, and these objects never change.
    return len(first) == len(second) and all(map(is_, first, second))


def is_same_node(first: Kubelet, second: Kubelet) -> bool:
    """Returns whether both are states of the same node, with the same hardware, devices and settings."""
    return are_identical(constant_parts(first), constant_parts(second))
