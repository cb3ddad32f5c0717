"""The sets of pods without which a pod fits: where to reprieve from, and budgets before everything else.

First the fewest pods that violate a budget, all others being evicted; then, for these few, the least harmful of the
others. That is the order in which pickOneNodeForPreemption compares. One case is beyond this: where more evictions do
harm, fewer could do. Then some smaller sets are tried to start from, not all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from typing import Final

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import mask_of, members
from topowise_scheduler.preemption.cover import Cover, narrowed
from topowise_scheduler.preemption.roster import PodSet, Roster
from topowise_scheduler.preemption.shares import Shares
from topowise_scheduler.preemption.trials import Trials

MAX_GROUNDS: Final = 32
MAX_SWAP_TRIALS: Final = 30
MAX_ALTERNATIVES: Final = 3


class Search:
    """Looks for victims besides the proposed ones on the node of these trials."""

    def __init__(self, node: Kubelet, trials: Trials, roster: Roster) -> None:
        self._trials = trials
        self._roster = roster
        self._shares = Shares(node, trials.base, trials.pod, roster)

    def sets(self) -> set[PodSet]:
        """Sets without which, the proposed pods gone too, the pod fits; what kube-scheduler would find is no better."""
        found = set()
        for ground in self._grounds():
            violating = ground & self._roster.violating
            rest = ground & ~violating
            choices = [0]
            if not self._trials.fits(rest):
                found.add(self._cover(0, ground).reprieved())
                choices = self._violators(violating, rest)
            found.update(one | self._cover(one, rest, one).search() for one in choices)
        return found

    def _grounds(self) -> Iterator[PodSet]:
        """Sets to reprieve from: everybody or, if even that is not enough, some of those that are."""
        everyone = self._roster.everyone & ~self._roster.proposed
        if self._trials.fits(everyone):
            yield everyone
        elif everyone and self._may_be_too_many(everyone):
            for ground in islice(dict.fromkeys(self._smaller(everyone)), MAX_GROUNDS):
                if self._trials.fits(ground):
                    yield ground

    def _may_be_too_many(self, everyone: PodSet) -> bool:
        """Whether fewer evictions can do what all cannot.

        They can if containers get in each other's way: the first one takes the room another one needs. Node
        allocatable (stage "predicate") and a pod of one container only gain.
        """
        return len(self._trials.pod.containers) > 1 and self._trials.admission(everyone).stage == "topology"

    def _smaller(self, everyone: PodSet) -> Iterator[PodSet]:
        """All but one or two, those up to a priority, those on some NUMA nodes."""
        for priority in self._roster.priorities(everyone):
            yield self._roster.up_to(priority, everyone)
        for position in members(self._shares.everywhere):
            yield self._shares.holders(1 << position, everyone)
        for kept in (1, 2):
            for pods in combinations(members(everyone), kept):
                yield everyone & ~mask_of(pods)

    def _violators(self, violating: PodSet, rest: PodSet) -> list[PodSet]:
        """The fewest pods that violate a budget without which the pod fits, if `rest` is evicted too: some choices."""
        found = self._cover(rest, violating).search()
        if self._trials.fits(found):
            # Nobody else has to go, so no other choice can be less harmful.
            return [found]
        # Which of equally many go decides who else has to.
        choices = [found, *self._swaps(found, violating, rest)]
        highest = {
            one: self._roster.harm(one | narrowed(self._trials, self._roster, one, rest)).highest_priority
            for one in choices
        }
        choices = [one for one in choices if highest[one] == min(highest.values())]
        return choices[:MAX_ALTERNATIVES]

    def _swaps(self, found: PodSet, violating: PodSet, rest: PodSet) -> Iterator[PodSet]:
        until = self._trials.left - MAX_SWAP_TRIALS
        for kept in members(found):
            for evicted in reversed(list(members(violating & ~found))):
                if self._trials.left <= max(0, until):
                    return
                swapped = found & ~(1 << kept) | 1 << evicted
                if self._trials.fits(rest | swapped):
                    yield swapped

    def _cover(self, base: PodSet, pool: PodSet, victims: PodSet = 0) -> Cover:
        counted = self._roster.proposed | victims
        return Cover(self._trials, self._roster, self._shares, base=base, pool=pool, counted=counted)
