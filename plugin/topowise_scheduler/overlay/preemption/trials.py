"""Tries on the kubelet model whether a pod fits without certain pods."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from topowise_scheduler.kubelet import Admission, Kubelet
from topowise_scheduler.kubelet.masks import Mask, mask_of, members
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.overlay.preemption.roster import PodSet, Roster

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
