"""The rank of a node by the quality of the pod's predicted placement, which precedes every strategy's score.

An aligned placement is better than an unaligned placement, then fewer NUMA nodes, then nearer NUMA nodes: by measured
distances where a node reports them (kubelet/topology_manager.py), by the SLIT elsewhere. The pod has this placement for
its whole life. The criteria of strategies, such as fragmentation and load, only decide among placements of equal
quality.

If a best node may refuse the pod because of its choice of devices, nodes without this risk come first
(device_affinity/choices.py).

The container with the most NUMA nodes counts, or the pod where the kubelet aligns the whole pod (scope pod). A plain
init container ends before the pod does its work, so it does not count.

Whether an L3 cache has enough CPUs for a pod is the last criterion among otherwise equal nodes. Only a CPU manager with
prefer-align-cpus-by-uncorecache places a container in an L3 cache on purpose, so only such nodes count. Each container
of several on a NUMA node is checked as if it came first. The model confirms the result of the best nodes
(Engine.confirm_caches).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies.allocations import INIT, PlacedZones, Zones

Ranks = NDArray[np.int64]
"""(nodes,) 0 is the best. Of equal ranks, the strategy's own rule decides."""

# Mean SLIT distances are below 256, and 4,096 NUMA nodes would overflow into _NOT_ALIGNED.
_ZONE: Final = 1 << 8
_NOT_ALIGNED: Final = 1 << 20
# Above all ranks, also split ones.
_GRADE: Final = 48


def of(candidates: Candidates) -> Ranks:
    """(nodes,) the ranks of these candidates, comparable between calls."""
    running = [index for index, container in enumerate(candidates.containers) if container.kind != INIT]
    ranks = np.zeros(candidates.placed.shape[1], np.int64)
    if not running:
        return ranks
    placed, aligned = candidates.placed, candidates.aligned
    if len(running) < len(placed):
        placed, aligned = placed[running], aligned[running]
    if candidates.by_pod:
        placed = np.bitwise_or.reduce(placed, axis=0)[None]
    several = np.flatnonzero((placed & (placed - 1)).any(axis=0))
    if several.size:
        distances = candidates.distances if candidates.nearness is None else candidates.nearness
        ranks[several] = _spans(placed.take(several, axis=1), distances.take(several, axis=2))
    if not aligned.all():
        ranks += _NOT_ALIGNED * ~aligned.all(axis=0)
    return ranks


def refined(ranks: Ranks, grades: NDArray[np.int64], top: int) -> Ranks:
    """(nodes,) the ranks, split so that within a rank a greater grade (0 to `top`) comes first; comparable between
    calls."""
    split: Ranks = ranks * (top + 1) + (top - grades)
    return split


def preceded(ranks: Ranks, grades: NDArray[np.int64], top: int) -> Ranks:
    """(nodes,) the ranks, changed so that a greater grade (0 to `top`) comes before all ranks of smaller grades;
    comparable between calls."""
    split: Ranks = ranks + (top - grades << _GRADE)
    return split


def first(ranks: Ranks, is_first: NDArray[np.bool_]) -> Ranks:
    """(nodes,) the ranks, changed so that nodes with `is_first` come before all nodes without."""
    if not ranks.size:
        return ranks
    shifted: Ranks = ranks + ~is_first * (int(ranks.max()) + 1)
    return shifted


def _spans(placed: Zones, distances: NDArray[np.int32]) -> Ranks:
    """(nodes,) from (containers, nodes): the most zones of a container, then the greatest mean distance (rounded half
    up) of the containers with as many zones."""
    counts = np.bitwise_count(placed).astype(np.int64)
    most = counts.max(axis=0)
    farthest = np.zeros_like(most)
    for masks, count in zip(placed, counts, strict=True):
        zones = PlacedZones.of(masks, distances.shape[0])
        mean = np.zeros_like(most)
        mean[zones.several] = _mean_distances(zones, distances)
        np.maximum(farthest, mean * (count == most), out=farthest)
    spans: Ranks = (most - 1) * _ZONE + farthest
    return spans


def _mean_distances(zones: PlacedZones, distances: NDArray[np.int32]) -> NDArray[np.int64]:
    """(several,) the mean distance between different zones of a mask, rounded half up."""
    inside = zones.inside
    total = np.zeros(inside.shape[1], np.int64)
    for zone, row in enumerate(distances.take(zones.several, axis=2)):
        total += inside[zone] * ((row * inside).sum(axis=0) - row[zone])
    count = inside.sum(axis=0)
    pairs = count * (count - 1)
    mean: NDArray[np.int64] = np.minimum((2 * total + pairs) // (2 * pairs), _ZONE - 1)
    return mean


def in_one(candidates: Candidates) -> NDArray[np.bool_] | None:
    """(nodes,) whether every container with exclusive CPUs, without plain init containers, gets them in a single cache;
    None without such containers or without nodes that report caches."""
    requests = [
        (container.requests["cpu"], placed)
        for container, placed in zip(candidates.containers, candidates.placed, strict=True)
        if container.kind != INIT and "cpu" in container.requests
    ]
    if candidates.caches is None or not requests:
        return None
    in_cache = np.ones(candidates.placed.shape[1], np.bool_)
    for count, masks in requests:
        placed = PlacedZones.of(masks, candidates.zones)
        enough = np.zeros(masks.size, np.bool_)
        enough[placed.single] = placed.at_single(candidates.caches) >= count
        in_cache &= enough
    return in_cache
