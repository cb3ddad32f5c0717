"""Verdicts in words a person understands: where a pod would go, or what is lacking and where the most of it is."""

from __future__ import annotations

from topowise import pods, quantity

from topowise_scheduler.engine.fit import aligned_requests
from topowise_scheduler.engine.node import NodeTopology
from topowise_scheduler.engine.verdict import Outcome, Placement, Verdict


def in_words(name: str, node: NodeTopology | None, needs: pods.Needs, verdict: Verdict) -> str:
    """One sentence on one node."""
    if node is None:
        return f"no exporter has reported {name}; it is left to the other plug-ins"
    if not verdict.placements and verdict.fits:
        return _not_aligned(node, needs)
    if verdict.fits:
        return "; ".join(map(_placed, verdict.placements))
    want = next(one for one in aligned_requests(node, needs) if one.container == verdict.lacking)
    return f"{_who(want)} asks for {_spell(want)} on one NUMA node; {_best(node, want, verdict.outcome)}"


def _not_aligned(node: NodeTopology, needs: pods.Needs) -> str:
    if node.policy == "none":
        return "fits: the node's Topology Manager has policy none and aligns nothing"
    if not aligned_requests(node, needs):
        return f"fits: nothing this {needs.qos} pod asks for is aligned on this node"
    return f"fits: policy {node.policy} is not predicted, the kubelet decides"


def _placed(placement: Placement) -> str:
    return f"{_who(placement)} goes to NUMA node {placement.zone} ({_spell(placement)})"


def _who(placement: Placement) -> str:
    return f"container {placement.container}" if placement.container else "the pod"


def _spell(placement: Placement) -> str:
    return ", ".join(f"{resource} {human(resource, amount)}" for resource, amount in sorted(placement.amounts.items()))


def _best(node: NodeTopology, want: Placement, outcome: Outcome) -> str:
    """What each zone has too little of, the zone that comes closest first."""
    never = outcome is Outcome.UNRESOLVABLE
    lacks = []
    for zone in node.zones:
        have = zone.allocatable if never else zone.available
        short = [
            f"{resource} {human(resource, have.get(resource, 0))}"
            for resource, amount in sorted(want.amounts.items())
            if have.get(resource, 0) < amount
        ]
        if short:
            lacks.append((len(short), zone.id, f"node {zone.id} has {' and '.join(short)}"))
    told = [text for _, _, text in sorted(lacks)]
    if not told:
        return f"no NUMA node has{'' if never else ' still'} room once the containers before it are placed"
    return ("even empty, " if never else "free now: ") + ", ".join(told)


def human(resource: str, amount: int) -> str:
    """An amount for people: cores, binary bytes, pieces."""
    if resource == "cpu":
        return quantity.from_milli(amount)
    if resource == "memory" or resource.startswith("hugepages-"):
        return quantity.human_bytes(amount)
    return str(amount)
