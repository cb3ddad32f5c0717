"""The pods of a node that may be evicted, in kube-scheduler's order, and how harmful it is to evict a set of them.

A set of pods is an integer: bit i is the pod at position i, and position 0 is the most important one. The lowest bit
of a set is so its most important pod, and the order of the victims needs no sorting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from topowise_scheduler.kubelet.masks import mask_of, members

PodSet = int

# What kube-scheduler adds to every priority, an int32, so that no sum of them is negative.
_PRIORITY_SHIFT: Final = 1 << 31


class Running(msgspec.Struct, frozen=True, gc=False):
    """A pod that runs on the node.

    `started` is its status.startTime as the API server spells it (RFC 3339, UTC, whole seconds), or when it was
    created; "" counts as now. `budgets` are the keys of the PodDisruptionBudgets that select it (budgets.matching).
    """

    uid: str
    priority: int
    started: str = ""
    budgets: tuple[str, ...] = ()


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The uids to evict, most important first, and how many of them violate a budget (NumPDBViolations)."""

    victims: tuple[str, ...]
    violations: int


class Harm(NamedTuple):
    """What pickOneNodeForPreemption compares, in its order; less is better. It grows with every pod in the set.

    `seniority` tells how early the first victim of the highest priority started: 0 for the latest of all starts.
    """

    violations: int
    highest_priority: int
    priorities: int
    victims: int
    seniority: int


NO_HARM: Final = Harm(0, -_PRIORITY_SHIFT, 0, 0, 0)


class Roster:
    """The pods less important than the preemptor, and those proposed whatever they are; never the preemptor itself.

    `proposed` and `violating` are sets of them, `unknown` the uids that are proposed but do not run here: they are
    victims, but nothing is known of the harm.
    """

    def __init__(
        self,
        uid: str,
        priority: int,
        running: Iterable[Running],
        proposed: Collection[str],
        allowed: Mapping[str, int],
    ) -> None:
        known = {pod.uid: pod for pod in running if pod.uid != uid and (pod.priority < priority or pod.uid in proposed)}
        # MoreImportantPod (pkg/scheduler/util/utils.go): priority, then who has run for longer. What ties there is
        # ordered by uid here, so that the answer never depends on the order of the question.
        pods = sorted(known.values(), key=lambda pod: (-pod.priority, not pod.started, pod.started, pod.uid))
        self.pods: tuple[Running, ...] = tuple(pods)
        self.everyone: PodSet = (1 << len(pods)) - 1
        self.proposed: PodSet = mask_of(at for at, pod in enumerate(pods) if pod.uid in proposed)
        self.violating: PodSet = _violating(pods, allowed)
        self.unknown: tuple[str, ...] = tuple(sorted(set(proposed) - known.keys() - {uid}))
        self.weights: tuple[int, ...] = tuple([pod.priority + _PRIORITY_SHIFT for pod in pods])
        starts = sorted({(not pod.started, pod.started) for pod in pods}, reverse=True)
        ranks = {start: rank for rank, start in enumerate(starts)}
        self._seniority = [ranks[not pod.started, pod.started] for pod in pods]

    def harm(self, victims: PodSet) -> Harm:
        """How harmful it is to evict these pods."""
        if not victims:
            return NO_HARM
        first = (victims & -victims).bit_length() - 1
        return Harm(
            (victims & self.violating).bit_count(),
            self.pods[first].priority,
            sum([self.weights[at] for at in members(victims)]),
            victims.bit_count(),
            self._seniority[first],
        )

    def priorities(self, pods: PodSet) -> list[int]:
        """The priorities that occur among these pods, ascending."""
        return sorted({self.pods[at].priority for at in members(pods)})

    def up_to(self, priority: int, pods: PodSet) -> PodSet:
        """Those of these pods that have at most this priority."""
        return mask_of(at for at in members(pods) if self.pods[at].priority <= priority)

    def uids(self, victims: PodSet) -> list[str]:
        """Most important first; those that are not known here last."""
        return [*(self.pods[at].uid for at in members(victims)), *self.unknown]

    def choice(self, victims: PodSet) -> Choice:
        """The answer."""
        return Choice(tuple(self.uids(victims)), (victims & self.violating).bit_count())


def _violating(pods: Iterable[Running], allowed: Mapping[str, int]) -> PodSet:
    """The pods whose eviction violates a budget if all before them are evicted too (filterPodsWithPDBViolation).

    Which they are does not depend on who is evicted in the end: the most important pods use a budget up, and one that
    comes later violates it even if it is the only victim. A budget that is not in `allowed` has nothing left.
    """
    left = dict(allowed)
    violating = 0
    for at, pod in enumerate(pods):
        for key in pod.budgets:
            left[key] = left.get(key, 0) - 1
        if any(left[key] < 0 for key in pod.budgets):
            violating |= 1 << at
    return violating
