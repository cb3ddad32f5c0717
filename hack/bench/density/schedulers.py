"""The schedulers that are compared: topowise with each of its strategies, and kube-scheduler without topowise.

kube-scheduler takes any node of the best score (selectHost, pkg/scheduler). Scores of topowise are those of the
extender API, 0 to 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.density.cluster import Cluster, Sums
from sandbox.judging import candidates, judge, rate
from topowise.pods import Needs
from topowise_scheduler import strategies
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.engine import Outcome
from topowise_scheduler.shape import PodRequests

Scores = NDArray[np.int64]

# kube-scheduler multiplies an extender's score (0 to 10) with the extender's weight and with 100 / 10.
_TOP: Final = 10
_EXTENDER_WEIGHT: Final = 5
_PLUGIN_TOP: Final = 100
_BESIDE_WEIGHT: Final = _EXTENDER_WEIGHT * _PLUGIN_TOP // _TOP


class Scheduler(Protocol):
    """Filters and scores nodes."""

    def best(self, cluster: Cluster, needs: Needs) -> list[int]:
        """Returns the nodes of the best score, empty if the pod fits nowhere."""


class ByNuma:
    """topowise with a strategy. `beside` adds the scores of kube-scheduler's own plug-ins."""

    def __init__(self, strategy: strategies.Strategy, *, beside: bool = False) -> None:
        self._strategy = strategy
        self._beside = beside

    def best(self, cluster: Cluster, needs: Needs) -> list[int]:
        """Returns the best nodes by the engine's verdicts and the strategy's scores."""
        engine, pod = cluster.engine, PodRequests(needs)
        judgement = judge(engine, pod)
        fitting = judgement.rows[judgement.outcome == Outcome.FITS]
        if not fitting.size:
            return []
        rated = rate(self._strategy, candidates(engine, pod, fitting))
        scores = rated.levels(_TOP)
        nodes = np.array([int(name) for name in engine.names(fitting[rated.at])])
        if self._beside:
            scores = scores * _BESIDE_WEIGHT
            scores = scores + (least_allocated(cluster.sums, needs) + balanced(cluster.sums, needs))[nodes]
        return _best(nodes, scores)


class BySums:
    """kube-scheduler's NodeResourcesFit, with LeastAllocated or MostAllocated of CPUs and memory."""

    def __init__(self, score: Callable[[Sums, Needs], Scores]) -> None:
        self._score = score

    def best(self, cluster: Cluster, needs: Needs) -> list[int]:
        """Returns the best nodes by the sums of requests."""
        nodes = np.flatnonzero(fitting(cluster.sums, needs))
        return _best(nodes, self._score(cluster.sums, needs)[nodes]) if nodes.size else []


def fitting(sums: Sums, needs: Needs) -> NDArray[np.bool_]:
    """Returns which nodes pass the filter of NodeResourcesFit."""
    fits = np.ones(len(sums.requested["cpu"]), np.bool_)
    for name, amount in {**needs.requests, "pods": 1}.items():
        fits &= sums.allocatable[name] - sums.requested[name] >= amount
    return fits


def _shares(sums: Sums, needs: Needs) -> Iterator[tuple[Scores, Scores]]:
    """Yields allocatable and requested amounts of CPUs and memory, the pod included."""
    for name in ("cpu", "memory"):
        yield sums.allocatable[name], sums.requested[name] + needs.requests.get(name, 0)


def least_allocated(sums: Sums, needs: Needs) -> Scores:
    """Returns the scores of NodeResourcesFit's LeastAllocated."""
    # Rounds down twice, as noderesources/least_allocated.go does.
    cpus, memory = [(total - used) * _PLUGIN_TOP // total for total, used in _shares(sums, needs)]
    return (cpus + memory) // 2


def most_allocated(sums: Sums, needs: Needs) -> Scores:
    """Returns the scores of NodeResourcesFit's MostAllocated."""
    cpus, memory = [used * _PLUGIN_TOP // total for total, used in _shares(sums, needs)]
    return (cpus + memory) // 2


def balanced(sums: Sums, needs: Needs) -> Scores:
    """Returns the scores of NodeResourcesBalancedAllocation; the deviation of two shares is half their distance."""
    (cpus, used_cpus), (memory, used_memory) = _shares(sums, needs)
    deviation = np.abs(np.minimum(used_cpus / cpus, 1) - np.minimum(used_memory / memory, 1)) / 2
    scores: Scores = ((1 - deviation) * _PLUGIN_TOP).astype(np.int64)
    return scores


def _best(nodes: NDArray[np.intp], scores: Scores) -> list[int]:
    return [int(node) for node in nodes[scores == scores.max()]]


BESIDE: Final = "TightFit, beside kube-scheduler's scores"
BLIND: Final = ("NUMA-blind LeastAllocated", "NUMA-blind MostAllocated")
NAMES: Final = (*strategies.NAMES, BESIDE, *BLIND)


def make(name: str) -> Scheduler:
    """Returns the scheduler with one of NAMES, which the figures carry too."""
    if name in BLIND:
        return BySums(least_allocated if name == BLIND[0] else most_allocated)
    scoring = Scoring()
    weights = {resource.name: resource.weight for resource in scoring.resources}
    strategy = strategies.make("TightFit" if name == BESIDE else name, weights, scoring)
    return ByNuma(strategy, beside=name == BESIDE)
