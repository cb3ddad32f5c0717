"""A least harmful set of pods without which the pod fits, among more than can be tried.

kube-scheduler evicts everything and reprieves one pod after the other, the most important first. What is left cannot
be made smaller, but it is seldom the smallest: on a node of eight NUMA nodes the less important pods of all of them
are kept last, though only those of one are in the way. So the same reprieve is done

1. for some sets of NUMA nodes, in an order that reprieves the pods elsewhere first, and among those on them the ones
   that free least for their weight; it is not begun if more harm would have to be done than by the best set so far;
2. in kube-scheduler's order, so that the result is never worse than its own;
3. with one more pod in exchange: it is evicted for good, and those that were to be evicted are reprieved if they can.

Every set that comes out was tried. If evicting more never hurts, as is almost always so, and there are trials enough,
the highest priority in it is the lowest possible and no part of it suffices; that it is the least harmful of all is
very likely, not certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topowise_scheduler.kubelet.masks import Mask, mask_of, members
from topowise_scheduler.preemption.roster import Harm, PodSet, Roster
from topowise_scheduler.preemption.shares import Shares
from topowise_scheduler.preemption.trials import Trials

MAX_MASKS: Final = 16
MAX_EXCHANGE_TRIALS: Final = 40


class Cover:
    """Looks for a part of `pool` that suffices if `base` is evicted too; the pod must fit without both.

    `counted` is what the harm of a part includes besides: a part is compared as if these were victims too.
    """

    def __init__(
        self, trials: Trials, roster: Roster, shares: Shares, *, base: PodSet, pool: PodSet, counted: PodSet
    ) -> None:
        self._trials = trials
        self._roster = roster
        self._shares = shares
        self._base = base
        self._counted = counted
        self._pool = pool
        self.best = pool
        self._least = self._harm(pool)

    def search(self) -> PodSet:
        """The least harmful part that was found; the whole pool if there were no trials left."""
        self._trials.clear(self._base)
        if self._fits(0):
            return 0
        narrow = narrowed(self._trials, self._roster, self._base, self._pool)
        self._accept(narrow)
        self._concentrate(narrow)
        if narrow != self._pool and self._pool & self._roster.violating:
            # Fewer violations come before a lower priority.
            self._concentrate(self._pool)
        self._exchange()
        return self.best

    def reprieved(self) -> PodSet:
        """What kube-scheduler would find: violating pods reprieved first, then the others, the important ones first."""
        violating = self._roster.violating
        order = [*members(self._pool & violating), *members(self._pool & ~violating)]
        self._reprieve(self._pool, order)
        return self.best

    def _concentrate(self, pool: PodSet) -> None:
        for mask in self._masks(pool):
            order = sorted(
                members(pool), key=lambda at: (bool(self._shares.spread[at] & mask), self._shares.gain(at, mask), at)
            )
            affordable = self._affordable(order)
            if not self._fits(affordable):
                continue
            order = [at for at in order if affordable >> at & 1]
            elsewhere = len(order) - self._shares.holders(mask, affordable).bit_count()
            self._reprieve(affordable, order, elsewhere)
        self._reprieve(pool, list(members(pool)))

    def _affordable(self, order: Sequence[int]) -> PodSet:
        """As many of the last of `order` as are no worse than the best set, if it were not for their starts."""
        part = 0
        for at in reversed(order):
            if self._harm(part | 1 << at)[:-1] > self._least[:-1]:
                break
            part |= 1 << at
        return part

    def _fits(self, part: PodSet) -> bool:
        return self._trials.fits(self._base | part)

    def _harm(self, part: PodSet) -> Harm:
        return self._roster.harm(self._counted | part)

    def _accept(self, part: PodSet) -> bool:
        harm = self._harm(part)
        if harm >= self._least:
            return False
        self.best, self._least = part, harm
        return True

    def _reprieve(self, part: PodSet, order: Sequence[int], width: int = 1) -> bool:
        """Keep as many of `order` as possible, the first ones first; True if what is left is the best so far.

        It gallops: `width` pods are reprieved at once, more if that fits, fewer if not. A few victims among n pods
        take about log2(n) trials each. As soon as the pods that must go are as harmful as the best set, it stops.
        """
        evicted = part & ~mask_of(order)
        at = 0
        width = max(1, width)
        while at < len(order):
            if self._harm(evicted) >= self._least:
                return False
            batch = mask_of(order[at : at + width])
            if self._fits(part & ~batch):
                part &= ~batch
                at += width
                width *= 2
            elif width > 1:
                width = max(1, min(width, len(order) - at) // 2)
            else:
                evicted |= batch
                at += 1
        return self._accept(part)

    def _masks(self, pool: PodSet) -> list[Mask]:
        """The sets of NUMA nodes to concentrate on: as many as the pod takes once all are evicted, or fewer."""
        size = max(
            1,
            self._trials.span(self._base | pool).bit_count(),
            # Containers that are aligned one by one may find room on different NUMA nodes.
            min(2, len(self._trials.pod.containers)),
        )
        return self._shares.roomiest(size, MAX_MASKS)

    def _exchange(self) -> None:
        """Evict one more pod if that spares others, as long as it helps and there are trials left for it."""
        until = self._trials.left - MAX_EXCHANGE_TRIALS
        everywhere = self._shares.everywhere
        helps = True
        while helps:
            others = sorted(members(self._pool & ~self.best), key=lambda at: (-self._shares.gain(at, everywhere), -at))
            helps = False
            for at in others:
                if self._trials.left <= max(0, until):
                    return
                order = list(members(self.best))
                if self._harm(1 << at) < self._least and self._reprieve(self.best | 1 << at, order, len(order)):
                    helps = True
                    break


def narrowed(trials: Trials, roster: Roster, base: PodSet, pool: PodSet) -> PodSet:
    """The part of `pool` up to the lowest priority that suffices if `base` is evicted too, as all of it does."""
    levels = roster.priorities(pool)
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if trials.fits(base | roster.up_to(levels[middle], pool)):
            high = middle
        else:
            low = middle + 1
    return roster.up_to(levels[low], pool) if levels else 0
