"""What nodes come to for the wishes of pods, kept until the node changes.

Invariant: a judgement is used only as long as nothing has become of its node since it was made. It is of the pod's
shape, as every verdict is, of its wishes, and of the pods that are left out of account for it.
"""

from __future__ import annotations

from typing import Final

from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.device_affinity import Judged, Wish

_MOST: Final = 1 << 14
_MOST_BYTES: Final = 16 << 20

_Key = tuple[str, bytes, tuple[Wish, ...], frozenset[str]]


class Affinities:
    """By the one-node model, pod by pod and node by node."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[_Key, tuple[int, Judged]] = {}
        self._bytes = 0

    def of(self, record: PodRecord, name: str) -> Judged:
        """Of a pod with wishes whose amounts can be read."""
        others = frozenset(self._ledger.disregarded(record.uid, record.priority, name))
        key = (name, record.shape, record.wishes, others)
        changed_at = self._ledger.changed_at(name)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == changed_at:
            return kept[1]
        if kept is None:
            self._bytes += len(record.shape)
            if len(self._kept) >= _MOST or self._bytes > _MOST_BYTES:
                self._kept.clear()
                self._bytes = len(record.shape)
        judged = self._ledger.affinity(record, name, self._ledger.states(name, {record.uid, *others}))
        self._kept[key] = changed_at, judged
        return judged
