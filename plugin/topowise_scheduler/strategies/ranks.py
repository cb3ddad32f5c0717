"""What comes before every strategy's own rule: how well the pod will lie, by the placement its kubelet will make.

An aligned node is better than one that is not, then fewer NUMA nodes are better than more, then near ones better than
far ones: by what was measured where a node tells it (kubelet/hmat_distances.py), by the SLIT elsewhere. That is what
the pod runs with for its whole life; which hole it leaves behind, how evenly load is spread and all else that
strategies look at only decides among nodes on which it would run equally well.

One thing comes before even that: where one of the best nodes may refuse the pod by its own choice of devices, those
that surely take it are first (device_affinity/refusal_risk.py).

Containers are looked at one by one, and the widest counts; where the kubelet chooses NUMA nodes for the pod as a whole
(scope pod) it is the pod. A plain init container is gone before the pod does its work, so it does not count.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine import Candidates
from topowise_scheduler.strategies.allocations import INIT
from topowise_scheduler.strategies.placed_zones import PlacedZones, Zones

Ranks = NDArray[np.int64]
"""(nodes,) 0 is the best. Of equal ranks, the strategy's own rule decides."""

# Mean SLIT distances are below 256, and no machine has as many NUMA nodes as would carry over.
_ZONE: Final = 1 << 8
_NOT_ALIGNED: Final = 1 << 20


def of(candidates: Candidates) -> Ranks:
    """(nodes,) of these candidates, comparable with other candidates'."""
    lasting = [index for index, container in enumerate(candidates.containers) if container.kind != INIT]
    ranks = np.zeros(candidates.placed.shape[1], np.int64)
    if not lasting:
        return ranks
    placed, aligned = candidates.placed, candidates.aligned
    if len(lasting) < len(placed):
        placed, aligned = placed[lasting], aligned[lasting]
    if candidates.by_pod:
        placed = np.bitwise_or.reduce(placed, axis=0)[None]
    several = np.flatnonzero((placed & (placed - 1)).any(axis=0))
    if several.size:
        distances = candidates.distances if candidates.nearness is None else candidates.nearness
        ranks[several] = _spans(placed.take(several, axis=1), distances.take(several, axis=2))
    if not aligned.all():
        ranks += _NOT_ALIGNED * ~aligned.all(axis=0)
    return ranks


def refined(ranks: Ranks, grades: NDArray[np.int64]) -> Ranks:
    """(nodes,) the same ranks, within each of which a greater grade (0 or more) comes first."""
    if not grades.size:
        return ranks
    best = int(grades.max())
    found: Ranks = ranks * (best + 1) + (best - grades)
    return found


def first(ranks: Ranks, is_first: NDArray[np.bool_]) -> Ranks:
    """(nodes,) the same ranks, but all others come after those that are first."""
    if not ranks.size:
        return ranks
    found: Ranks = ranks + ~is_first * (int(ranks.max()) + 1)
    return found


def _spans(placed: Zones, distances: NDArray[np.int32]) -> Ranks:
    """(nodes,) of (containers, nodes), some of which have several zones: how many the widest has, and how far apart the
    farthest of as many are in the mean, half up."""
    counts = np.bitwise_count(placed).astype(np.int64)
    most = counts.max(axis=0)
    farthest = np.zeros_like(most)
    for mine, count in zip(placed, counts, strict=True):
        zones = PlacedZones.of(mine, distances.shape[0])
        mean = np.zeros_like(most)
        mean[zones.several] = _mean_distances(zones, distances)
        np.maximum(farthest, mean * (count == most), out=farthest)
    spans: Ranks = (most - 1) * _ZONE + farthest
    return spans


def _mean_distances(zones: PlacedZones, distances: NDArray[np.int32]) -> NDArray[np.int64]:
    """(several,) between different zones."""
    inside = zones.inside
    total = np.zeros(inside.shape[1], np.int64)
    for zone, row in enumerate(distances.take(zones.several, axis=2)):
        total += inside[zone] * ((row * inside).sum(axis=0) - row[zone])
    count = inside.sum(axis=0)
    pairs = count * (count - 1)
    mean: NDArray[np.int64] = np.minimum((2 * total + pairs) // (2 * pairs), _ZONE - 1)
    return mean
