"""Pods that have ended by their own status and are not deleted yet, while reports may still list them.

Invariant: a pod is here from the event that shows its end until its deletion, so there are as many as objects.
"""

from __future__ import annotations

from topowise_scheduler.ledger.node.event_windows import ENDED_KEPT_S
from topowise_scheduler.report import PodName, Report


class FinishedPods:
    """The finished pods of a node, by UID and by name: the API server has one pod of a name."""

    __slots__ = ("_names", "_uids", "_unseen")

    def __init__(self) -> None:
        self._names: dict[str, PodName] = {}
        self._uids: dict[PodName, str] = {}
        # When the service heard of a pod whose end it did not see, such as from before the service started.
        self._unseen: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    @property
    def will_change(self) -> bool:
        """Returns whether `forget` will have something to do."""
        return bool(self._unseen)

    def put(self, uid: str, name: PodName, unseen_at: float | None) -> None:
        """A kubelet writes the status when nothing of the pod runs. `unseen_at`: seconds, monotonic, None for a pod
        whose end the service saw."""
        if unseen_at is not None and uid not in self._names:
            self._unseen[uid] = unseen_at
        self._names[uid], self._uids[name] = name, uid

    def drop(self, uid: str) -> None:
        """The pod was deleted."""
        name = self._names.pop(uid, None)
        self._unseen.pop(uid, None)
        # A StatefulSet reuses the name; the entry may belong to the successor by now.
        if name is not None and self._uids.get(name) == uid:
            del self._uids[name]

    def forget(self, now: float) -> None:
        """Ends that were not seen are long ago by now: a report is newer than they are."""
        for uid in [uid for uid, at in self._unseen.items() if now - at >= ENDED_KEPT_S]:
            del self._unseen[uid]

    def listed(self, report: Report | None) -> frozenset[PodName]:
        """Returns the names under which a report lists what the pods held, and what no pod holds any more.

        By its UID alone a report lists what finished init containers left to a pod. By its name it lists a pod only if
        the report is older than the end, or if the kubelet lists ended pods (up to 1.33, kubernetes#132028).
        """
        if report is None or not self._names:
            return _NONE
        return frozenset([name for name in report.held if self._is_over(name, report)])

    def _is_over(self, name: PodName, report: Report) -> bool:
        namespace, pod = name
        if not namespace:
            return pod in self._names
        uid = self._uids.get(name)
        return uid is not None and (report.lists_ended or uid in self._unseen)


_NONE: frozenset[PodName] = frozenset()
