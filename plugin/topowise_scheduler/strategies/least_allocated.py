"""LeastAllocated: the emptier the NUMA nodes that the pod will take, the better.

The formula is NodeResourcesFit's, applied to the zone instead of the node (KEP-119, sig-scheduling): the weighted mean
over resources of what is left of the zone once the pod is on it. Where scheduler-plugins take the minimum over all
zones, this takes the zone the kubelet will choose. A pod of several placements scores their mean.
"""

from __future__ import annotations

from collections.abc import Mapping

from topowise_scheduler.engine.node import NodeTopology
from topowise_scheduler.engine.score import RAW_MAX
from topowise_scheduler.engine.verdict import Verdict


def score(node: NodeTopology, verdict: Verdict, weights: Mapping[str, int]) -> int:
    """0 if nothing is aligned: a node that will align the pod is better than one that will not."""
    free = {zone.id: dict(zone.available) for zone in node.zones}
    whole = {zone.id: zone.allocatable for zone in node.zones}
    total = 0
    for placement in verdict.placements:
        left = free[placement.zone]
        weighted = parts = 0
        for resource, amount in placement.amounts.items():
            after = max(0, left.get(resource, 0) - amount)
            if placement.is_kept:
                left[resource] = after
            weight = weights.get(resource, 0)
            allocatable = whole[placement.zone].get(resource, 0)
            if weight and allocatable:
                weighted += weight * (after * RAW_MAX // allocatable)
                parts += weight
        total += weighted // parts if parts else 0
    return total // len(verdict.placements) if verdict.placements else 0
