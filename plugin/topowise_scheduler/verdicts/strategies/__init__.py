"""Scores of the nodes that fit a pod.

The quality of the pod's placement comes first (ranks.py), for every strategy. A strategy (`make`) gives nodes of equal
rank (engine/candidates.py) a raw score. `Rater` computes both, and scale.py converts them to an extender's scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates, Ratings
from topowise_scheduler.verdicts.engine.candidates import BY_COUNTS, SPLIT, UNREPORTED
from topowise_scheduler.verdicts.strategies import ranks, scale
from topowise_scheduler.verdicts.strategies.least_numa_nodes import LeastNUMANodes, NUMAAware
from topowise_scheduler.verdicts.strategies.scale import Options, Strategy
from topowise_scheduler.verdicts.strategies.tight_fit import TightFit
from topowise_scheduler.verdicts.strategies.zone_scores import BalancedAllocation, LeastAllocated, MostAllocated
from topowise_scheduler.verdicts.strategy_names import NAMES

__all__ = ["NAMES", "Options", "Rated", "Rater", "Strategy", "make"]


class Rated(NamedTuple):
    """The nodes of a call on which the pod fits; `at` are their indices in the call. Best is the least of `ranks`, then
    the greatest of `raw`, then `in_one_cache`, which is None if no node reports caches."""

    at: NDArray[np.intp]
    raw: NDArray[np.int64]
    ranks: ranks.Ranks
    in_percent: bool
    in_one_cache: NDArray[np.bool_] | None = None

    def levels(self, top: int, low: int = 0, *, more_below: bool = False) -> scale.Levels:
        """From low to top, in the order of `at`; `more_below`: the call has further nodes of a worse rank."""
        if self.in_percent and top == _PERCENT:
            return np.maximum(self.percents(), low)
        levels = scale.spread(self.raw, self.ranks, top, low, more_below=more_below)
        if self.in_one_cache is not None:
            scale.break_tie(levels, self.raw, self.ranks, self.in_one_cache, top, low)
        return levels

    def undecided_by_cache(self) -> NDArray[np.intp]:
        """Returns indices of `at`: the best nodes, if there are several and L3 caches decide among them."""
        if self.in_one_cache is None or not self.at.size:
            return np.zeros(0, np.intp)
        tied = np.flatnonzero(scale.tied(self.raw, self.ranks))
        return tied[self.in_one_cache[tied]] if tied.size > 1 else tied[:0]

    def best(self, most: int) -> NDArray[np.intp]:
        """At most `most` of `at`, the best first, equal nodes in their order."""
        chosen = np.arange(self.at.size)
        if chosen.size > most:
            # A partition first, because a sort of all nodes takes longer.
            chosen = np.flatnonzero(self.ranks <= np.partition(self.ranks, most - 1)[most - 1])
        split = np.zeros(chosen.size, np.bool_) if self.in_one_cache is None else ~self.in_one_cache[chosen]
        best: NDArray[np.intp] = self.at[chosen[np.lexsort((split, -self.raw[chosen], self.ranks[chosen]))[:most]]]
        return best

    def percents(self) -> scale.Levels:
        """0 to 100, by the height of the scores."""
        return scale.percents(self.raw, self.ranks)


_PERCENT = 100


class Rater(NamedTuple):
    """Rates candidates by a strategy (Engine.rated)."""

    strategy: Strategy

    def rate(self, candidates: Candidates) -> tuple[NDArray[np.int64], ranks.Ranks, NDArray[np.int8]]:
        """(nodes,) raw scores, ranks, and whether an L3 cache has enough CPUs, UNREPORTED for unknown caches."""
        raw, in_one = self.strategy.raw(candidates), ranks.in_one(candidates)
        in_cache = np.full(len(raw), UNREPORTED, np.int8) if in_one is None else in_one * np.int8(BY_COUNTS)
        return raw, ranks.of(candidates), in_cache

    def finished(self, ratings: Ratings) -> Rated:
        """The ratings of all nodes of a call, finished by the strategy."""
        raw, in_cache = self.strategy.finish(ratings.raw), ratings.in_cache
        in_one = None if (in_cache == UNREPORTED).all() else in_cache > SPLIT
        return Rated(ratings.at, raw, ratings.ranks, self.strategy.in_percent, in_one)


def make(name: str, weights: Mapping[str, int], options: Options) -> Strategy:
    """The strategy of this name. `weights` are at least 1, and 1 by default, as in upstream's
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
            return BalancedAllocation(weights)
        case "LeastNUMANodes":
            return LeastNUMANodes()
        case "NUMAAware":
            return NUMAAware()
    raise ValueError(f"unknown scoring strategy {name!r}, expected one of {', '.join(NAMES)}")
