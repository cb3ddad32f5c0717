"""The pods of a node that may be evicted, in kube-scheduler's order, and the harm of evicting a set of them.

A set of pods is an integer: bit i is the pod at position i, and the most important pod has position 0. So the lowest
bit of a set is its most important pod, and the order of the victims needs no sorting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from topowise_scheduler.kubelet.masks import mask_of, members

PodSet = int

# kube-scheduler adds this to every priority, an int32, so that no sum of priorities is negative.
_PRIORITY_SHIFT: Final = 1 << 31


class Running(msgspec.Struct, frozen=True, gc=False):
    """A pod that runs on the node.

    `started` is status.startTime in the API server's format (RFC 3339, UTC, whole seconds), or the creation time; ""
    counts as now. `budgets` are the keys of the PodDisruptionBudgets that select the pod (Budgets.matching).
    """

    uid: str
    priority: int
    started: str = ""
    budgets: tuple[str, ...] = ()


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The uids to evict, most important first, and the number of victims that violate a budget (NumPDBViolations)."""

    victims: tuple[str, ...]
    violations: int


class Harm(NamedTuple):
    """The criteria of pickOneNodeForPreemption in its order; less is better. Harm grows with every pod in the set.

    `seniority` is the rank of the most important victim's start time: 0 for the latest start.
    """

    violations: int
    highest_priority: int
    priorities: int
    victims: int
    seniority: int


NO_HARM: Final = Harm(0, -_PRIORITY_SHIFT, 0, 0, 0)


class Roster:
    """The pods of a lower priority than the preemptor, and proposed pods of any priority, without the preemptor.

    `proposed` and `violating` are sets of these pods. `unknown` are proposed uids without a running pod: they are
    victims of unknown harm.
    """

    def __init__(
        self, uid: str, priority: int, running: Iterable[Running], proposed: Collection[str], allowed: Mapping[str, int]
    ) -> None:
        known = {pod.uid: pod for pod in running if pod.uid != uid and (pod.priority < priority or pod.uid in proposed)}
        # MoreImportantPod (pkg/scheduler/util/utils.go): priority, then the earlier start. Ties are ordered by uid, so
        # that the answer does not depend on the order of the input.
        pods = sorted(known.values(), key=lambda pod: (-pod.priority, not pod.started, pod.started, pod.uid))
        self.pods: tuple[Running, ...] = tuple(pods)
        self.all_pods: PodSet = (1 << len(pods)) - 1
        self.proposed: PodSet = mask_of(at for at, pod in enumerate(pods) if pod.uid in proposed)
        self.violating: PodSet = _violating(pods, allowed)
        self.unknown: tuple[str, ...] = tuple(sorted(set(proposed) - known.keys() - {uid}))
        self.weights: tuple[int, ...] = tuple([pod.priority + _PRIORITY_SHIFT for pod in pods])
        starts = sorted({(not pod.started, pod.started) for pod in pods}, reverse=True)
        ranks = {start: rank for rank, start in enumerate(starts)}
        self._seniority = [ranks[not pod.started, pod.started] for pod in pods]

    def harm(self, victims: PodSet) -> Harm:
        """The harm of evicting these pods."""
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
        """The priorities of these pods, ascending."""
        return sorted({self.pods[at].priority for at in members(pods)})

    def up_to(self, priority: int, pods: PodSet) -> PodSet:
        """The pods of this set with at most this priority."""
        return mask_of(at for at in members(pods) if self.pods[at].priority <= priority)

    def uids(self, victims: PodSet) -> list[str]:
        """The uids of the victims, most important first, then `unknown`."""
        return [*(self.pods[at].uid for at in members(victims)), *self.unknown]

    def choice(self, victims: PodSet) -> Choice:
        """The answer."""
        return Choice(tuple(self.uids(victims)), (victims & self.violating).bit_count())


def _violating(pods: Iterable[Running], allowed: Mapping[str, int]) -> PodSet:
    """The pods whose eviction violates a budget if all previous pods are evicted too (filterPodsWithPDBViolation).

    The result does not depend on the victims: the most important pods use up a budget, and a later pod violates it even
    as the only victim. A budget that is not in `allowed` has no evictions left.
    """
    left = dict(allowed)
    violating = 0
    for at, pod in enumerate(pods):
        for key in pod.budgets:
            left[key] = left.get(key, 0) - 1
        if any(left[key] < 0 for key in pod.budgets):
            violating |= 1 << at
    return violating
