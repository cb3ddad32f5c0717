"""Tells pods that wait only for alignment what they wait for, by an event and a condition.

The message of kube-scheduler says only "0/300 nodes are available: 300 node(s) cannot align ...". Pods of equal
requests are looked at once. A pod gets a new message when its obstacle has changed, at most once a minute.
kube-scheduler reads no condition but its own, so the condition requeues no pod.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.text import escaped
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.leader import controller, events
from topowise_scheduler.presentation.explain import waiting_pod

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
    """Since when a pod is known to wait, and its last message and the time of it (seconds, monotonic)."""

    since: float
    text: str = ""
    at: float = float("-inf")


class _Message(msgspec.Struct, frozen=True):
    record: PodRecord
    text: str


class WaitingPods:
    """Posts the messages. `clock` gives seconds, monotonic."""

    def __init__(self, api: Api, ledger: Ledger, answers: Answers, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._ledger = ledger
        self._answers = answers
        self._clock = clock
        self._announcements: dict[str, _Announcement] = {}
        # When each pod class was looked at last.
        self._looked_at: dict[tuple[bytes, int], float] = {}

    async def run(self) -> None:
        """Posts messages until cancelled."""
        await controller.run("tell a pod what it waits for", self.due, self._post, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, _Message]:
        """Returns the messages to post now, by UID."""
        now, pods = self._clock(), self._ledger.waiting
        self._announcements = {uid: self._announcements.get(uid) or _Announcement(now) for uid in pods}
        classes: dict[tuple[bytes, int], list[PodRecord]] = {}
        for uid, record in pods.items():
            announcement = self._announcements[uid]
            if now - announcement.since >= _AFTER_S and now - announcement.at >= _AGAIN_S:
                classes.setdefault((record.shape, record.priority), []).append(record)
        self._looked_at = {pod_class: self._looked_at.get(pod_class, 0.0) for pod_class in classes}
        messages: dict[str, _Message] = {}
        names = self._ledger.node_states.reported() if classes else []
        for pod_class in sorted(classes, key=self._looked_at.__getitem__)[:_MAX_CLASSES]:
            self._looked_at[pod_class] = now
            obstacle = waiting_pod.obstacle(self._ledger, self._answers, classes[pod_class][0], names)
            for record in classes[pod_class] if obstacle is not None else ():
                assert obstacle is not None
                announcement = self._announcements[record.uid]
                if obstacle.text != announcement.text and len(messages) < _MAX_MESSAGES:
                    messages[record.uid] = _Message(record, obstacle.text)
        return messages

    async def _post(self, message: _Message) -> None:
        record, now = message.record, datetime.now(UTC)
        condition = {
            "type": CONDITION,
            "status": "False",
            "reason": _REASON,
            "message": escaped(message.text),
            "lastTransitionTime": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        }
        body = {"metadata": {"uid": record.uid}, "status": {"conditions": [condition]}}
        try:
            await events.post(self._api, record, _REASON, message.text, kind="Normal", action="Schedule")
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
        announcement: Any = self._announcements.get(record.uid)
        if announcement is not None:
            announcement.text, announcement.at = message.text, self._clock()
