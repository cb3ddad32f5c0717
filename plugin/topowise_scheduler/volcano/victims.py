"""Whose eviction helps a pod: the kubelet's view of Volcano's preempt and reclaim actions.

Volcano asks every plug-in about all candidates of one node and works with those that all plug-ins of a tier name: an
abstention is passed over, no names at all (rejected or not) end the tier without victims, and the next tier is asked
only then; the first tier with a result decides (Session.Preemptable in pkg/scheduler/framework/session_plugins.go, read
at ed72c7c). So this plug-in only has a say in the tier that decides, that of `gang` in the usual configuration.

Of the victims the preempt action evicts one after the other until the task fits, for which it asks the predicate; the
reclaim action until the sums suffice. So a set that suffices is named, the least harmful one, and not everybody whose
eviction might be of use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topowise_scheduler import preemption
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.node.possible_placements import holds_anything
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.preemption import Budgets
from topowise_scheduler.volcano.allocations import Allocations
from topowise_scheduler.volcano.wire import Vote

# Who may be evicted for whom is Volcano's business: by queues and jobs, and not by the priorities of pods alone.
_ABOVE_ALL: Final = 1 << 31


class Victims:
    """Chooses among the pods that Volcano names."""

    def __init__(self, ledger: Ledger, allocations: Allocations, budgets: Budgets) -> None:
        self._ledger = ledger
        self._allocations = allocations
        self._budgets = budgets

    def choose(self, record: PodRecord, candidates: Mapping[str, Iterable[str]]) -> tuple[Vote, set[str]]:
        """The vote on candidates, uids by node, and the uids of those to evict.

        Abstains if on no node anything is known against the pod, or evictions are not needed for its alignment.
        Candidates on such nodes are all named if there are others; Volcano asks about one node at a time.
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
        states = self._allocations.states(record, node)
        state = next(states, None)
        if state is None or record.needs is None or not holds_anything(state, record.view(state)):
            return Vote.ABSTAIN, set()
        pods = [pod for pod in self._ledger.pods_on(node) if pod.uid in offered]
        choice = preemption.choose_for_all(state, states, record.view, _ABOVE_ALL, pods, (), self._budgets)
        if choice is None or not self._allocations.are_near(record, node, choice.victims):
            return Vote.REJECT, set()
        return (Vote.PERMIT, set(choice.victims)) if choice.victims else (Vote.ABSTAIN, set())
