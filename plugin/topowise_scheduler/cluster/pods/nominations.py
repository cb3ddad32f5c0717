"""Pods that we have nominated ourselves, ahead of kube-scheduler (nominator/), from the decision on.

The write of a nomination names the version of the pod that the decision was made of, and the API server refuses it for
any other. So the next event of the pod is either the nomination, or tells that it came to nothing: only one of the
very same version, from a list, is older. An annotation that is written with the nomination tells ours from those of
kube-scheduler and of others, for a process that did not write it too.

Invariant: a nomination ends with an event that tells of another one or none, with the pod, or, as long as no event
has shown it, after `_UNSEEN_S`: no room stays booked for a write that nobody knows of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import msgspec

from topowise_scheduler.cluster.pods.records import PodRecord

# Longer than a write and the event of it take together, on an API server that works at all.
_UNSEEN_S: Final = 15.0
_MAX_ENDED: Final = 4096


class Nomination(msgspec.Struct, gc=False):
    """`record` is the pod's last version, `since` is in seconds, monotonic; `unseen`: no event has shown it yet;
    `late`: kube-scheduler had taken the pod before it saw this."""

    record: PodRecord
    node: str
    since: float
    unseen: bool
    late: bool = False


class Ended(NamedTuple):
    """A pod of ours was bound; `is_honoured` is None if kube-scheduler did not see the nomination in time."""

    record: PodRecord
    is_honoured: bool | None


class Nominations:
    """By uid and by node. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, Nomination] = {}
        self._on: dict[str, set[str]] = {}
        self._unreviewed: set[str] = set()
        self._unseen: dict[str, None] = {}
        self.ended: deque[Ended] = deque(maxlen=_MAX_ENDED)
        """Of pods that were bound, the oldest first; whoever reads them takes them out."""

    def __len__(self) -> int:
        return len(self._held)

    def uids(self) -> Collection[str]:
        """Of all pods that are nominated."""
        return self._held.keys()

    def of(self, uid: str) -> Nomination | None:
        """The one of a pod."""
        return self._held.get(uid)

    def on(self, node: str) -> Collection[str]:
        """The pods for a node."""
        return self._on.get(node, ())

    def decide(self, record: PodRecord, node: str) -> None:
        """We are about to write it."""
        self._put(Nomination(record, node, self._clock(), unseen=True))

    def note(self, record: PodRecord) -> str:
        """The node for which a pending pod is nominated, by its event and by what we know beyond that."""
        mine = self._held.get(record.uid)
        if mine is not None and mine.unseen and record.version == mine.record.version:
            return mine.node
        if not record.nominated_by_us:
            self.drop(record.uid)
        else:
            is_same = mine is not None and mine.node == record.nominated
            since, late = (mine.since, mine.late) if mine is not None and is_same else (self._clock(), False)
            self._put(Nomination(record, record.nominated, since, unseen=False, late=late))
            self._unreviewed.add(record.uid)
        return record.nominated

    def asked(self, record: PodRecord) -> None:
        """kube-scheduler asks about a pod, as it knows it."""
        mine = self._held.get(record.uid)
        if mine is not None and record.nominated != mine.node:
            mine.late = True

    def bound(self, record: PodRecord) -> bool | None:
        """The pod was bound: whether where we said, None if that came too late for it."""
        mine = self._held.get(record.uid)
        self.drop(record.uid)
        if mine is None:
            return None
        is_honoured = None if mine.late or (mine.unseen and mine.node != record.node) else mine.node == record.node
        self.ended.append(Ended(mine.record, is_honoured))
        return is_honoured

    def is_as_written(self, uid: str) -> None:
        """What was decided is what the pod says already."""
        if (mine := self._held.get(uid)) is not None:
            mine.unseen = False
            self._unseen.pop(uid, None)

    def stale(self, before: float) -> PodRecord | None:
        """A pod that kube-scheduler has not tried although it is nominated since before then."""
        for mine in self._held.values():
            if mine.since <= before and not (mine.unseen or mine.record.tried):
                return mine.record
        return None

    def drop(self, uid: str) -> None:
        """There is none any more."""
        mine = self._held.pop(uid, None)
        if mine is None:
            return
        self._unseen.pop(uid, None)
        self._unreviewed.discard(uid)
        self._on[mine.node].discard(uid)
        if not self._on[mine.node]:
            del self._on[mine.node]

    def doubt(self, node: str) -> None:
        """Nothing is known of a node any more."""
        self._unreviewed.update(self.on(node))

    def take_unreviewed(self) -> set[str]:
        """Those that an event has shown since this was asked last, or of whose node nothing is known any more."""
        taken, self._unreviewed = self._unreviewed, set()
        return taken

    def late(self) -> list[PodRecord]:
        """The pods of those that no event has shown in time."""
        before = self._clock() - _UNSEEN_S
        found = []
        for uid in self._unseen:
            if self._held[uid].since > before:
                break
            found.append(self._held[uid].record)
        return found

    def _put(self, nomination: Nomination) -> None:
        uid = nomination.record.uid
        before = self._held.get(uid)
        if before is not None and before.node == nomination.node:
            # It keeps its place among the others.
            self._held[uid] = nomination
            self._unseen.pop(uid, None)
        else:
            self.drop(uid)
            self._held[uid] = nomination
        self._on.setdefault(nomination.node, set()).add(uid)
        if nomination.unseen:
            self._unseen[uid] = None
