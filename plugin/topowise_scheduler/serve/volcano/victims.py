"""Chooses victims whose eviction helps a pod: the kubelet's view of Volcano's preempt and reclaim actions.

Volcano asks every plug-in about all candidates of a node and uses the victims that all plug-ins of a tier name. An
abstention is skipped. A result without victims (rejected or not) ends the tier, and only then the next tier is asked;
the first tier with victims decides (Session.Preemptable in pkg/scheduler/framework/session_plugins.go, read at
ed72c7c). So this plug-in matters only in the tier that decides, which is the tier of `gang` in the usual configuration.

The preempt action evicts victims in turn until the task fits, which it asks the predicate; the reclaim action evicts
until the sums suffice. So this plug-in names a sufficient set with the least harm, not every pod that could help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.node.pod_parts import holds_anything
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay import preemption
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.serve.volcano.allocations import Allocations
from topowise_scheduler.serve.volcano.wire import Vote

# Volcano decides which pods may preempt which: by queues and jobs, not by the priorities of pods alone.
_ABOVE_ALL: Final = 1 << 31


class Victims:
    """Chooses among the pods that Volcano names."""

    def __init__(self, cluster: Trial, allocations: Allocations, budgets: Budgets) -> None:
        self._answers, self._ledger = cluster.answers, cluster.ledger
        self._allocations = allocations
        self._budgets = budgets

    def choose(self, record: PodRecord, candidates: Mapping[str, Iterable[str]]) -> tuple[Vote, set[str]]:
        """Returns the vote on candidates, given as UIDs by node, and the UIDs of the victims.

        Abstains if nothing is known against the pod on any node, or if its alignment needs no eviction. All candidates
        of such nodes are named if other nodes have victims; Volcano asks about a single node at a time.
        """
        votes = set()
        chosen: set[str] = set()
        for node, uids in candidates.items():
            offered = set(uids)
            vote, victims = self._on(record, node, offered)
            votes.add(vote)
            chosen |= offered if vote is Vote.ABSTAIN else victims
        if Vote.PERMIT in votes:
            return Vote.PERMIT, chosen
        return (Vote.REJECT, set()) if Vote.REJECT in votes else (Vote.ABSTAIN, set())

    def _on(self, record: PodRecord, node: str, offered: set[str]) -> tuple[Vote, set[str]]:
        leaving = self._allocations.leaving(node)
        state = next(self._ledger.gates.capacity.states(record, node, leaving), None)
        if state is None or record.needs is None or not holds_anything(state, record.view(state)):
            return Vote.ABSTAIN, set()
        pods = [pod for pod in self._ledger.pods_on(node) if pod.uid in offered]
        choice = preemption.choose_on(
            self._answers, record, node, state, pods, self._budgets, leaving=leaving, priority=_ABOVE_ALL
        )
        if choice is None:
            return Vote.REJECT, set()
        return (Vote.PERMIT, set(choice.victims)) if choice.victims else (Vote.ABSTAIN, set())
