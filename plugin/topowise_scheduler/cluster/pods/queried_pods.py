"""Records of the pods that a scheduler has queried: the later bind request only names its pod.

Invariant: the number and the bytes of records are bounded; the oldest queries are dropped first.
"""

from __future__ import annotations

from typing import Final

from topowise_scheduler.cluster.pods.records import PodRecord

_MAX_PODS: Final = 10_000
# Approximate bytes: a client that queries invented pods must not make the process grow.
_MAX_SIZE: Final = 32 << 20


class QueriedPods:
    """Records by UID."""

    def __init__(self) -> None:
        self._records: dict[str, PodRecord] = {}
        self._size = 0

    def put(self, record: PodRecord) -> None:
        """Makes the record the newest, and drops the oldest records above the bounds."""
        self.drop(record.uid)
        self._records[record.uid] = record
        self._size += _size(record)
        while len(self._records) > _MAX_PODS or self._size > _MAX_SIZE:
            self.drop(next(iter(self._records)))

    def drop(self, uid: str) -> None:
        """Drops the record of a pod that no bind request will name any more."""
        record = self._records.pop(uid, None)
        if record is not None:
            self._size -= _size(record)

    def get(self, uid: str) -> PodRecord | None:
        """Returns the record of the pod, None if no recent query named it."""
        return self._records.get(uid)


def _size(record: PodRecord) -> int:
    """Returns the approximate bytes that the record keeps alive."""
    requests_size = 0 if record.requests is None else record.requests.size
    return 1024 + requests_size + len(record.name) + len(record.problem)
