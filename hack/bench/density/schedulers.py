"""Who chooses a node: topowise by each of its strategies and by one from elsewhere, and kube-scheduler without it.

Several nodes of the best score are one to kube-scheduler: it takes any of them (selectHost, pkg/scheduler). Scores of
topowise are what goes over the wire, 0 to 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.density.cluster import Cluster, Sums
from bench.density.fgd import FragmentationGradientDescent
from sandbox.judging import candidates, judge, rate
from topowise.pods import Needs
from topowise_scheduler import strategies
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.engine import Outcome
from topowise_scheduler.shape import PodRequests

Scores = NDArray[np.int64]

# The defaults of both: a tenth of the extender's weight is what a level of it is worth to kube-scheduler's plug-ins.
_TOP: Final = 10
_EXTENDER_WEIGHT: Final = 5
_PLUGIN_TOP: Final = 100
BESIDE_WEIGHT: Final = _EXTENDER_WEIGHT * _PLUGIN_TOP // _TOP
"""What a point of ours is beside those of kube-scheduler's own plug-ins."""
# So many levels that no two scores become one: the rule of the yardstick, not its rounding, is compared.
_EXACT: Final = 1_000_000_000


class Scheduler(Protocol):
    """Filter and score."""

    def best(self, cluster: Cluster, needs: Needs) -> list[int]:
        """The nodes that a pod may go to, all of them equally good; none if it fits nowhere."""


class ByNuma:
    """topowise with one strategy and so many levels; `beside` the scores of kube-scheduler's own plug-ins, which are
    added to ours."""

    def __init__(self, strategy: strategies.Strategy, *, top: int = _TOP, beside: bool = False) -> None:
        self._strategy = strategy
        self._top = top
        self._beside = beside

    def best(self, cluster: Cluster, needs: Needs) -> list[int]:
        """By filter and prioritize."""
        engine, pod = cluster.engine, PodRequests(needs)
        judgement = judge(engine, pod)
        fitting = judgement.rows[judgement.outcome == Outcome.FITS]
        if not fitting.size:
            return []
        rated = rate(self._strategy, candidates(engine, pod, fitting))
        scores = rated.levels(self._top)
        nodes = np.array([int(name) for name in engine.names(fitting[rated.at])])
        if self._beside:
            scores = scores * BESIDE_WEIGHT
            scores = scores + (least_allocated(cluster.sums, needs) + balanced(cluster.sums, needs))[nodes]
        return _best(nodes, scores)


class BySums:
    """kube-scheduler's NodeResourcesFit, with LeastAllocated or MostAllocated of CPUs and memory."""

    def __init__(self, score: Callable[[Sums, Needs], Scores]) -> None:
        self._score = score

    def best(self, cluster: Cluster, needs: Needs) -> list[int]:
        """By the sums of nodes."""
        nodes = np.flatnonzero(fitting(cluster.sums, needs))
        return _best(nodes, self._score(cluster.sums, needs)[nodes]) if nodes.size else []


def fitting(sums: Sums, needs: Needs) -> NDArray[np.bool_]:
    """NodeResourcesFit's filter."""
    fits = np.ones(len(sums.requested["cpu"]), np.bool_)
    for name, amount in {**needs.requests, "pods": 1}.items():
        fits &= sums.allocatable[name] - sums.requested[name] >= amount
    return fits


def _shares(sums: Sums, needs: Needs) -> Iterator[tuple[Scores, Scores]]:
    """Of CPUs and memory: what nodes have, and what is requested with the pod."""
    for name in ("cpu", "memory"):
        yield sums.allocatable[name], sums.requested[name] + needs.requests.get(name, 0)


def least_allocated(sums: Sums, needs: Needs) -> Scores:
    """NodeResourcesFit's LeastAllocated."""
    # Rounded down twice, as noderesources/least_allocated.go does.
    cpus, memory = [(has - used) * _PLUGIN_TOP // has for has, used in _shares(sums, needs)]
    return (cpus + memory) // 2


def most_allocated(sums: Sums, needs: Needs) -> Scores:
    """NodeResourcesFit's MostAllocated."""
    cpus, memory = [used * _PLUGIN_TOP // has for has, used in _shares(sums, needs)]
    return (cpus + memory) // 2


def balanced(sums: Sums, needs: Needs) -> Scores:
    """NodeResourcesBalancedAllocation of two resources: the standard deviation is half of their distance."""
    (cpus, used_cpus), (memory, used_memory) = _shares(sums, needs)
    apart = np.abs(np.minimum(used_cpus / cpus, 1) - np.minimum(used_memory / memory, 1)) / 2
    scores: Scores = ((1 - apart) * _PLUGIN_TOP).astype(np.int64)
    return scores


def _best(nodes: NDArray[np.intp], scores: Scores) -> list[int]:
    return [int(node) for node in nodes[scores == scores.max()]]


BESIDE: Final = "TightFit, beside kube-scheduler's scores"
BLIND: Final = ("NUMA-blind LeastAllocated", "NUMA-blind MostAllocated")
MOVING: Final = "TightFit, pods moved"
"""With moves for large ones; who places is TightFit."""
NAMES: Final = (*strategies.NAMES, BESIDE, *BLIND)
FGD: Final = ("FGD", "FGD by NUMA node")


def make(name: str) -> Scheduler:
    """By one of NAMES, which are those of the figures."""
    if name in BLIND:
        return BySums(least_allocated if name == BLIND[0] else most_allocated)
    scoring = Scoring()
    weights = {one.name: one.weight for one in scoring.resources}
    strategy = strategies.make("TightFit" if name in (BESIDE, MOVING) else name, weights, scoring)
    return ByNuma(strategy, beside=name == BESIDE)


def yardsticks(needs: Sequence[Needs], counts: Sequence[int], device: str, *, by_pod: bool) -> dict[str, Scheduler]:
    """FGD, which knows what pods come and how often, and keeps this device usable."""
    return {
        name: ByNuma(
            FragmentationGradientDescent(needs, counts, device, by_pod=by_pod, by_zone=name == FGD[1]), top=_EXACT
        )
        for name in FGD
    }
