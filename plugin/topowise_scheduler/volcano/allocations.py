"""What Volcano gives to nodes in a session and takes back, as bookings in the ledger.

A session decides many tasks before any is bound, keeps the tasks of a gang only if there are enough of them, and evicts
on trial. Its plug-ins hear of each step by two events (pkg/scheduler/framework/statement.go, read at ed72c7c):

| step                           | event           | status of the task |
|--------------------------------|-----------------|--------------------|
| Allocate                       | AllocateFunc    | Allocated          |
| Pipeline: others have to leave | AllocateFunc    | Pipelined          |
| either of them undone          | DeallocateFunc  | Pending            |
| Evict                          | DeallocateFunc  | Releasing          |
| Evict undone                   | AllocateFunc    | Running            |

After an eviction the preempt action asks the predicate again whether the task fits now, and evicts the next victim if
it does not. So a pod that is to be evicted is left out of account for Volcano until it is gone, in later sessions too,
or each of them would evict one more. Its room is not given away for that: only a pipelined task may count on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.kubelet import Kubelet

# Longer than pods usually take to end; of one that is still there then, the eviction has come to nothing.
LEAVING_S: Final = 300.0


class Allocations:
    """`clock` gives seconds, monotonic; `keep_s` is for how long an allocation is kept that nobody binds."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float], keep_s: float) -> None:
        self._ledger = ledger
        self._clock = clock
        self._keep_s = keep_s
        self._leaving: dict[str, tuple[str, float]] = {}

    def allocate(self, record: PodRecord, node: str, *, is_pipelined: bool) -> str:
        """Book a pod. Why its kubelet would refuse it, "" if it is booked, or back after an eviction on trial."""
        if self._leaving.pop(record.uid, None) is not None:
            return ""
        if record.needs is None:
            return f"pod cannot be placed: {record.problem}"
        if not is_pipelined and self.fits_later(record, node) is False:
            return f"room on {node} is kept for a pod that others have to leave for"
        leaving = self.leaving(node) if is_pipelined else set()
        refusal = self._ledger.reservations.put_for_other_binder(record, record.needs, node, self._keep_s, leaving)
        return f"kubelet of {node} would refuse the pod: {refusal}" if refusal else ""

    def give_back(self, uid: str) -> None:
        """The allocation of a pod was undone."""
        self._ledger.reservations.release(uid)

    def evict(self, uid: str, node: str) -> None:
        """A pod that is on a node is to be evicted."""
        node_state = self._ledger.node_states.of(node)
        if node_state is not None and node_state.history.entry(uid) is not None:
            self._leaving[uid] = node, self._clock() + LEAVING_S

    def leaving(self, node: str) -> set[str]:
        """The pods that are to be evicted from a node and still there."""
        if not self._leaving:
            return set()
        now, node_state = self._clock(), self._ledger.node_states.of(node)
        for uid, (where, until) in list(self._leaving.items()):
            if until <= now or (where == node and (node_state is None or node_state.history.entry(uid) is None)):
                del self._leaving[uid]
        return {uid for uid, (where, _) in self._leaving.items() if where == node}

    def fits_in_any_order(self, record: PodRecord, node: str) -> bool:
        """Whether those on their way to the node would all find room beside the pod, however their binds overtake each
        other: Volcano binds each in a goroutine of its own."""
        return self._ledger.gates.fits_in_any_order(record, node)

    def states(self, record: PodRecord, node: str, gone: Collection[str] = ()) -> Iterator[Kubelet]:
        """What the node may be for a pod once those have left that are to be evicted, and these
        (Ledger.states_without)."""
        return self._ledger.gates.capacity.states(record, node, {*self.leaving(node), *gone})

    def are_near(self, record: PodRecord, node: str, gone: Collection[str] = ()) -> bool:
        """Whether the devices that are free then would be as near each other as the pod requires."""
        if not record.wishes:
            return True
        return not self._ledger.gates.affinity.refusal(record, node, {*self.leaving(node), *gone})

    def fits_later(self, record: PodRecord, node: str) -> bool | None:
        """Whether the pod fits once those have left that are to be evicted, and those that wait for it have come.

        None if nobody is to be evicted.
        """
        if not self.leaving(node):
            return None
        return not self._ledger.gates.all(record, node, self.leaving(node))
