"""What kube-scheduler writes about pods: the PodScheduled condition, nominations, bindings, evictions, and events.

A condition is only written if it says something new, and every write of it is an event that may wake the pod again.
Each distinct message about a pod is an event object, whose count grows with repetitions: a pod that waits for an hour
has a single event, instead of an event per attempt (client-go's EventCorrelator).
Source: pkg/scheduler/schedule_one.go (updatePod, handleSchedulingFailure).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from sandbox import simulated_time
from sandbox.kubescheduler.cache import PodInfo
from topowise.errors import ApiError
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime.log import kv

_STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
_GONE: Final = (404, 409)


class StatusWriter:
    """Raises ApiError for anything but a pod that is gone."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def unscheduled(self, info: PodInfo, reason: str, message: str, nominated: str | None) -> None:
        """PodScheduled is False for this reason; `nominated` None leaves the nomination as it is."""
        current = info.condition()
        expected = ("False", reason, message)
        status: dict[str, Any] = {}
        if current is None or (current.status, current.reason, current.message) != expected:
            condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
            if current is None or current.status != "False":
                condition["lastTransitionTime"] = simulated_time.utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
            status["conditions"] = [condition]
        if nominated is not None and nominated != info.nominated:
            status["nominatedNodeName"] = nominated or None
        if status:
            await self._patch(info, status)

    async def bind(self, info: PodInfo, node: str) -> None:
        """DefaultBinder. Raises ApiError whatever the matter is."""
        meta = info.pod.metadata
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._api.request("POST", f"{info.path}/binding", body=msgspec.json.encode(binding))

    async def evict(self, victim: PodInfo, preemptor: PodInfo) -> None:
        """prepareCandidate: the victim is told why, and deleted."""
        message = f"{preemptor.pod.spec.schedulerName}: preempting to accommodate a higher priority pod"
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": message,
        }
        await self._patch(victim, {"conditions": [condition]})
        options = {"preconditions": {"uid": victim.uid}}
        try:
            await self._api.request("DELETE", victim.path, body=msgspec.json.encode(options))
        except ApiError as exc:
            if exc.status not in _GONE:
                raise

    async def denominate(self, info: PodInfo) -> None:
        """A more important pod takes its place."""
        await self._patch(info, {"nominatedNodeName": None})

    async def _patch(self, info: PodInfo, status: dict[str, Any]) -> None:
        body = msgspec.json.encode({"metadata": {"uid": info.uid}, "status": status})
        try:
            await self._api.request("PATCH", f"{info.path}/status", body=body, content_type=_STRATEGIC_MERGE_PATCH)
        except ApiError as exc:
            if exc.status not in _GONE:
                raise


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
