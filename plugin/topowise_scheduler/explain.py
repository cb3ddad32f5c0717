"""Verdicts in words a person understands: where a pod would go, or what is lacking and where the most of it is."""

from __future__ import annotations

from topowise import pods, quantity
from topowise_scheduler.engine.fit import aligned_requests
from topowise_scheduler.engine.node import NodeTopology
from topowise_scheduler.engine.verdict import Outcome, Placement, Verdict

_ZONES_TOLD = 2


def in_words(name: str, node: NodeTopology | None, needs: pods.Needs, verdict: Verdict) -> str:
    """One sentence on one node."""
    if node is None:
        return f"no exporter has reported {name}; it is left to the other plug-ins"
    if not verdict.placements and verdict.fits:
        return _not_aligned(node, needs)
    if verdict.fits:
        return "; ".join(map(_placed, verdict.placements))
    want = next(one for one in aligned_requests(node, needs) if one.container == verdict.lacking)
    return _lacking(node, want, even_empty=verdict.outcome is Outcome.UNRESOLVABLE)


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


def _lacking(node: NodeTopology, want: Placement, *, even_empty: bool) -> str:
    """What the zones have too little of; the zone that comes closest first, and no more than tell the tale."""
    lacks: list[tuple[int, int, list[str]]] = []
    for zone in node.zones:
        have = zone.allocatable if even_empty else zone.available
        short = [resource for resource, amount in sorted(want.amounts.items()) if have.get(resource, 0) < amount]
        told = [f"{resource} {human(resource, have.get(resource, 0))}" for resource in short]
        if told:
            lacks.append((len(told), zone.id, told))
    if not lacks:
        return f"{_who(want)} finds no NUMA node with {_spell(want)} once the containers before it are placed"
    lacks.sort()
    shown = [f"node {zone} has {' and '.join(told)}" for _, zone, told in lacks[:_ZONES_TOLD]]
    more = [f"{len(lacks) - _ZONES_TOLD} more lack as much"] if len(lacks) > _ZONES_TOLD else []
    when = "even empty, " if even_empty else "free now: "
    return f"{_who(want)} needs {_spell(want)} on one NUMA node; {when}{', '.join([*shown, *more])}"


def human(resource: str, amount: int) -> str:
    """An amount for people: cores, binary bytes, pieces."""
    if resource == "cpu":
        return quantity.from_milli(amount)
    if resource == "memory" or resource.startswith("hugepages-"):
        return quantity.human_bytes(amount)
    return str(amount)
