"""Pods that questions were about: the bind of one will only name it.

Invariant: bounded in number and in bytes; the oldest go first.
"""

from __future__ import annotations

from typing import Final

from topowise_scheduler.cluster.pods.records import PodRecord

_MAX_PODS: Final = 10_000
# Bytes, about: whoever asks about pods that are none makes us remember no more.
_MAX_SIZE: Final = 32 << 20


class AskedPods:
    """By uid."""

    def __init__(self) -> None:
        self._records: dict[str, PodRecord] = {}
        self._size = 0

    def put(self, record: PodRecord) -> None:
        """A question is about the pod; it is the newest."""
        self.drop(record.uid)
        self._records[record.uid] = record
        self._size += _size(record)
        while len(self._records) > _MAX_PODS or self._size > _MAX_SIZE:
            self.drop(next(iter(self._records)))

    def drop(self, uid: str) -> None:
        """No bind of it will come."""
        record = self._records.pop(uid, None)
        if record is not None:
            self._size -= _size(record)

    def get(self, uid: str) -> PodRecord | None:
        """None if nobody has asked about it lately."""
        return self._records.get(uid)


def _size(record: PodRecord) -> int:
    """Bytes that a record keeps from being forgotten, about."""
    asked = 0 if record.requests is None else record.requests.size
    return 1024 + asked + len(record.name) + len(record.problem)
