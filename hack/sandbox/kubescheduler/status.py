"""What kube-scheduler writes about pods: the PodScheduled condition, nominations, bindings, evictions.

A condition is only written if it says something new, and every write of it is an event that may wake the pod again.
Source: pkg/scheduler/schedule_one.go (updatePod, handleSchedulingFailure).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sandbox import simulated_time
from sandbox.kubescheduler.pod import PodInfo
from topowise.errors import ApiError
from topowise.kube.api import Api

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
