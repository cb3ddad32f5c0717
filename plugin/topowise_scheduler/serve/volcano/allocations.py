"""Books in the ledger what a Volcano session allocates and deallocates, and chooses its victims.

A session decides many tasks before any is bound, keeps the tasks of a gang only if enough of them fit, and evicts
tentatively. Plug-ins get two events for these steps (pkg/scheduler/framework/statement.go, read at ed72c7c):

| step                           | event           | status of the task |
|--------------------------------|-----------------|--------------------|
| Allocate                       | AllocateFunc    | Allocated          |
| Pipeline: victims end first    | AllocateFunc    | Pipelined          |
| Allocate or Pipeline undone    | DeallocateFunc  | Pending            |
| Evict                          | DeallocateFunc  | Releasing          |
| Evict undone                   | AllocateFunc    | Running            |

After an eviction the preempt action asks the predicate again whether the task fits, and evicts the next victim if it
does not. So a victim does not count in answers to Volcano until it is gone, in later sessions too: otherwise each
session would evict another pod. But only a pipelined task may be booked on the resources of a victim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from topowise_scheduler.explain.refusal_texts import at_bind
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.pod_parts import holds_anything
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.reservations import DEFAULT_S
from topowise_scheduler.overlay import preemption
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.serve.volcano.wire import Vote

# Longer than pods usually take to end. A victim that still exists then counts again.
LEAVING_S: Final = 300.0
# Volcano decides which pods may preempt which: by queues and jobs, not by the priorities of pods alone.
_ABOVE_ALL: Final = 1 << 31


class Allocations:
    """`clock` gives seconds, monotonic; an allocation without a bind expires as reservations do."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._leaving: dict[str, tuple[str, float]] = {}

    def allocate(self, record: PodRecord, node: str, *, is_pipelined: bool) -> str:
        """Books a pod, or reverts its tentative eviction. Returns why its kubelet would refuse it, "" if booked."""
        if self._leaving.pop(record.uid, None) is not None:
            return ""
        if record.needs is None:
            return f"pod cannot be placed: {record.problem}"
        if not is_pipelined and self.fits_later(record, node) is False:
            return f"{node} reserves its free resources for a pipelined pod, whose victims are still ending"
        leaving = self.leaving(node) if is_pipelined else set()
        refusal = self._ledger.reservations.put_for_other_binder(record, record.needs, node, DEFAULT_S, leaving)
        if refusal is None:
            return ""
        return f"kubelet of {node} would refuse the pod: {at_bind(refusal, self._ledger, record.uid, node)}"

    def give_back(self, uid: str) -> None:
        """Ends the allocation of a pod."""
        self._ledger.reservations.release(uid)

    def evict(self, uid: str, node: str) -> None:
        """Records that a pod on a node is to be evicted."""
        node_state = self._ledger.node_states.of(node)
        if node_state is not None and node_state.history.entry(uid) is not None:
            self._leaving[uid] = node, self._clock() + LEAVING_S

    def leaving(self, node: str) -> set[str]:
        """Returns the pods on a node that are to be evicted and still exist."""
        if not self._leaving:
            return set()
        now, node_state = self._clock(), self._ledger.node_states.of(node)
        for uid, (leaving_node, until) in list(self._leaving.items()):
            if until <= now or (leaving_node == node and (node_state is None or node_state.history.entry(uid) is None)):
                del self._leaving[uid]
        return {uid for uid, (leaving_node, _) in self._leaving.items() if leaving_node == node}

    def fits_later(self, record: PodRecord, node: str) -> bool | None:
        """Returns whether the pod fits after the victims have left and the pods that wait for them have come.

        None if the node has no victims.
        """
        if not self.leaving(node):
            return None
        return not self._ledger.gates.all(record, node, self.leaving(node))


class Victims:
    """Chooses victims whose eviction helps a pod: the kubelet's view of Volcano's preempt and reclaim actions.

    Volcano asks every plug-in about all candidates of a node and uses the victims that all plug-ins of a tier name. An
    abstention is skipped. A result without victims (rejected or not) ends the tier, and only then the next tier is
    asked; the first tier with victims decides (Session.Preemptable in pkg/scheduler/framework/session_plugins.go, read
    at ed72c7c). So this plug-in matters only in the tier that decides, which is the tier of `gang` in the usual
    configuration.

    The preempt action evicts victims in turn until the task fits, which it asks the predicate; the reclaim action
    evicts until the sums suffice. So this plug-in names a sufficient set with the least harm, not every pod that could
    help.

    Chooses among the pods that Volcano names.
    """

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
