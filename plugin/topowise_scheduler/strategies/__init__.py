"""How good a placement is: which of the nodes that fit a pod should have it.

`make` gives the strategy of a name; a strategy gives nodes (engine/candidates.py) a raw number each, and scale.py
turns the raw numbers of a whole call into what goes over the wire.
"""

from __future__ import annotations

from collections.abc import Mapping

from topowise_scheduler.strategies.balanced_allocation import BalancedAllocation
from topowise_scheduler.strategies.least_allocated import LeastAllocated
from topowise_scheduler.strategies.least_numa_nodes import LeastNUMANodes
from topowise_scheduler.strategies.most_allocated import MostAllocated
from topowise_scheduler.strategies.numa_aware import NUMAAware
from topowise_scheduler.strategies.strategy import Options, Strategy
from topowise_scheduler.strategies.tight_fit import TightFit
from topowise_scheduler.strategy_names import NAMES

__all__ = ["NAMES", "Options", "Strategy", "make"]


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
