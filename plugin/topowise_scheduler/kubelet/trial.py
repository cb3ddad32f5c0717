"""Trials: would a node in this state admit this pod? Every question of that kind is asked here.

Also whether two states are of the same node. Invariant: a trial never changes the state that it is made on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import is_
from typing import NamedTuple

from topowise_scheduler.kubelet.device_manager import Chooser
from topowise_scheduler.kubelet.hints import Admission
from topowise_scheduler.kubelet.node import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.scopes import Observer

View = Callable[[Kubelet], PodView]
"""Returns a pod as the kubelet of a node sees it, by its version and feature gates."""


class Trial(NamedTuple):
    """What the kubelet would decide, and the state of its node after that."""

    admission: Admission
    after: Kubelet


def trial(node: Kubelet, pod: PodView, *, observe: Observer | None = None, chooser: Chooser | None = None) -> Trial:
    """Returns what the kubelet of the node decides of the pod.

    `observe` is called for every merge of hints; `chooser` chooses devices where a kubelet chooses by chance.
    """
    after = node.fork()
    if chooser is not None:
        after.devices.chooser = chooser
    return Trial(after.admit_view(pod, observe), after)


def first_refusal(states: Iterable[Kubelet], view: View) -> str | None:
    """Returns the reason of the first state in which the kubelet refuses the pod, None if it admits the pod in all."""
    for state in states:
        admission = trial(state, view(state)).admission
        if not admission.admitted:
            return admission.reason
    return None


def place_all(node: Kubelet, views: Iterable[View]) -> Kubelet | None:
    """Returns the node with these pods, admitted in this order, None if its kubelet refuses one of them."""
    for view in views:
        admission, node = trial(node, view(node))
        if not admission.admitted:
            return None
    return node


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
