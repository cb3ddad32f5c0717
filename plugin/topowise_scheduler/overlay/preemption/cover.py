"""A least harmful set of pods without which the pod fits. There are too many sets to try all.

kube-scheduler evicts all candidates and reprieves pod after pod, the most important first (SelectVictimsOnNode). No
part of the result suffices, but the result is seldom minimal: on eight NUMA nodes it contains less important pods of
all of them, although only the pods of a single NUMA node are in the way. So the reprieve is repeated

1. for some sets of NUMA nodes, in an order that reprieves pods elsewhere first, then the pods on these NUMA nodes that
   free the least for their weight. It is skipped if the harm must exceed the harm of the best set so far;
2. in kube-scheduler's order, so that the result is never worse than kube-scheduler's result;
3. with an additional victim: it stays evicted, and the previous victims are reprieved where possible.

Every result was tried. If further evictions never hurt, which is almost always so, and the trials suffice, the highest
priority in the result is the lowest possible, and no part of the result suffices. That no set is less harmful is very
likely, not certain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from topowise_scheduler.kubelet import Admission, Kubelet
from topowise_scheduler.kubelet.masks import Mask, mask_of, members
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.overlay.preemption.roster import Harm, PodSet, Roster
from topowise_scheduler.overlay.preemption.shares import Shares

MAX_MASKS: Final = 16
MAX_EXCHANGE_TRIALS: Final = 40

Accepts: TypeAlias = Callable[[Collection[str]], bool]
"""Returns whether the pod could use the node without these pods (UIDs), for a reason that the kubelet does not know."""


class Trials:
    """At most `limit` admissions on forks of `node`, which does not change; each set is tried once.

    Every trial evicts the proposed pods and removes a booking of the pod itself. With `accepts`, a pod that the kubelet
    admits also has to be accepted.
    """

    def __init__(self, node: Kubelet, pod: PodView, roster: Roster, limit: int, accepts: Accepts | None = None) -> None:
        self.pod = pod
        self.accepts = accepts
        self.left = limit
        self._node = node
        self._roster = roster
        self._answers: dict[PodSet, bool] = {}
        self.base = node.without((pod.uid, *roster.uids(roster.proposed)))
        """The node without the proposed pods."""
        self._cleared: tuple[PodSet, Kubelet] = (roster.proposed, self.base)

    def clear(self, victims: PodSet) -> None:
        """Prepares trials of sets that contain these pods, so that they are not evicted again in each trial."""
        victims |= self._roster.proposed
        self._cleared = (victims, self._evicted(self.base, victims & ~self._roster.proposed))

    def fits(self, victims: PodSet) -> bool:
        """Whether the pod fits without these pods; False for an untried set once the limit is reached."""
        victims |= self._roster.proposed
        answer = self._answers.get(victims)
        if answer is None:
            if self.left <= 0:
                return False
            admitted = self.admission(victims).admitted
            answer = self._answers[victims] = admitted and self._is_accepted(victims)
        return answer

    def _is_accepted(self, victims: PodSet) -> bool:
        return self.accepts is None or self.accepts(self._roster.uids(victims))

    def admission(self, victims: PodSet) -> Admission:
        """The kubelet's admission without these pods and the proposed pods."""
        self.left -= 1
        gone, node = self._cleared
        if gone & ~(victims | self._roster.proposed):
            gone, node = self._roster.proposed, self.base
        return trial(self._evicted(node, victims & ~gone), self.pod).admission

    def span(self, victims: PodSet) -> Mask:
        """The NUMA nodes of the CPUs and memory that the pod would get; none once the limit is reached."""
        if self.left <= 0:
            return 0
        cpus = 0
        ids: set[int] = set()
        for placement in self.admission(victims).placements.values():
            cpus |= placement.cpus or 0
            for block in placement.memory:
                ids.update(block.numa)
        node = self._node
        return mask_of(
            position
            for position, node_id in enumerate(node.node_ids)
            if node_id in ids or node.topology.numa_cpus[position] & cpus
        )

    def holds(self, victims: PodSet) -> bool:
        """Whether the pod fits on the node, for the order in which victims end and its reverse.

        The memory manager releases memory from the lowest NUMA node of a group on (MemoryTables.give), so the order of
        victims can matter. These two trials do not count.
        """
        uids = self._roster.uids(victims)
        for order in (uids, uids[::-1])[: max(1, len(uids))]:
            if not trial(self._node.without((self.pod.uid, *order)), self.pod).admission.admitted:
                return False
        return self._is_accepted(victims)

    def _evicted(self, node: Kubelet, victims: PodSet) -> Kubelet:
        return node.without([self._roster.pods[at].uid for at in members(victims)])


class Cover:
    """Searches a part of `pool` that suffices if `base` is evicted too; the pod must fit without both.

    The harm of a part includes the pods `counted`, which are victims in any case.
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
        """The least harmful part of those tried; the whole pool if no trials are left."""
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
        """kube-scheduler's result: it reprieves violating pods first, then the rest, each by importance."""
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
        """The longest tail of `order` that is not worse than the best set, apart from start times."""
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
        """Reprieves as many pods of `order` as possible, in this order; True if the rest is the best set so far.

        The number of pods reprieved at once (`width`) doubles if the pod fits and halves if not, so a victim among n
        pods takes about log2(n) trials. The search stops when the certain victims are as harmful as the best set.
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
        """The sets of NUMA nodes to free: at most as many NUMA nodes as the pod takes if the whole pool is evicted."""
        size = max(
            1,
            self._trials.span(self._base | pool).bit_count(),
            # Containers that are aligned separately can use different NUMA nodes.
            min(2, len(self._trials.pod.containers)),
        )
        return self._shares.roomiest(size, MAX_MASKS)

    def _exchange(self) -> None:
        """Adds a victim if that reprieves several victims, repeatedly while it helps and trials are left."""
        until = self._trials.left - MAX_EXCHANGE_TRIALS
        everywhere = self._shares.everywhere
        helps = True
        while helps:
            spared = sorted(members(self._pool & ~self.best), key=lambda at: (-self._shares.gain(at, everywhere), -at))
            helps = False
            for at in spared:
                if self._trials.left <= max(0, until):
                    return
                order = list(members(self.best))
                if self._harm(1 << at) < self._least and self._reprieve(self.best | 1 << at, order, len(order)):
                    helps = True
                    break


def narrowed(trials: Trials, roster: Roster, base: PodSet, pool: PodSet) -> PodSet:
    """The pods of `pool` up to the lowest priority that suffices if `base` is evicted too; the whole pool suffices."""
    levels = roster.priorities(pool)
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if trials.fits(base | roster.up_to(levels[middle], pool)):
            high = middle
        else:
            low = middle + 1
    return roster.up_to(levels[low], pool) if levels else 0
