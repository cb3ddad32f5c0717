"""The scheduling cycle of a pod: filter, extender, scores, choice (pkg/scheduler/schedule_one.go, schedulePod)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from sandbox.kubescheduler import fit
from sandbox.kubescheduler.attempt import Refused
from sandbox.kubescheduler.cache import Cache, NodeInfo
from sandbox.kubescheduler.extender import Extender, ExtenderError
from sandbox.kubescheduler.pod import PodInfo

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
            refusal = fit.check(info, node, self._nominated_on(node.name, info))
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
            totals[name] = 0 if node is None else fit.least_allocated(info, node)
        scores: dict[str, int] = {}
        if self._extender is not None:
            scores = await self._extender.prioritize(info, feasible)
            for name, score in scores.items():
                if name in totals:
                    totals[name] += self._extender.weighed(score)
        best = max(totals.values())
        chosen = self._random.choice([name for name in feasible if totals[name] == best])
        return Decision(tuple(feasible), refused, scores, chosen)
