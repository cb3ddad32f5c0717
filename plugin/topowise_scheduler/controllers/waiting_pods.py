"""Tells pods that wait only for alignment what they wait for, by an event and a condition.

The message of kube-scheduler says only "0/300 nodes are available: 300 node(s) cannot align ...". Pods of equal
requests are looked at once. A pod gets a new message when its obstacle has changed, at most once a minute.
kube-scheduler reads no condition but its own, so the condition requeues no pod.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from typing import Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise.runtime.event_loop import collected
from topowise.text import escaped
from topowise_scheduler.controllers import controller, events
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.waiting import looking
from topowise_scheduler.explain.waiting_texts import text
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.pods.records import PodRecord

CONDITION: Final = "topowise.io/Alignable"
_REASON: Final = "WaitsForAlignment"
_STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
_INTERVAL_S: Final = 5.0
# A pod that is placed within this time needs no event.
_AFTER_S: Final = 10.0
_AGAIN_S: Final = 60.0
# Pod classes of a pass: some milliseconds each.
_MAX_CLASSES: Final = 2
_MAX_MESSAGES: Final = 20


class _Announcement(msgspec.Struct):
    """Since when a pod is known to wait, and the topic and time of its last message (seconds, monotonic)."""

    since: float
    topic: tuple[object, ...] = ()
    at: float = float("-inf")


class WaitingPods:
    """Posts the messages. `clock` gives seconds, monotonic."""

    def __init__(
        self, api: Api, ledger: Ledger, view: ClusterView, clock: Callable[[], float] = clock.monotonic
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._view = view
        self._clock = clock
        self._announcements: dict[str, _Announcement] = {}
        # When each pod class was looked at last.
        self._looked_at: dict[Hashable, float] = {}

    async def run(self) -> None:
        """Posts messages until cancelled."""
        await controller.run("tell a pod what it waits for", self.due, self.post, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, PodRecord]:
        """Returns the pods whose message may have to change now, by UID."""
        now, pods = self._clock(), self._ledger.waiting
        self._announcements = {uid: self._announcements.get(uid) or _Announcement(now) for uid in pods}
        classes: dict[Hashable, list[PodRecord]] = {}
        for uid, record in pods.items():
            announcement = self._announcements[uid]
            if now - announcement.since >= _AFTER_S and now - announcement.at >= _AGAIN_S:
                classes.setdefault(record.pod_class, []).append(record)
        self._looked_at = {pod_class: self._looked_at.get(pod_class, 0.0) for pod_class in classes}
        chosen = sorted(classes, key=self._looked_at.__getitem__)[:_MAX_CLASSES]
        self._looked_at.update(dict.fromkeys(chosen, now))
        records = [record for pod_class in chosen for record in classes[pod_class]]
        return {record.uid: record for record in records[:_MAX_MESSAGES]}

    async def post(self, record: PodRecord) -> None:
        """Posts the message of a pod if it has changed. Raises ApiError."""
        waiting = (await collected(looking(self._view, record)))[0]
        announcement = self._announcements.get(record.uid)
        # kube-scheduler places such a pod at its next attempt, or says itself what it refuses.
        if announcement is None or waiting.fits or waiting.topic == announcement.topic:
            return
        await self.write(record, text(waiting))
        announcement.topic, announcement.at = waiting.topic, self._clock()

    async def write(self, record: PodRecord, text: str) -> None:
        """Writes the event and the condition. Raises ApiError."""
        now = clock.utc_now()
        condition = {
            "type": CONDITION,
            "status": "False",
            "reason": _REASON,
            "message": escaped(text),
            "lastTransitionTime": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        }
        body = {"metadata": {"uid": record.uid}, "status": {"conditions": [condition]}}
        try:
            await events.post(self._api, record, _REASON, text, kind="Normal", action="Schedule")
            await self._api.request(
                "PATCH",
                paths.pod(record.namespace, record.name, "status"),
                body=json.dumps(body).encode(),
                content_type=_STRATEGIC_MERGE_PATCH,
                timeout=controller.REQUEST_TIMEOUT_S,
            )
        except ApiError as exc:
            # Deleted, or a new pod of the name exists.
            if exc.status not in (404, 409):
                raise
