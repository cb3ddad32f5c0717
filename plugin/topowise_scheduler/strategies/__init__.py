"""How good a placement is: which of the nodes that fit a pod should have it.

How well the pod will lie comes first (ranks.py), whatever the strategy; `make` gives the strategy of a name, which
gives nodes (engine/candidates.py) of equal rank a raw number each. `Rater` does both, `rate` for all nodes of a call,
and scale.py turns them into what goes over the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Candidates, Ratings
from topowise_scheduler.strategies import l3_caches, ranks, scale
from topowise_scheduler.strategies.balanced_allocation import BalancedAllocation
from topowise_scheduler.strategies.least_allocated import LeastAllocated
from topowise_scheduler.strategies.least_numa_nodes import LeastNUMANodes
from topowise_scheduler.strategies.most_allocated import MostAllocated
from topowise_scheduler.strategies.numa_aware import NUMAAware
from topowise_scheduler.strategies.strategy import Options, Strategy
from topowise_scheduler.strategies.tight_fit import TightFit
from topowise_scheduler.strategy_names import NAMES

__all__ = ["NAMES", "Options", "Rated", "Rater", "Strategy", "make", "rate"]


class Rated(NamedTuple):
    """The nodes of a call on which the pod fits, `at` their indices. The best has the least of `ranks`, then the
    greatest of `raw`, and of equal ones is `in_one_cache`, None where no node tells of caches."""

    at: NDArray[np.intp]
    raw: NDArray[np.int64]
    ranks: ranks.Ranks
    in_percent: bool
    in_one_cache: NDArray[np.bool_] | None = None

    def levels(self, top: int, low: int = 0, *, more_below: bool = False) -> scale.Levels:
        """From low to top, in the order of `at`; `more_below` are nodes of a worse rank that are none of these."""
        if self.in_percent and top == _PERCENT:
            return np.maximum(self.percents(), low)
        found = scale.spread(self.raw, self.ranks, top, low, more_below=more_below)
        if self.in_one_cache is not None:
            scale.break_tie(found, self.raw, self.ranks, self.in_one_cache, top, low)
        return found

    def best(self, most: int) -> NDArray[np.intp]:
        """At most so many of `at`, the best first; of equal ones those that come first."""
        some = np.arange(self.at.size)
        if some.size > most:
            some = np.flatnonzero(self.ranks <= np.partition(self.ranks, most - 1)[most - 1])
        elsewhere = np.zeros(some.size, np.bool_) if self.in_one_cache is None else ~self.in_one_cache[some]
        found: NDArray[np.intp] = self.at[some[np.lexsort((elsewhere, -self.raw[some], self.ranks[some]))[:most]]]
        return found

    def percents(self) -> scale.Levels:
        """0 to 100, by the height of the scores."""
        return scale.percents(self.raw, self.ranks)


_PERCENT = 100
_UNTOLD = -1


class Rater(NamedTuple):
    """What the engine asks about nodes that are new to a shape of pod (Engine.rated)."""

    strategy: Strategy

    def rate(self, candidates: Candidates) -> tuple[NDArray[np.int64], ranks.Ranks, NDArray[np.int8]]:
        """(nodes,) raw scores, ranks, and whether CPUs will lie in one cache, _UNTOLD where nodes do not tell."""
        raw, in_one = self.strategy.raw(candidates), l3_caches.in_one(candidates)
        in_cache = np.full(len(raw), _UNTOLD, np.int8) if in_one is None else in_one.astype(np.int8)
        return raw, ranks.of(candidates), in_cache

    def finished(self, ratings: Ratings) -> Rated:
        """What was said of all nodes of a call."""
        raw, in_cache = self.strategy.finish(ratings.raw), ratings.in_cache
        in_one = None if (in_cache == _UNTOLD).all() else in_cache > 0
        return Rated(ratings.at, raw, ratings.ranks, self.strategy.in_percent, in_one)


def rate(strategy: Strategy, parts: Iterable[tuple[NDArray[np.intp], Candidates]]) -> Rated:
    """The candidates of a call (Engine.candidates) by a strategy."""
    rater = Rater(strategy)
    nothing = np.zeros(0, np.int64)
    found = [(np.zeros(0, np.intp), nothing, nothing, np.zeros(0, np.int8))]
    found += [(indices, *rater.rate(candidates)) for indices, candidates in parts]
    return rater.finished(Ratings(*map(np.concatenate, zip(*found, strict=True))))


def make(name: str, weights: Mapping[str, int], options: Options) -> Strategy:
    """The strategy of this name. `weights` are at least 1; a resource that is not among them has 1, as upstream's
    `resourceToWeightMap.weight` (scheduler-plugins, pkg/noderesourcetopology/score.go). Raises ValueError for an
    unknown name."""
    match name:
        case "TightFit":
            return TightFit(weights, options.tie_break)
        case "LeastAllocated":
            return LeastAllocated(weights)
        case "MostAllocated":
            return MostAllocated(weights)
        case "BalancedAllocation":
            return BalancedAllocation()
        case "LeastNUMANodes":
            return LeastNUMANodes(options.max_numa_nodes)
        case "NUMAAware":
            return NUMAAware()
    raise ValueError(f"unknown scoring strategy {name!r}, expected one of {', '.join(NAMES)}")
