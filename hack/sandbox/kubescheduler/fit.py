"""Filters on the Node object and on requests, by the product's own functions, the score LeastAllocated, and a cycle.

The filters are NodeUnschedulable, NodeName, TaintToleration, NodeAffinity and NodeResourcesFit.
Sources: pkg/scheduler/framework/plugins/noderesources/fit.go (fitsRequest), least_allocated.go; schedule_one.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final

import msgspec

from sandbox.kubescheduler.cache import Cache, NodeInfo, PodInfo, Refused, non_zero
from sandbox.kubescheduler.extender import Extender, ExtenderError
from topowise_scheduler.verdicts import kube_scheduler

PLUGIN: Final = "NodeResourcesFit"
EXCLUDING: Final = "NodeUnschedulable, NodeName, TaintToleration, NodeAffinity"
"""Stands for the plug-in of these four that refuses a node."""
_NOT_NAMED: Final = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
_TOP: Final = 100


def check(
    info: PodInfo, node: NodeInfo, beside: Iterable[PodInfo] = (), without: Iterable[PodInfo] = ()
) -> Refused | None:
    """Returns why the node is refused, with more pods (nominated) and without `without` (victims); None if it fits."""
    if node.object is None:
        return Refused((kube_scheduler.NO_NODE.words,), EXCLUDING, ever=True)
    node_names = _required_names(info.pod.spec)
    if node_names and node.name not in node_names:
        return Refused((_NOT_NAMED,), EXCLUDING, ever=True)
    excluded = kube_scheduler.exclusion_of(node.object, info.pod.spec)
    if excluded is not None:
        return Refused((excluded.words,), EXCLUDING, ever=True)
    used = dict(node.used)
    for pods, sign in ((beside, 1), (without, -1)):
        for pod in pods:
            for name, amount in (("pods", 1), *pod.requests.items()):
                used[name] = used.get(name, 0) + sign * amount
    short = kube_scheduler.short(node.object, info.needs, used)
    return None if short is None else Refused(tuple(short.words.split(", ")), PLUGIN, short.verdict == "never")


def _required_names(spec: kube_scheduler.Spec) -> set[str]:
    """Returns the nodes that required affinity names in every term, as for pods of a DaemonSet (PreFilter)."""
    affinity = spec.affinity and spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    terms = [
        {name for field in term.matchFields or () if field.operator == "In" for name in field.values or ()}
        for term in (required and required.nodeSelectorTerms) or ()
    ]
    return set().union(*terms) if all(terms) else set()


def accepts(info: PodInfo, node: NodeInfo, plugins: Iterable[str]) -> bool:
    """Returns whether these plug-ins accept the node without pods, as their hints for node events ask."""
    if node.object is None:
        return False
    return not (
        (EXCLUDING in plugins and kube_scheduler.exclusion_of(node.object, info.pod.spec))
        or (PLUGIN in plugins and kube_scheduler.short(node.object, info.needs, {}))
    )


def least_allocated(info: PodInfo, node: NodeInfo) -> int:
    """0..100, more for the emptier node."""
    total = count = 0
    for name, amount in non_zero(info).items():
        capacity = node.allocatable.get(name, 0)
        if not capacity:
            continue
        count += 1
        requested = node.scored[name] + amount
        if requested <= capacity:
            # Rounded down, as Go's integer division of positive numbers does.
            total += (capacity - requested) * _TOP // capacity
    return total // count if count else 0


NominatedOn = Callable[[str, PodInfo], list[PodInfo]]


class Decision(msgspec.Struct, frozen=True):
    """`chosen` is None if no node fits; every other node has its refusal then."""

    feasible: tuple[str, ...]
    refused: dict[str, Refused]
    scores: dict[str, int]
    chosen: str | None


class Cycle:
    """Decides on the cache as it is; changes nothing."""

    def __init__(self, cache: Cache, nominated_on: NominatedOn, extender: Extender | None, random: Random) -> None:
        self._cache = cache
        self._nominated_on = nominated_on
        self._extender = extender
        self._random = random

    async def decide(self, info: PodInfo) -> Decision:
        """Raises ExtenderError: then the attempt has failed as a whole."""
        if info.nominated:
            node = self._cache.get(info.nominated)
            if node is not None:
                feasible, _ = await self._filter(info, [node])
                if feasible:
                    return Decision((node.name,), {}, {}, node.name)
        nodes = list(self._cache.nodes())
        # Sixteen goroutines find the nodes, in no particular order.
        self._random.shuffle(nodes)
        feasible, refused = await self._filter(info, nodes)
        if not feasible:
            return Decision((), refused, {}, None)
        if len(feasible) == 1:
            return Decision(tuple(feasible), refused, {}, feasible[0])
        return await self._score(info, feasible, refused)

    async def _filter(self, info: PodInfo, nodes: list[NodeInfo]) -> tuple[list[str], dict[str, Refused]]:
        refused = {}
        for node in nodes:
            refusal = check(info, node, self._nominated_on(node.name, info))
            if refusal is not None:
                refused[node.name] = refusal
        feasible = [node.name for node in nodes if node.name not in refused]
        if feasible and self._extender is not None:
            try:
                feasible, by_extender = await self._extender.filter(info, feasible)
            except ExtenderError:
                if not self._extender.is_ignorable:
                    raise
                by_extender = {}
            refused |= by_extender
        return feasible, refused

    async def _score(self, info: PodInfo, feasible: list[str], refused: dict[str, Refused]) -> Decision:
        totals = {}
        for name in feasible:
            node = self._cache.get(name)
            totals[name] = 0 if node is None else least_allocated(info, node)
        scores: dict[str, int] = {}
        if self._extender is not None:
            scores = await self._extender.prioritize(info, feasible)
            for name, score in scores.items():
                if name in totals:
                    totals[name] += self._extender.weighed(score)
        best = max(totals.values())
        chosen = self._random.choice([name for name in feasible if totals[name] == best])
        return Decision(tuple(feasible), refused, scores, chosen)
