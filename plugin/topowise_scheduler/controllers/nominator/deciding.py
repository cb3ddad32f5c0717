"""Decides which pod is nominated next and for which node, and which nominations are withdrawn or moved.

Pods are taken in the order of kube-scheduler, each with all earlier decisions booked. Three rules prevent harm. Pods
with requirements that are not checked here are left to kube-scheduler. A pod is moved at most twice and then left to
kube-scheduler, so no pod moves back and forth. The number of nominated pods is bounded, and nominations are withdrawn
while kube-scheduler makes no progress.

The nomination of a pod that kube-scheduler has tried may be kube-scheduler's own by now: it preempts on the node that
was nominated. kube-scheduler clears a nomination that did not help, but not in every case, so the rest is withdrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from topowise.bounded import Bounded
from topowise.runtime.log import kv
from topowise_scheduler.controllers.nominator.backoff import Key, NominationBackoff
from topowise_scheduler.controllers.nominator.board import Board, Cluster
from topowise_scheduler.controllers.nominator.lookahead import Lookahead
from topowise_scheduler.ledger.pods.nominations import Nomination
from topowise_scheduler.ledger.pods.pod_states import NOWHERE
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.device_affinity.outcomes import NO_TERMS
from topowise_scheduler.verdicts.policy_annotations import Demand

log = logging.getLogger(__name__)

# A burst: this many pods wait, and the next of them waits for this long.
_BURST_PODS: Final = 10
_BURST_WAIT_S: Final = 0.3
# The most pods that are nominated and not bound: more than kube-scheduler takes in the seconds for which a nomination
# may be right.
_MOST_AHEAD: Final = 1000
_MAX_MOVES: Final = 2
# Pods without a nomination that a call skips.
_MAX_SKIPPED: Final = 64
_MAX_BOARDS: Final = 64
# Bytes of the board keys, which tenants write; a board itself takes less than a megabyte.
_BOARD_KEY_BYTES: Final = 16 << 20
# Nodes that a new board evaluates in a call: some milliseconds.
_MAX_NODES: Final = 256
_MOVE_BYTES: Final = 4 << 20
# kube-scheduler starts evictions within this time, or has not chosen the node.
_PREEMPTION_S: Final = 15.0
_CHECK_S: Final = 1.0
# Time without progress of kube-scheduler.
_STALLED_S: Final = 60.0


class Write(NamedTuple):
    """A nomination to write to a pod, in the version of its record; `node` is "" for a withdrawal."""

    record: PodRecord
    node: str


class Decisions:
    """`needs_burst`: single pods are left to kube-scheduler. `ahead`: the most pods that are nominated and not bound.
    Every returned decision is booked. Not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        *,
        needs_burst: bool = True,
        ahead: int = _MOST_AHEAD,
    ) -> None:
        self._cluster = cluster
        self._ledger = cluster.ledger
        self._clock = clock
        self._needs_burst = needs_burst
        self._ahead = ahead
        self.backoff = NominationBackoff(clock)
        """Pod classes that are not nominated for a pause."""
        self._boards: Bounded[tuple[bytes, int, Demand, bytes], Board]
        self._boards = Bounded(_BOARD_KEY_BYTES, lambda key, _: len(key[-1]), _MAX_BOARDS)
        self._seen_changes = (0, 0)
        self._to_review: dict[str, None] = {}
        self._moves: Bounded[str, int] = Bounded(_MOVE_BYTES, lambda uid, _: len(uid))
        # Nominated pods that kube-scheduler has tried since, and when a victim was last seen to be ending for them.
        self._tried: dict[str, float] = {}
        self._checked_at = float("-inf")
        # Counts of pods that kube-scheduler has taken, and when they changed last.
        self._progress = (0, 0)
        self._progress_at = clock()
        self._is_stalled = False
        self._ended_count = 0
        self._lookahead = Lookahead(clock)

    def next(self) -> Write | None:
        """Returns the next nomination to write, None if there is nothing to do now."""
        self._count_results()
        self._note_changes()
        while self._to_review:
            uid = next(iter(self._to_review))
            del self._to_review[uid]
            if (write := self._review(uid)) is not None:
                return write
        self._look_for_progress()
        return self._next_withdrawal() or self._nominate_next()

    # Existing nominations

    def _note_changes(self) -> None:
        ledger, nodes = self._ledger, self._cluster.nodes
        changes = ledger.node_states.changes, nodes.changes
        if changes != self._seen_changes:
            for name in {
                *ledger.node_states.changed_since(self._seen_changes[0]),
                *nodes.changed_since(self._seen_changes[1]),
            }:
                self._to_review.update(dict.fromkeys(ledger.nominations.on(name)))
            self._seen_changes = changes
        self._to_review.update(dict.fromkeys(ledger.nominations.take_unreviewed()))

    def _review(self, uid: str) -> Write | None:
        nomination = self._ledger.nominations.of(uid)
        # kube-scheduler handles a pod with a state. An unobserved nomination is reviewed after its event.
        if nomination is None or nomination.unobserved or self._ledger.pods.of(uid).state is not None:
            return None
        if nomination.record.status.tried:
            self._ended_count += uid not in self._tried
            self._tried.setdefault(uid, self._clock())
            return None
        return None if self._holds(nomination) else self._move(nomination)

    def _holds(self, nomination: Nomination) -> bool:
        record = nomination.record
        if not self._ledger.keeps_nominated(record, nomination.node):
            return False
        node = self._cluster.nodes.get(nomination.node)
        if node is None or (
            record.constraints is not None and record.constraints.excludes(node, with_preferences=False)
        ):
            return False
        used = self._cluster.requested.on(nomination.node, record.priority)
        return all(amount <= node.allocatable.get(name, 0) for name, amount in used.items() if amount)

    def _move(self, nomination: Nomination) -> Write | None:
        """Moves a nomination to another node, or withdraws it without such a node or after too many moves."""
        record = nomination.record
        self._ledger.withdraw(record.uid)
        moves = (self._moves.get(record.uid) or 0) + 1
        self._moves.put(record.uid, moves)
        node = self._choose(record) if moves <= _MAX_MOVES else ""
        if not node:
            return self._withdrawn(record)
        self._ledger.nominate(record, node)
        if node == nomination.node:
            self._ledger.nominations.note_unchanged(record.uid)
            return None
        self._ledger.count("nomination_moved")
        return Write(record, node)

    def _withdrawn(self, record: PodRecord) -> Write:
        self._ledger.count("nomination_withdrawn")
        self._moves.put(record.uid, _MAX_MOVES + 1)
        return Write(record, "")

    def _next_withdrawal(self) -> Write | None:
        """Returns a nomination to withdraw: kube-scheduler tried the pod in vain, or makes no progress at all."""
        now = self._clock()
        if now - self._checked_at < _CHECK_S:
            return None
        nominations = self._ledger.nominations
        for uid, since in list(self._tried.items()):
            nomination = nominations.of(uid)
            if nomination is None or not nomination.record.status.tried:
                del self._tried[uid]
            elif self._is_being_vacated(nomination):
                self._tried[uid] = now
            elif now - since >= (
                0.0 if nomination.record.constraints and nomination.record.constraints.never_preempts else _PREEMPTION_S
            ):
                del self._tried[uid]
                self._ledger.withdraw(uid)
                return self._withdrawn(nomination.record)
        if self._is_stalled and (stale := nominations.stale(now - _STALLED_S)) is not None:
            self._ledger.withdraw(stale.uid)
            self._ledger.count("nomination_withdrawn")
            return Write(stale, "")
        self._checked_at = now
        return None

    def _is_being_vacated(self, nomination: Nomination) -> bool:
        """Returns whether a pod of lower priority is ending on the node, so that kube-scheduler may make room."""
        priority = nomination.record.priority
        return any(pod.status.leaving and pod.priority < priority for pod in self._ledger.pods_on(nomination.node))

    # New nominations

    def _nominate_next(self) -> Write | None:
        if self._is_stalled:
            return None
        for _ in range(_MAX_SKIPPED):
            record = self._due()
            if record is None:
                return None
            may_nominate = self._may_be_nominated(record)
            if may_nominate and not self._board(record).refresh(_MAX_NODES):
                return None
            self._ledger.queue.drop(record.uid, is_taken=False)
            node = self._choose(record) if may_nominate else ""
            if node:
                self._ledger.nominate(record, node)
                return Write(record, node)
        return None

    def _due(self) -> PodRecord | None:
        queue = self._ledger.queue
        if len(self._ledger.nominations) >= self._ahead:
            return None
        following = queue.next(after=self._lookahead.pods)
        if following is None:
            return None
        record, since = following
        is_burst = len(queue) >= _BURST_PODS and self._clock() - since >= _BURST_WAIT_S
        return record if is_burst or not self._needs_burst else None

    def _may_be_nominated(self, record: PodRecord) -> bool:
        constraints = record.constraints
        if constraints is None or record.requests is None or constraints.unsupported or record.demand(NO_TERMS).terms:
            return False
        # kube-scheduler does not score nodes for a nominated pod.
        if constraints.has_preferences:
            return False
        is_free = self._ledger.pods.of(record.uid) == NOWHERE and (self._moves.get(record.uid) or 0) <= _MAX_MOVES
        return is_free and not self.backoff.is_stopped(_class_of(record))

    def _choose(self, record: PodRecord) -> str:
        if record.constraints is None or record.requests is None:
            return ""
        board = self._board(record)
        board.refresh()
        return board.best()

    def _board(self, record: PodRecord) -> Board:
        constraints = record.constraints
        assert constraints is not None
        key = record.shape, record.priority, record.demands.policy, constraints.key
        return self._boards.once(key, lambda: Board(self._cluster, record, constraints))

    # Outcomes

    def _look_for_progress(self) -> None:
        """Updates whether kube-scheduler makes progress with nominated pods."""
        progress = self._ledger.queue.taken, self._ended_count
        if progress != self._progress or not (self._is_stalled or len(self._ledger.nominations)):
            self._progress, self._progress_at, self._is_stalled = progress, self._clock(), False
        elif self._clock() - self._progress_at >= _STALLED_S:
            self._is_stalled = True

    def _count_results(self) -> None:
        results = self._ledger.nominations.results
        while results:
            record, is_honoured = results.popleft()
            self._ended_count += 1
            self._moves.pop(record.uid)
            if is_honoured is None:
                self._lookahead.widen()
            elif self.backoff.count(_class_of(record), is_honoured=is_honoured):
                log.warning(
                    "Pods are not placed on their nominated nodes; pods of this class are not nominated for a while",
                    extra=kv(pod=f"{record.namespace}/{record.name}"),
                )


def _class_of(record: PodRecord) -> Key:
    return record.shape, record.constraints.key if record.constraints is not None else b""
