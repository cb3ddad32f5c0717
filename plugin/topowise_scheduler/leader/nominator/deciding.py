"""Which pod is nominated next, and for which node; which nominations no longer hold.

Pods are taken in the order in which kube-scheduler will take them, each with everything booked that was decided
before it. Three things keep this from doing harm. What kube-scheduler looks at and we do not is left to it (asks.py).
A pod is moved at most twice and then left to kube-scheduler, so that nothing goes back and forth. And nobody is
nominated further ahead than kube-scheduler comes: when it does not come at all, the nominations are taken back.

A nomination of a pod that kube-scheduler has tried since may be its own by now: it preempts on the node that we
named. It clears one that did not help, but not in every case, so what is left of ours is withdrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from topowise.bounded import Bounded
from topowise.runtime.log import kv
from topowise_scheduler.cluster.pods.nominations import Nomination
from topowise_scheduler.cluster.pods.pod_states import NOWHERE
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.leader.nominator.board import Board, Cluster
from topowise_scheduler.leader.nominator.lead import Lead
from topowise_scheduler.leader.nominator.shapes import Honoured, Key
from topowise_scheduler.policy_annotations import Demand

log = logging.getLogger(__name__)

When = Literal["burst", "always"]

# In a burst: so many pods wait, and the next one has for so long.
_FEWEST: Final = 10
_WAITED_S: Final = 0.3
_MAX_MOVES: Final = 2
# Pods that are left alone, in one go.
_MAX_SKIPPED: Final = 64
_MAX_BOARDS: Final = 64
# Of what tells boards apart, which tenants write; a board itself takes less than a megabyte.
_BOARD_KEY_BYTES: Final = 16 << 20
# Nodes that a new board looks at in one go: some milliseconds.
_MOST_AT_ONCE: Final = 256
_MOVE_BYTES: Final = 4 << 20
# kube-scheduler evicts others within it, or has not chosen this node.
_TRIED_S: Final = 15.0
_CHECK_S: Final = 1.0
# Without a sign of life of kube-scheduler.
_STALLED_S: Final = 60.0


class Write(NamedTuple):
    """To be written to a pod, in the version of its record: nominated for a node, or for none any more ("")."""

    record: PodRecord
    node: str


class Decisions:
    """`when` and `ahead` as in the configuration. Every decision is booked before it is returned. Not thread-safe."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float], *, when: When, ahead: int) -> None:
        self._cluster = cluster
        self._ledger = cluster.ledger
        self._clock = clock
        self._when = when
        self._ahead = ahead
        self.honoured = Honoured(clock)
        """By kind of pod."""
        self._boards: Bounded[tuple[bytes, int, Demand, bytes], Board]
        self._boards = Bounded(_BOARD_KEY_BYTES, lambda key, _: len(key[-1]), _MAX_BOARDS)
        self._seen = (0, 0)
        self._doubtful: dict[str, None] = {}
        self._moves: Bounded[str, int] = Bounded(_MOVE_BYTES, lambda uid, _: len(uid))
        # Nominated by us and tried by kube-scheduler since: when that was seen, or when somebody was leaving for it.
        self._tried: dict[str, float] = {}
        self._checked_at = float("-inf")
        # How far kube-scheduler has come, and when that was new.
        self._progress = (0, 0)
        self._progress_at = clock()
        self._is_stalled = False
        self._ended = 0
        self._lead = Lead(clock)

    def next(self) -> Write | None:
        """What to write next, None if there is nothing to do now."""
        self._count_ended()
        self._note_changes()
        while self._doubtful:
            uid = next(iter(self._doubtful))
            del self._doubtful[uid]
            if (write := self._review(uid)) is not None:
                return write
        self._look_for_progress()
        return self._left_over() or self._nominate_next()

    # Nominations that there are

    def _note_changes(self) -> None:
        ledger, nodes = self._ledger, self._cluster.nodes
        changes = ledger.node_states.changes, nodes.changes
        if changes != self._seen:
            for name in {*ledger.node_states.changed_since(self._seen[0]), *nodes.changed_since(self._seen[1])}:
                self._doubtful.update(dict.fromkeys(ledger.nominations.on(name)))
            self._seen = changes
        self._doubtful.update(dict.fromkeys(ledger.nominations.take_unreviewed()))

    def _review(self, uid: str) -> Write | None:
        mine = self._ledger.nominations.of(uid)
        # One that is on its way to its node is kube-scheduler's; one that is not written yet comes again when it is.
        if mine is None or mine.unseen or self._ledger.pods.of(uid).state is not None:
            return None
        if mine.record.tried:
            self._ended += uid not in self._tried
            self._tried.setdefault(uid, self._clock())
            return None
        return None if self._holds(mine) else self._move(mine)

    def _holds(self, mine: Nomination) -> bool:
        record = mine.record
        if not self._ledger.keeps_nominated(record, mine.node):
            return False
        node = self._cluster.nodes.get(mine.node)
        if node is None or (record.asks is not None and record.asks.keeps_off(node, with_preferences=False)):
            return False
        used = self._cluster.requested.on(mine.node, record.priority)
        return all(amount <= node.allocatable.get(name, 0) for name, amount in used.items() if amount)

    def _move(self, mine: Nomination) -> Write | None:
        """To another node, if there is one and it was not moved too often."""
        record = mine.record
        self._ledger.withdraw(record.uid)
        moves = (self._moves.get(record.uid) or 0) + 1
        self._moves.put(record.uid, moves)
        node = self._choose(record) if moves <= _MAX_MOVES else ""
        if not node:
            return self._withdrawn(record)
        self._ledger.nominate(record, node)
        if node == mine.node:
            self._ledger.nominations.is_as_written(record.uid)
            return None
        self._ledger.count("nomination_moved")
        return Write(record, node)

    def _withdrawn(self, record: PodRecord) -> Write:
        self._ledger.count("nomination_withdrawn")
        self._moves.put(record.uid, _MAX_MOVES + 1)
        return Write(record, "")

    def _left_over(self) -> Write | None:
        """A nomination to take back: kube-scheduler has tried the pod without it, or does not come at all."""
        now = self._clock()
        if now - self._checked_at < _CHECK_S:
            return None
        nominations = self._ledger.nominations
        for uid, since in list(self._tried.items()):
            mine = nominations.of(uid)
            if mine is None or not mine.record.tried:
                del self._tried[uid]
            elif self._is_left_for(mine):
                self._tried[uid] = now
            elif now - since >= (0.0 if mine.record.asks and mine.record.asks.never_preempts else _TRIED_S):
                del self._tried[uid]
                self._ledger.withdraw(uid)
                return self._withdrawn(mine.record)
        if self._is_stalled and (stale := nominations.stale(now - _STALLED_S)) is not None:
            self._ledger.withdraw(stale.uid)
            self._ledger.count("nomination_withdrawn")
            return Write(stale, "")
        self._checked_at = now
        return None

    def _is_left_for(self, mine: Nomination) -> bool:
        """Whether a lesser pod is leaving the node: kube-scheduler makes room for this one."""
        priority = mine.record.priority
        return any(one.leaving and one.priority < priority for one in self._ledger.pods_on(mine.node))

    # The next ones

    def _nominate_next(self) -> Write | None:
        if self._is_stalled:
            return None
        for _ in range(_MAX_SKIPPED):
            record = self._due()
            if record is None:
                return None
            may_be = self._may_be_nominated(record)
            if may_be and not self._board(record).refresh(_MOST_AT_ONCE):
                return None
            self._ledger.queue.drop(record.uid, is_taken=False)
            node = self._choose(record) if may_be else ""
            if node:
                self._ledger.nominate(record, node)
                return Write(record, node)
        return None

    def _due(self) -> PodRecord | None:
        queue = self._ledger.queue
        if len(self._ledger.nominations) >= self._ahead:
            return None
        following = queue.next(after=self._lead.pods)
        if following is None:
            return None
        record, since = following
        is_burst = len(queue) >= _FEWEST and self._clock() - since >= _WAITED_S
        return record if is_burst or self._when == "always" else None

    def _may_be_nominated(self, record: PodRecord) -> bool:
        asks = record.asks
        if asks is None or record.requests is None or asks.left_alone or record.wishes:
            return False
        if asks.prefers and self._cluster.respects_preferences:
            return False
        is_free = self._ledger.pods.of(record.uid) == NOWHERE and (self._moves.get(record.uid) or 0) <= _MAX_MOVES
        return is_free and not self.honoured.is_left_alone(_kind(record))

    def _choose(self, record: PodRecord) -> str:
        if record.asks is None or record.requests is None:
            return ""
        board = self._board(record)
        board.refresh()
        return board.best()

    def _board(self, record: PodRecord) -> Board:
        asks = record.asks
        assert asks is not None
        key = record.shape, record.priority, record.demand, asks.key
        return self._boards.once(key, lambda: Board(self._cluster, record, asks))

    # What becomes of them

    def _look_for_progress(self) -> None:
        """Whether kube-scheduler comes to pods at all, although some wait for it."""
        progress = self._ledger.queue.taken, self._ended
        if progress != self._progress or not (self._is_stalled or len(self._ledger.nominations)):
            self._progress, self._progress_at, self._is_stalled = progress, self._clock(), False
        elif self._clock() - self._progress_at >= _STALLED_S:
            self._is_stalled = True

    def _count_ended(self) -> None:
        ended = self._ledger.nominations.ended
        while ended:
            record, is_honoured = ended.popleft()
            self._ended += 1
            self._moves.pop(record.uid)
            if is_honoured is None:
                self._lead.widen()
            elif self.honoured.count(_kind(record), is_honoured=is_honoured):
                log.warning(
                    "Pods are not placed where they were nominated; such pods are left to kube-scheduler for a while",
                    extra=kv(pod=f"{record.namespace}/{record.name}"),
                )


def _kind(record: PodRecord) -> Key:
    return record.shape, record.asks.key if record.asks is not None else b""
