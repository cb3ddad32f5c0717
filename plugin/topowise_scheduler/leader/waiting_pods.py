"""Pods that wait only for alignment are told what for, by an event and a condition.

kube-scheduler says "0/300 nodes are available: 300 node(s) cannot align ..." and no more. Pods that are alike are
looked at once; a pod is told again when what is in its way has changed, and at most once a minute. kube-scheduler looks
at no condition but its own, so that nothing is requeued by this.
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
from topowise_scheduler.leader import chore, events
from topowise_scheduler.presentation.explain import waiting_pod

CONDITION: Final = "topowise.io/Alignable"
_REASON: Final = "WaitsForAlignment"
_STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
_INTERVAL_S: Final = 5.0
# A pod that is placed within this time is not worth an event.
_AFTER_S: Final = 10.0
_AGAIN_S: Final = 60.0
# Kinds of pods looked at in one go: some milliseconds each.
_MOST_KINDS: Final = 2
_MOST_TOLD: Final = 20


class _Told(msgspec.Struct):
    """Since when a pod is known to wait, and what it was told when: seconds, monotonic."""

    since: float
    text: str = ""
    at: float = float("-inf")


class _Message(msgspec.Struct, frozen=True):
    record: PodRecord
    text: str


class WaitingPods:
    """Tells pods what they wait for. `clock` gives seconds, monotonic."""

    def __init__(self, api: Api, ledger: Ledger, answers: Answers, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._ledger = ledger
        self._answers = answers
        self._clock = clock
        self._told: dict[str, _Told] = {}
        # Kinds in the order in which they were looked at.
        self._looked_at: dict[tuple[bytes, int], float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        await chore.run("tell a pod what it waits for", self.due, self._tell, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, _Message]:
        """What is to be told now, by uid."""
        now, pods = self._clock(), self._ledger.waiting
        self._told = {uid: self._told.get(uid) or _Told(now) for uid in pods}
        kinds: dict[tuple[bytes, int], list[PodRecord]] = {}
        for uid, record in pods.items():
            told = self._told[uid]
            if now - told.since >= _AFTER_S and now - told.at >= _AGAIN_S:
                kinds.setdefault((record.shape, record.priority), []).append(record)
        self._looked_at = {kind: self._looked_at.get(kind, 0.0) for kind in kinds}
        found: dict[str, _Message] = {}
        names = self._ledger.node_states.reported() if kinds else []
        for kind in sorted(kinds, key=self._looked_at.__getitem__)[:_MOST_KINDS]:
            self._looked_at[kind] = now
            seen = waiting_pod.obstacle(self._ledger, self._answers, kinds[kind][0], names)
            for record in kinds[kind] if seen is not None else ():
                assert seen is not None
                told = self._told[record.uid]
                if seen.text != told.text and len(found) < _MOST_TOLD:
                    found[record.uid] = _Message(record, seen.text)
        return found

    async def _tell(self, message: _Message) -> None:
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
                timeout=chore.REQUEST_TIMEOUT_S,
            )
        except ApiError as exc:
            # Gone, or another of its name is there.
            if exc.status not in (404, 409):
                raise
        told: Any = self._told.get(record.uid)
        if told is not None:
            told.text, told.at = message.text, self._clock()
