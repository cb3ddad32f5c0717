"""What the devices that a kubelet may choose come to for a pod, kept until the node changes.

Invariant: a judgement is used only as long as nothing has become of its node since it was made. It is of the pod's
shape, as every verdict is, of its wishes, and of the pods that are left out of account for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.device_affinity import Judged, Wish, may_refuse
from topowise_scheduler.kubelet import Kubelet

_MOST: Final = 1 << 14
_MOST_BYTES: Final = 16 << 20

_Key = tuple[str, bytes, tuple[Wish, ...], frozenset[str]]
Kept = TypeVar("Kept")


class Affinities:
    """By the one-node model, pod by pod and node by node."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._judged = _UntilChanged[Judged](ledger)
        self._draws = _UntilChanged[bool](ledger)

    def of(self, record: PodRecord, name: str) -> Judged:
        """Of a pod with wishes whose amounts can be read."""
        key = self._key(record, name, record.wishes)
        judged = self._judged.get(key)
        if judged is None:
            judged = self._ledger.affinity(record, name, self._states(record, key))
            self._judged.keep(key, judged)
        return judged

    def may_be_refused(self, record: PodRecord, name: str) -> bool:
        """Whether a node that fits may refuse the pod by its choice of devices (device_affinity/draws.py)."""
        assert record.requests is not None
        if not record.requests.shared_devices:
            return False
        key = self._key(record, name, ())
        found = self._draws.get(key)
        if found is None:
            shared, rules = record.requests.shared_devices, self._ledger.device_affinity.rules
            state = next(self._states(record, key), None)
            found = state is not None and may_refuse(state, record.view(state), shared, rules)
            self._draws.keep(key, found)
        return found

    def _key(self, record: PodRecord, name: str, wishes: tuple[Wish, ...]) -> _Key:
        others = frozenset(self._ledger.disregarded(record.uid, record.priority, name))
        return name, record.shape, wishes, others

    def _states(self, record: PodRecord, key: _Key) -> Iterator[Kubelet]:
        name, _, _, others = key
        return self._ledger.node_states.states(name, {record.uid, *others})


class _UntilChanged(Generic[Kept]):
    """Bounded in number and in bytes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[_Key, tuple[int, Kept]] = {}
        self._bytes = 0

    def get(self, key: _Key) -> Kept | None:
        kept = self._kept.get(key)
        return kept[1] if kept is not None and kept[0] == self._ledger.node_states.changed_at(key[0]) else None

    def keep(self, key: _Key, judged: Kept) -> None:
        if key not in self._kept:
            self._bytes += len(key[1])
            if len(self._kept) >= _MOST or self._bytes > _MOST_BYTES:
                self._kept.clear()
                self._bytes = len(key[1])
        self._kept[key] = self._ledger.node_states.changed_at(key[0]), judged
