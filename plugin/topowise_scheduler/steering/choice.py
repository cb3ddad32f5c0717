"""Chooses the NUMA node of a node for a pod that requests markers.

A pod without a requirement goes to the NUMA node that TightFit rates best: the largest holes of the node stay whole.
The kubelet alone takes the lowest NUMA node that fits. Each NUMA node is tried on the model, in every possible state of
the node: the kubelet refuses a steered pod if the chosen NUMA node lacks resources, also if another has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.engine import AlignedContainer, Candidates
from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import union
from topowise_scheduler.kubelet.pod import ContainerView, PodView
from topowise_scheduler.kubelet.trial import View, trial
from topowise_scheduler.strategies.tight_fit import TightFit

Views = Callable[[int | None], View]
"""Returns the view of the pod if its markers are near this NUMA node, or near none."""
Problem = Literal["", "policy", "markers", "missing", "full"]
"""Why a pod cannot be steered to a NUMA node: the Topology Manager policy ignores hints, a container with resources of
its own requests no marker, the node does not have the NUMA node, or the NUMA node lacks free resources."""

_STRATEGY: Final = TightFit({}, "spread")


class Choice(NamedTuple):
    """`numa` is the NUMA node to steer the pod to, None if nothing has to be sent. `alone` is the NUMA node that the
    kubelet takes by itself, None if it takes several or refuses the pod. `problem`: why the required NUMA node is not
    possible."""

    numa: int | None = None
    alone: int | None = None
    problem: Problem = ""


def choose(states: Sequence[Kubelet], views: Views, required: int | None) -> Choice:
    """Returns the choice for a pod; `states` are the possible states of the node, the predicted state first.

    A required NUMA node is requested even if it is predicted: pods may have ended that the service still counts.
    """
    node = states[0]
    alone = _numa_node(node, views(None)(node))
    if required is not None:
        problem = problem_of(states, views, required)
        return Choice(None if problem else required, alone, problem)
    pod = views(None)(node)
    if _static_problem(node, pod) or alone is None:
        return Choice(alone=alone)
    fitting = [numa for numa in node.node_ids if numa == alone or _is_on(node, views, numa)]
    scores = dict(zip(fitting, _scores(node, pod, fitting), strict=True))
    for numa in sorted(fitting, key=lambda numa: (-scores[numa], numa != alone)):
        if numa == alone:
            break
        if all(_is_on(state, views, numa) for state in states):
            return Choice(numa, alone)
    return Choice(alone=alone)


def problem_of(states: Sequence[Kubelet], views: Views, numa: int) -> Problem:
    """Returns why the pod cannot be steered to a NUMA node in one of the states, "" if it can be in all."""
    problem = _static_problem(states[0], views(numa)(states[0]))
    if problem:
        return problem
    if numa not in states[0].node_ids:
        return "missing"
    return "" if all(_is_on(state, views, numa) for state in states) else "full"


def _static_problem(node: Kubelet, pod: PodView) -> Problem:
    if node.settings.topology.policy == "none":
        return "policy"
    marked = [bool(container.limits.get(MARKER)) for container in pod.containers]
    if node.settings.topology.scope == "pod":
        # The hint of any marker is for the whole pod.
        return "" if any(marked) else "markers"
    needed = [bool(_amounts(node, container)) for container in pod.containers]
    is_marked = any(marked) and all(has or not needs for has, needs in zip(marked, needed, strict=True))
    return "" if is_marked else "markers"


def _is_on(node: Kubelet, views: Views, numa: int) -> bool:
    """Returns whether the kubelet admits the steered pod with all its resources on this NUMA node."""
    return _numa_node(node, views(numa)(node)) == numa


def _numa_node(node: Kubelet, pod: PodView) -> int | None:
    """Returns the only NUMA node of the pod's resources, None if there are several or none."""
    admission, after = trial(node, pod)
    if not admission.admitted:
        return None
    mask = union(where.mask for where in allocated_nodes(after, pod.uid).values())
    return node.node_ids[mask.bit_length() - 1] if mask.bit_count() == 1 else None


def _amounts(node: Kubelet, container: ContainerView) -> dict[str, int]:
    """Returns what the managers give the container: whole CPUs, bytes, devices."""
    amounts = {"cpu": container.cpus} if node.cpu is not None and container.cpus else {}
    if node.memory is not None:
        amounts |= {name: size for name, size in (container.memory or {}).items() if size}
    return amounts | {name: count for name, count in container.limits.items() if count and name in node.devices.tables}


def _scores(node: Kubelet, pod: PodView, numa_nodes: Sequence[int]) -> list[int]:
    """Returns the score of each NUMA node: TightFit takes them as nodes that differ in the placement alone."""
    count, zones = len(numa_nodes), len(node.node_ids)
    amounts = [_amounts(node, container) for container in pod.containers]
    placed = np.array([1 << node.node_ids.index(numa) for numa in numa_nodes], np.int64)
    candidates = Candidates(
        rows=np.zeros(count, np.int32),
        zones=zones,
        distances=np.full((zones, zones, count), 10, np.int32),
        allocatable=_by_zone(node.emptied(), count),
        available=_by_zone(node, count),
        containers=tuple(
            [
                AlignedContainer(container.name, container.kind, requests)
                for container, requests in zip(pod.containers, amounts, strict=True)
            ]
        ),
        placed=np.array([placed if requests else placed * 0 for requests in amounts]),
        aligned=np.ones((len(amounts), count), np.bool_),
        by_pod=node.settings.topology.scope == "pod",
    )
    scores: list[int] = _STRATEGY.raw(candidates).tolist()
    return scores


def _by_zone(node: Kubelet, count: int) -> dict[str, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    by_position = free_amounts.by_position(node)
    return {name: np.array([[amounts[name]] * count for amounts in by_position], np.int64) for name in by_position[0]}
