"""DefaultPreemption: chooses a node and its victims, pods of lower priority; the extender may change the victims.

The dry run knows in-tree filters only: on a node that only the extender refuses, the pod fits without eviction, which
is an error for the dry run ("expected at least one victim pod"). PodDisruptionBudgets are left out.
Sources: pkg/scheduler/framework/preemption/preemption.go, plugins/defaultpreemption/default_preemption.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from sandbox.kubescheduler import fit
from sandbox.kubescheduler.cache import Cache, NodeInfo, PodInfo, Refused, fit_error
from sandbox.kubescheduler.extender import Extender, ExtenderError

_NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
_NO_VICTIMS: Final = "No preemption victims found for incoming pod"
_PREFIX: Final = "preemption: "

NominatedOn = Callable[[str, PodInfo], list[PodInfo]]
"""Pods nominated on a node that count for a pod."""


class PostFilterResult(msgspec.Struct, frozen=True):
    """`node` is where to evict `victims`; None with `message`, PostFilter's text, if that helps nowhere."""

    node: str | None = None
    victims: tuple[PodInfo, ...] = ()
    message: str = ""


class Preemption:
    """Chooses; evicting is done by the caller."""

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
                refusal = fit.check(info, node, self._nominated_on(name, info), lower)
                reasons += refusal.reasons if refusal is not None else ()
            elif not victims:
                problems.append(f'expected at least one victim pod on node "{name}"')
            else:
                candidates[name] = victims
        return candidates, reasons, problems

    def _victims(self, info: PodInfo, node: NodeInfo, lower: Sequence[PodInfo]) -> list[PodInfo] | None:
        """The fewest of the least important; None if not even all of them would be enough (SelectVictimsOnNode)."""
        beside = self._nominated_on(node.name, info)
        if fit.check(info, node, beside, lower) is not None:
            return None
        victims = list(lower)
        for candidate in sorted(lower, key=lambda pod: (-pod.priority, pod.started)):
            rest = [victim for victim in victims if victim is not candidate]
            if fit.check(info, node, beside, rest) is None:
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
