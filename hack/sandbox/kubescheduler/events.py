"""The events that kube-scheduler writes about pods, as `kubectl describe pod` and `kubectl get events` show them.

Each distinct message about a pod is an object, whose count grows with repetitions: a pod that waits for an hour has a
single event, instead of an event per attempt (client-go's EventCorrelator).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final

import msgspec

from sandbox.kubescheduler.pod import PodInfo
from topowise.errors import ApiError
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime.log import kv

log = logging.getLogger(__name__)

_MOST_KNOWN: Final = 1000


class EventWriter:
    """Writes as the component `name`. What cannot be written is logged: no scheduling waits for an event."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._component = name
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def scheduled(self, info: PodInfo, node: str) -> None:
        """It is bound."""
        await self._write(info, "Normal", "Scheduled", f"Successfully assigned {info.key} to {node}")

    async def failed(self, info: PodInfo, message: str) -> None:
        """It waits; the message is that of its condition."""
        await self._write(info, "Warning", "FailedScheduling", message)

    async def _write(self, info: PodInfo, kind: str, reason: str, message: str) -> None:
        meta, now = info.pod.metadata, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = f"{meta.name}.{hash((meta.uid, reason, message)) & 0xFFFFFFFFFFFF:012x}"
        collection = f"/api/v1/namespaces/{meta.namespace}/events"
        count = self._count(name)
        try:
            if count > 1:
                again = msgspec.json.encode({"count": count, "lastTimestamp": now})
                await self._api.request("PATCH", f"{collection}/{name}", body=again, content_type=MERGE_PATCH)
                return
            event = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": meta.namespace},
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "namespace": meta.namespace,
                    "name": meta.name,
                    "uid": meta.uid,
                },
                "type": kind,
                "reason": reason,
                "message": message,
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": {"component": self._component},
            }
            await self._api.request("POST", collection, body=msgspec.json.encode(event))
        except ApiError as exc:
            log.warning("Cannot write an event", extra=kv(pod=info.key, why=exc))

    def _count(self, name: str) -> int:
        self._counts[name] = self._counts.pop(name, 0) + 1
        if len(self._counts) > _MOST_KNOWN:
            self._counts.popitem(last=False)
        return self._counts[name]
