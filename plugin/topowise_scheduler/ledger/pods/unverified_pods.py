"""Pods of scheduler requests that the pod watch has not delivered yet.

The watch of kube-scheduler is usually some milliseconds ahead of this watch, after a burst seconds: a pod that
is real keeps its reservation in that time. But every client that reaches the port can invent pods, and each invented
pod would reserve resources that a real pod needs. So an unverified pod may reserve a node until the watch is past the
pod's resourceVersion, or for some seconds if the version is unknown. If an unverified pod proves not to exist, the
reservations of new unverified pods are refused until the watch delivers some pods that were requested before.

Invariant: an unverified pod holds a reservation for at most `UNVERIFIED_S` after its first request, also if it is
requested again, and at most `MAX_UNVERIFIED_PODS` pods do so at a time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from topowise import digits

# The delay of a watch in a burst of some hundred pods a second.
UNVERIFIED_S: Final = 10.0
MAX_UNVERIFIED_PODS: Final = 1024


class _UnverifiedPod(NamedTuple):
    """`until`: end of the reservation (seconds, monotonic). `version`: resourceVersion of the first request, 0 if
    unknown."""

    until: float
    version: int
    is_trusted: bool


class UnverifiedPods:
    """Decides which requested pods may reserve a node. Not thread-safe."""

    def __init__(self) -> None:
        # UIDs of pending pods that the watch has delivered. Assigned pods need no reservation.
        self._pending: set[str] = set()
        # By UID, in the order of the first request.
        self._unverified: dict[str, _UnverifiedPod] = {}
        self._trusted_count = 0
        # How many unverified pods may reserve a node: 0 after an invented pod, doubled by each pod that proves real.
        self._trust_limit = MAX_UNVERIFIED_PODS
        self._watched_version = 0

    def __len__(self) -> int:
        return len(self._unverified)

    def note_watched(self, uid: str, version: str, *, is_pending: bool) -> None:
        """Records that the watch has delivered a pod."""
        self._watched_version = max(self._watched_version, _number(version))
        if is_pending:
            self._pending.add(uid)
        else:
            self._pending.discard(uid)
        if self._forget(uid):
            self._trust_limit = min(max(1, 2 * self._trust_limit), MAX_UNVERIFIED_PODS)

    def note_gone(self, uid: str) -> None:
        """Records that a pod has ended or was deleted."""
        self._pending.discard(uid)

    def may_reserve(self, uid: str, version: str, now: float) -> bool:
        """Returns whether a requested pod may reserve a node; remembers the pod if the watch has not delivered it."""
        if uid in self._pending:
            return True
        if (pod := self._unverified.get(uid)) is not None:
            return pod.is_trusted and now < pod.until
        number = _number(version)
        if 0 < number <= self._watched_version or len(self._unverified) >= MAX_UNVERIFIED_PODS:
            return False
        is_trusted = self._trusted_count < self._trust_limit
        self._trusted_count += is_trusted
        self._unverified[uid] = _UnverifiedPod(now + UNVERIFIED_S, number, is_trusted)
        return is_trusted

    def take_expired(self, now: float) -> list[str]:
        """Removes and returns the UIDs of pods that do not exist: the watch is past their version, or their time is
        over."""
        expired = [
            uid for uid, pod in self._unverified.items() if pod.until <= now or 0 < pod.version <= self._watched_version
        ]
        for uid in expired:
            self._forget(uid)
        if expired:
            self._trust_limit = 0
        return expired

    def _forget(self, uid: str) -> bool:
        """Returns whether the pod was unverified."""
        pod = self._unverified.pop(uid, None)
        if pod is None:
            return False
        self._trusted_count -= pod.is_trusted
        return True


def _number(version: str) -> int:
    """Returns the number of a resourceVersion, 0 if it has none. Numbers of one collection grow (KEP-5504)."""
    return digits.natural(version, digits.UINT64) or 0
