"""Nominations that the nominator (leader/nominator) writes before kube-scheduler tries the pods.

The write of a nomination names the resourceVersion of the pod that was decided on, and the API server refuses the write
for any other version. So the next event of the pod shows either the nomination or that the nomination failed. The
only exception is an event with that same version, from a list: the event is older than the write. An annotation beside
the nomination distinguishes it from nominations of kube-scheduler, also for a replica that did not write it.

Invariant: a nomination ends with an event that shows another nomination or none, with the pod, or after
`_UNOBSERVED_S` without an event that shows the nomination. No resources stay booked for a write that failed silently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import msgspec

from topowise_scheduler.ledger.pods.records import PodRecord

# Longer than a write and its event take on an API server that works.
_UNOBSERVED_S: Final = 15.0
_MAX_RESULTS: Final = 4096


class Nomination(msgspec.Struct, gc=False):
    """A nomination since `since` (seconds, monotonic); `record` is the last known version of the pod.

    `unobserved`: no event has shown the nomination yet. `late`: kube-scheduler took the pod before it saw the
    nomination.
    """

    record: PodRecord
    node: str
    since: float
    unobserved: bool
    late: bool = False


class NominationResult(NamedTuple):
    """A nominated pod was bound. `is_honoured` is None if kube-scheduler did not see the nomination in time."""

    record: PodRecord
    is_honoured: bool | None


class Nominations:
    """Nominations by UID and by node. `clock` gives seconds, monotonic. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # `stale` returns the first of this order.
        self._nominations: dict[str, Nomination] = {}
        self._uids_by_node: dict[str, set[str]] = {}
        self._unreviewed: set[str] = set()
        # A dict as an ordered set.
        self._unobserved: dict[str, None] = {}
        self.results: deque[NominationResult] = deque(maxlen=_MAX_RESULTS)
        """Results of bound pods, the oldest first; the reader removes them."""

    def __len__(self) -> int:
        return len(self._nominations)

    def of(self, uid: str) -> Nomination | None:
        """Returns the nomination of a pod."""
        return self._nominations.get(uid)

    def on(self, node: str) -> Collection[str]:
        """Returns the UIDs of the pods that are nominated for a node."""
        return self._uids_by_node.get(node, ())

    def decide(self, record: PodRecord, node: str) -> None:
        """Records a nomination that is about to be written."""
        self._put(Nomination(record, node, self._clock(), unobserved=True))

    def observe(self, record: PodRecord) -> str:
        """Takes in an event of a pending pod. Returns the node that the pod is nominated for, "" for none."""
        nomination = self._nominations.get(record.uid)
        if (
            nomination is not None
            and nomination.unobserved
            and record.status.version == nomination.record.status.version
        ):
            # The event is older than the write.
            return nomination.node
        if not record.status.nominated_by_us:
            self.drop(record.uid)
            return record.status.nominated
        since, late = self._clock(), False
        if nomination is not None and nomination.node == record.status.nominated:
            # The event shows the known nomination, so its age continues.
            since, late = nomination.since, nomination.late
        self._put(Nomination(record, record.status.nominated, since, unobserved=False, late=late))
        self._unreviewed.add(record.uid)
        return record.status.nominated

    def note_queried(self, record: PodRecord) -> None:
        """Records a query of kube-scheduler, with the version of the pod that kube-scheduler knows."""
        nomination = self._nominations.get(record.uid)
        if nomination is not None and record.status.nominated != nomination.node:
            nomination.late = True

    def note_bound(self, record: PodRecord) -> bool | None:
        """Ends the nomination of a bound pod. Returns whether it was honoured, None if it came too late."""
        nomination = self._nominations.get(record.uid)
        self.drop(record.uid)
        if nomination is None:
            return None
        is_honoured: bool | None = nomination.node == record.node
        if nomination.late or (nomination.unobserved and not is_honoured):
            is_honoured = None
        self.results.append(NominationResult(nomination.record, is_honoured))
        return is_honoured

    def note_unchanged(self, uid: str) -> None:
        """Records that the pod already shows the decided nomination, so that no write and no event follow."""
        if (nomination := self._nominations.get(uid)) is not None:
            nomination.unobserved = False
            self._unobserved.pop(uid, None)

    def stale(self, before: float) -> PodRecord | None:
        """Returns a pod that is nominated since before this time and that kube-scheduler has not tried."""
        for nomination in self._nominations.values():
            if nomination.since <= before and not (nomination.unobserved or nomination.record.status.tried):
                return nomination.record
        return None

    def drop(self, uid: str) -> None:
        """Ends the nomination of a pod, if it has one."""
        nomination = self._nominations.pop(uid, None)
        if nomination is None:
            return
        self._unobserved.pop(uid, None)
        self._unreviewed.discard(uid)
        self._uids_by_node[nomination.node].discard(uid)
        if not self._uids_by_node[nomination.node]:
            del self._uids_by_node[nomination.node]

    def review_node(self, node: str) -> None:
        """Marks the nominations of a node for review, because the state of the node was lost."""
        self._unreviewed.update(self.on(node))

    def take_unreviewed(self) -> set[str]:
        """Returns the UIDs marked for review since the last call: by an event of the pod or by `review_node`."""
        taken, self._unreviewed = self._unreviewed, set()
        return taken

    def unobserved(self) -> list[PodRecord]:
        """Returns the pods whose nominations no event has shown in time."""
        before = self._clock() - _UNOBSERVED_S
        records = []
        for uid in self._unobserved:
            if self._nominations[uid].since > before:
                break
            records.append(self._nominations[uid].record)
        return records

    def _put(self, nomination: Nomination) -> None:
        uid = nomination.record.uid
        before = self._nominations.get(uid)
        if before is not None and before.node == nomination.node:
            # The nomination keeps its position: `stale` returns the oldest first.
            self._nominations[uid] = nomination
            self._unobserved.pop(uid, None)
        else:
            self.drop(uid)
            self._nominations[uid] = nomination
        self._uids_by_node.setdefault(nomination.node, set()).add(uid)
        if nomination.unobserved:
            self._unobserved[uid] = None
