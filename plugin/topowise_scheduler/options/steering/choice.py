"""Chooses the NUMA node of a node for a pod that requests markers.

Sources state demands: NUMA nodes that the pod requires or prefers, and why. Among the NUMA nodes that meet all required
demands, the choice is the NUMA node that meets most preferred demands, then the NUMA node that TightFit rates best: the
largest holes of the node stay whole. The kubelet alone takes the lowest NUMA node that fits. Each NUMA node is tried on
the model, in every possible state of the node: the kubelet refuses a steered pod if the chosen NUMA node lacks
resources, also if another has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.kubelet import Kubelet, free_amounts
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import union
from topowise_scheduler.kubelet.pod import ContainerView, PodView
from topowise_scheduler.kubelet.trial import View, trial
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.engine import AlignedContainer, Candidates
from topowise_scheduler.verdicts.refusals import Refusal
from topowise_scheduler.verdicts.strategies.tight_fit import TightFit

Views = Callable[[int | None], View]
"""Returns the view of the pod if its markers are near this NUMA node, or near none."""

_STRATEGY: Final = TightFit({}, "spread")


class Demand(NamedTuple):
    """The NUMA nodes (ids of the kernel) of a node that a source requires or prefers for a pod.

    `why` completes "steered to NUMA node 1 for ...". `needs_label`: the choice of the kubelet alone does not meet the
    demand, also if it is predicted to be one of these NUMA nodes. `refusal` is the refusal of a node on which a
    required demand has no NUMA node.
    """

    numa_nodes: frozenset[int]
    why: str
    is_required: bool = True
    needs_label: bool = True
    refusal: Refusal = Refusal.NO_SUCH_NUMA_NODE


class Choice(NamedTuple):
    """`numa` is the NUMA node to steer the pod to, None if nothing has to be sent. `alone` is the NUMA node that the
    kubelet takes by itself, None if it takes several or refuses the pod. `whys` are the reasons of the demands that the
    NUMA node meets, and without a NUMA node the reasons of the required demands. `is_required`: without a label the pod
    must not be bound. `refusal`: why no NUMA node meets the required demands."""

    numa: int | None = None
    alone: int | None = None
    whys: tuple[str, ...] = ()
    is_required: bool = False
    refusal: Refusal | None = None


def views_of(record: PodRecord) -> Views:
    """Returns the views of a pod by the NUMA node of the markers."""

    def view(numa: int | None) -> View:
        return msgspec.structs.replace(record, steered=numa).view

    return view


def choose(states: Sequence[Kubelet], views: Views, demands: Sequence[Demand] = ()) -> Choice:
    """Returns the choice for a pod; `states` are the possible states of the node, the predicted state first.

    The label of a required demand is sent also if the NUMA node is predicted: pods may have ended that the service
    still counts.
    """
    node = states[0]
    pod = views(None)(node)
    alone = _numa_node(node, pod)
    if not is_required(demands):
        if _static_refusal(node, pod) or alone is None:
            return Choice(alone=alone)
        for numa in _ranked(node, pod, views, demands, alone):
            fits = (numa != alone or _unmet(demands, numa)) and _fits(states, views, numa)
            if fits:
                return Choice(numa, alone, _whys(demands, numa))
            if numa == alone:
                # No other NUMA node is better, and without a label the kubelet is predicted to take it.
                break
        return Choice(alone=alone)
    required = tuple([demand.why for demand in demands if demand.is_required])
    refusal = _static_refusal(node, pod)
    allowed, problem = _allowed(node, demands)
    if refusal or problem:
        return Choice(None, alone, required, is_required=True, refusal=refusal or problem)
    numa_nodes = _ranked(node, pod, views, demands, alone) if len(allowed) > 1 else allowed
    chosen = next((numa for numa in numa_nodes if _fits(states, views, numa)), None)
    if chosen is None:
        return Choice(None, alone, required, is_required=True, refusal=Refusal.NUMA_NODE_FULL)
    return Choice(chosen, alone, _whys(demands, chosen), is_required=True)


def is_required(demands: Sequence[Demand]) -> bool:
    """Returns whether the pod must not be bound without a label."""
    return any(demand.is_required and demand.needs_label for demand in demands)


def takers(states: Sequence[Kubelet], views: Views) -> Iterator[int]:
    """Yields the NUMA nodes that take the steered pod in each state, the best first."""
    node = states[0]
    pod = views(None)(node)
    if not _static_refusal(node, pod):
        ranked = _ranked(node, pod, views, (), _numa_node(node, pod))
        yield from (numa for numa in ranked if _fits(states, views, numa))


def refusal_of(states: Sequence[Kubelet], views: Views, demands: Sequence[Demand]) -> Refusal | None:
    """Returns why no NUMA node of the node meets the required demands in each state, None if a NUMA node does, or if
    the pod needs no label."""
    if not is_required(demands):
        return None
    node = states[0]
    refusal = _static_refusal(node, views(None)(node))
    allowed, problem = _allowed(node, demands)
    if refusal or problem:
        return refusal or problem
    return None if any(_fits(states, views, numa) for numa in allowed) else Refusal.NUMA_NODE_FULL


def _allowed(node: Kubelet, demands: Sequence[Demand]) -> tuple[list[int], Refusal | None]:
    """Returns the NUMA nodes that meet all required demands, and why there is none."""
    allowed = set(node.node_ids)
    for demand in demands:
        if demand.is_required:
            if not allowed & demand.numa_nodes:
                of_itself = demand.numa_nodes & set(node.node_ids)
                return [], Refusal.NO_COMMON_NUMA_NODE if of_itself else demand.refusal
            allowed &= demand.numa_nodes
    return [numa for numa in node.node_ids if numa in allowed], None


def _ranked(node: Kubelet, pod: PodView, views: Views, demands: Sequence[Demand], alone: int | None) -> Iterator[int]:
    """Yields the NUMA nodes that meet the required demands and have room in the predicted state, the best first."""
    allowed, _ = _allowed(node, demands)
    fitting = [numa for numa in allowed if numa == alone or _is_on(node, views, numa)]
    if not fitting:
        return
    scores = dict(zip(fitting, _scores(node, pod, fitting), strict=True))
    met = {numa: sum([numa in demand.numa_nodes for demand in demands if not demand.is_required]) for numa in fitting}
    yield from sorted(fitting, key=lambda numa: (-met[numa], -scores[numa], numa != alone))


def _unmet(demands: Sequence[Demand], alone: int) -> bool:
    """Returns whether a label improves on the choice of the kubelet alone, which is predicted to be this NUMA node."""
    return any(demand.needs_label and alone in demand.numa_nodes for demand in demands)


def _whys(demands: Sequence[Demand], numa: int) -> tuple[str, ...]:
    return tuple([demand.why for demand in demands if numa in demand.numa_nodes])


def has_amounts(node: Kubelet, pod: PodView) -> bool:
    """Returns whether a manager of the node gives the pod CPUs, memory or devices."""
    return any(_amounts(node, container) for container in pod.containers)


def _fits(states: Sequence[Kubelet], views: Views, numa: int) -> bool:
    return all(_is_on(state, views, numa) for state in states)


def _static_refusal(node: Kubelet, pod: PodView) -> Refusal | None:
    """Returns why the pod cannot be steered on this node, whatever is free."""
    if node.settings.topology.policy == "none":
        return Refusal.NOT_STEERED_BY_POLICY
    marked = [bool(container.limits.get(MARKER)) for container in pod.containers]
    if node.settings.topology.scope == "pod":
        # The hint of any marker is for the whole pod.
        return None if any(marked) else Refusal.NO_MARKERS
    needed = [bool(_amounts(node, container)) for container in pod.containers]
    is_marked = any(marked) and all(has or not needs for has, needs in zip(marked, needed, strict=True))
    return None if is_marked else Refusal.NO_MARKERS


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
