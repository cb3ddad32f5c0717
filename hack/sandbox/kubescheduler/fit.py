"""Filters on the Node object and on requests, by the product's own functions, the score LeastAllocated, a cycle,
preemption.

The filters are NodeUnschedulable, NodeName, TaintToleration, NodeAffinity and NodeResourcesFit.
Sources: pkg/scheduler/framework/plugins/noderesources/fit.go (fitsRequest), least_allocated.go; schedule_one.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from sandbox.kubescheduler.cache import Cache, NodeInfo, PodInfo, Refused, fit_error, non_zero
from sandbox.kubescheduler.extender import Extender, ExtenderError
from topowise_scheduler.verdicts import kube_scheduler

PLUGIN: Final = "NodeResourcesFit"
EXCLUDING: Final = "NodeUnschedulable, NodeName, TaintToleration, NodeAffinity"
"""Stands for the plug-in of these four that refuses a node."""
_NOT_NAMED: Final = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
_TOP: Final = 100
_NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
_NO_VICTIMS: Final = "No preemption victims found for incoming pod"
_PREFIX: Final = "preemption: "


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


class PostFilterResult(msgspec.Struct, frozen=True):
    """`node` is where to evict `victims`; None with `message`, PostFilter's text, if that helps nowhere."""

    node: str | None = None
    victims: tuple[PodInfo, ...] = ()
    message: str = ""


class Preemption:
    """DefaultPreemption: chooses a node and its victims, pods of lower priority; the extender may change the victims,
    and the caller evicts them.

    The dry run knows in-tree filters only: on a node that only the extender refuses, the pod fits without eviction,
    which is an error for the dry run ("expected at least one victim pod"). PodDisruptionBudgets are left out.
    Sources: pkg/scheduler/framework/preemption/preemption.go, plugins/defaultpreemption/default_preemption.go.
    """

    def __init__(self, cache: Cache, nominated_on: NominatedOn, extender: Extender | None, random: Random) -> None:
        self._cache = cache
        self._nominated_on = nominated_on
        self._extender = extender
        self._random = random

    async def choose(self, info: PodInfo, refused: Mapping[str, Refused]) -> PostFilterResult:
        """Where the pod may make room for itself."""
        why_not = self._why_not(info)
        if why_not:
            return PostFilterResult(message=f"{_PREFIX}{why_not}")
        candidates, reasons, problems = self._dry_run(info, refused)
        if not candidates and problems:
            text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
            return PostFilterResult(message=f"{_PREFIX}{text}")
        if candidates and self._extender is not None:
            try:
                candidates = await self._ask(self._extender, info, candidates)
            except ExtenderError as exc:
                return PostFilterResult(message=f"{_PREFIX}{exc}")
        if not candidates:
            return PostFilterResult(message=f"{_PREFIX}{fit_error(len(refused), reasons)}")
        node = min(candidates, key=lambda name: _rank(candidates[name]))
        return PostFilterResult(node, tuple(candidates[node]))

    def _why_not(self, info: PodInfo) -> str:
        """PodEligibleToPreemptOthers."""
        if info.pod.spec.preemptionPolicy == "Never":
            return "not eligible due to preemptionPolicy=Never."
        node = self._cache.get(info.nominated) if info.nominated else None
        if node is not None and any(
            pod.priority < info.priority and pod.pod.metadata.deletionTimestamp for pod in node.pods.values()
        ):
            return "not eligible due to a terminating pod on the nominated node."
        return ""

    def _dry_run(
        self, info: PodInfo, refused: Mapping[str, Refused]
    ) -> tuple[dict[str, list[PodInfo]], list[str], list[str]]:
        """Victims by node, the words for the other nodes, and errors. The first node is any, as upstream."""
        candidates: dict[str, list[PodInfo]] = {}
        reasons, problems = [], []
        names = list(refused)
        self._random.shuffle(names)
        for name in names:
            node = self._cache.get(name)
            if refused[name].ever or node is None:
                reasons.append(_NOT_HELPFUL)
                continue
            lower = [pod for pod in node.pods.values() if pod.priority < info.priority]
            if not lower:
                reasons.append(_NO_VICTIMS)
                continue
            victims = self._victims(info, node, lower)
            if victims is None:
                refusal = check(info, node, self._nominated_on(name, info), lower)
                reasons += refusal.reasons if refusal is not None else ()
            elif not victims:
                problems.append(f'expected at least one victim pod on node "{name}"')
            else:
                candidates[name] = victims
        return candidates, reasons, problems

    def _victims(self, info: PodInfo, node: NodeInfo, lower: Sequence[PodInfo]) -> list[PodInfo] | None:
        """The fewest of the least important; None if not even all of them would be enough (SelectVictimsOnNode)."""
        beside = self._nominated_on(node.name, info)
        if check(info, node, beside, lower) is not None:
            return None
        victims = list(lower)
        for candidate in sorted(lower, key=lambda pod: (-pod.priority, pod.started)):
            rest = [victim for victim in victims if victim is not candidate]
            if check(info, node, beside, rest) is None:
                victims = rest
        return victims

    async def _ask(
        self, extender: Extender, info: PodInfo, candidates: Mapping[str, list[PodInfo]]
    ) -> dict[str, list[PodInfo]]:
        """Implements callExtenders: the call fails for a node without victims, or with a victim of another node."""
        proposed = {name: [victim.uid for victim in victims] for name, victims in candidates.items()}
        chosen = {}
        for name, (uids, _) in (await extender.preempt(info, proposed)).items():
            node = self._cache.get(name)
            if node is None or any(uid not in node.pods for uid in uids):
                raise ExtenderError(f"extender: {extender.prefix} claims to preempt pods that are not on node: {name}")
            if not uids:
                raise ExtenderError(f'expected at least one victim pod on node "{name}"')
            chosen[name] = [node.pods[uid] for uid in uids]
        return chosen


def _rank(victims: Sequence[PodInfo]) -> tuple[int, int, int, tuple[int, ...]]:
    """Implements pickOneNodeForPreemption: lowest highest priority, smallest sum, fewest, latest start."""
    highest = max(victim.priority for victim in victims)
    first = min(victim.started for victim in victims if victim.priority == highest)
    # Later is better: the text of a time, turned round.
    return highest, sum(victim.priority for victim in victims), len(victims), tuple(-ord(letter) for letter in first)
