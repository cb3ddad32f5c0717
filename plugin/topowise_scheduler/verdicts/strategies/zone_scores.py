"""LeastAllocated, MostAllocated and BalancedAllocation (KEP-119 of scheduler-plugins): a score of every zone, and which
zone counts.

From scheduler-plugins (pkg/noderesourcetopology/score.go, read at 903da7d): a zone's score compares requests with the
zone's *available* amounts. A container gets the minimum over the zones that fit it, "in order to avoid edge cases", and
a pod the mean over its containers, or in scope pod the minimum for the whole pod. Differences:

- containers in the same zones are scored together in every scope, because these zones are affected equally;
- a score is in hundredths of a percent and rounded once, half up; upstream truncates every percentage;
- a zone fits if it has enough of every resource. Upstream takes any zone with a score above 0, so it counts zones that
  lack a resource, and ignores a zone that the pod would fill completely (LeastAllocated 0);
- resources that previous containers keep are subtracted (allocations.py); plain init containers keep nothing;
- all policies are scored; upstream gives policies other than single-numa-node 0. Zones that are taken together are
  scored as a single zone;
- a resource that no zone of a node has is not aligned there and does not count; upstream it scores 0;
- without any aligned resource the score is 0 on all nodes, which is equivalent to upstream's 100 on all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies.allocations import Allocation, allocation_plans, has_resource
from topowise_scheduler.verdicts.strategies.scale import RAW_MAX, Strategy

Scores = NDArray[np.float64]


class Share(NamedTuple):
    """A resource: `used` (zones, nodes) is the request divided by the available amount, undefined where that lacks.
    `counts` (nodes,) is False, and `used` 0, where the node does not align it; None if all nodes align it."""

    resource: str
    used: Scores
    counts: NDArray[np.bool_] | None


OfZones = Callable[[Sequence[Share]], Scores]


class MostAllocated(Strategy):
    """The fuller the NUMA nodes get, the better: the weighted mean over resources of the share of the zone's available
    amount that the pod takes (most_allocated.go). `weights` of resources are 1 by default."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = weights

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) 0 to RAW_MAX."""
        return raw(candidates, self._of_zones)

    def _of_zones(self, shares: Sequence[Share]) -> Scores:
        return mean_used(shares, self._weights)


class LeastAllocated(MostAllocated):
    """The emptier the NUMA nodes stay, the better: the share that stays free (least_allocated.go)."""

    def _of_zones(self, shares: Sequence[Share]) -> Scores:
        return 1 - mean_used(shares, self._weights)


class BalancedAllocation(MostAllocated):
    """The more equal the shares of the resources, the better (balanced_allocation.go): 1 minus the sample variance
    (divided by n - 1, as in gonum's stat.Variance) of the shares.

    Weights are ignored, as upstream. With a single resource the variance is 0 here. Upstream it is NaN, and the integer
    score depends on the platform.
    """

    def _of_zones(self, shares: Sequence[Share]) -> Scores:
        mean = mean_used(shares, {})
        if len(shares) == 1:
            return np.ones_like(mean)
        squares = np.zeros_like(mean)
        number = np.zeros(mean.shape[1])
        for _, used, counts in shares:
            off = (used - mean) ** 2
            squares += off if counts is None else off * counts
            number += 1 if counts is None else counts
        return 1 - squares / np.maximum(number - 1, 1)


def raw(candidates: Candidates, of_zones: OfZones) -> NDArray[np.int64]:
    """(nodes,) 0 to RAW_MAX; `of_zones` returns (zones, nodes) from 0 to 1 where the zone fits."""
    scores = np.zeros(candidates.placed.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        for where, allocations in allocation_plans(candidates):
            total = np.sum([_of_allocation(candidates, allocation, of_zones) for allocation in allocations], axis=0)
            scores = np.where(where, total / len(allocations), scores)
    return np.floor(scores * RAW_MAX + 0.5).astype(np.int64)


def _of_allocation(candidates: Candidates, allocation: Allocation, of_zones: OfZones) -> Scores:
    counts = {name: has_resource(candidates, name) for name in allocation.requests}
    scores = _lowest(allocation.requests, allocation.available, counts, of_zones)
    several = allocation.placed.several
    if several.size:
        together = {
            name: allocation.placed.at_several(requests)[None] for name, requests in allocation.available.items()
        }
        partial = {name: None if where is None else where[several] for name, where in counts.items()}
        scores[several] = _lowest(allocation.requests, together, partial, of_zones)
    scores[allocation.placed.none] = 0
    return scores


def _lowest(
    requests: Mapping[str, int],
    available: Mapping[str, NDArray[np.int64]],
    counts: Mapping[str, NDArray[np.bool_] | None],
    of_zones: OfZones,
) -> Scores:
    """(nodes,) the minimum over the zones that fit, 0 without such a zone."""
    shares = []
    lacks: NDArray[np.bool_] | None = None
    for name, amount in requests.items():
        used, short, where = amount / available[name], available[name] < amount, counts[name]
        if where is not None:
            used = np.where(where, used, 0.0)
            short &= where
        shares.append(Share(name, used, where))
        lacks = short if lacks is None else lacks | short
    scores = of_zones(shares)
    if lacks is not None:
        np.copyto(scores, np.inf, where=lacks)
    lowest: Scores = scores.min(axis=0)
    lowest[np.isinf(lowest)] = 0
    return lowest


def mean_used(shares: Sequence[Share], weights: Mapping[str, int]) -> Scores:
    """(zones, nodes) the weighted mean of the used shares; 0 on nodes that align none of the resources."""
    total = np.zeros_like(shares[0].used)
    parts = np.zeros(total.shape[1])
    for resource, used, counts in shares:
        weight = weights.get(resource, 1)
        total += used if weight == 1 else weight * used
        parts += weight if counts is None else weight * counts
    total /= np.maximum(parts, 1)
    return total
