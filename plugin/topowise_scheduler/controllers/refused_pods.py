"""Deletes pods that a kubelet has refused for their alignment, if a controller replaces them.

Such a pod has failed for good, and its controller has created another pod. The refusal's metric, log and quarantine
already have its information. A controller whose pods are refused again and again fills its namespace with failed pods.
An event first records the node, the message of the kubelet, and the deletion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise_scheduler.controllers import controller, events
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.pods.records import TOPOLOGY_AFFINITY_ERROR, PodRecord

_INTERVAL_S: Final = 1.0


class RefusedPods:
    """Deletes pods that failed by TopologyAffinityError and that have a controller."""

    def __init__(self, api: Api, ledger: Ledger) -> None:
        self._api = api
        self._ledger = ledger
        # UIDs of pods without a controller and of pods that a finalizer holds.
        self._ignored: set[str] = set()

    async def run(self) -> None:
        """Deletes pods until cancelled."""
        await controller.run("clear up a refused pod", self.due, self._clear_up, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, PodRecord]:
        """Returns the pods to delete, by UID."""
        refused = self._ledger.refused
        self._ignored &= refused.keys()
        return {
            uid: record
            for uid, record in refused.items()
            if uid not in self._ignored and record.status.refusal == TOPOLOGY_AFFINITY_ERROR
        }

    async def _clear_up(self, record: PodRecord) -> None:
        path = paths.pod(record.namespace, record.name)
        try:
            pod: dict[str, Any] = json.loads(await self._api.request("GET", path, timeout=controller.REQUEST_TIMEOUT_S))
            metadata, status = pod["metadata"], pod.get("status") or {}
            if metadata.get("uid") != record.uid or status.get("reason") != TOPOLOGY_AFFINITY_ERROR:
                return
            is_ending = "deletionTimestamp" in metadata
            if is_ending or not any(owner.get("controller") for owner in metadata.get("ownerReferences") or ()):
                self._ignored.add(record.uid)
                return
            note = (
                f"The kubelet of {record.node} refused the pod ({status.get('message') or record.status.refusal}). Its "
                "controller makes another, so it is deleted."
            )
            await events.post(self._api, record, "RefusedPodDeleted", note, kind="Warning", action="Delete")
            options = {"preconditions": {"uid": record.uid}}
            await self._api.request(
                "DELETE", path, body=msgspec.json.encode(options), timeout=controller.REQUEST_TIMEOUT_S
            )
        except ApiError as exc:
            # Deleted, or a new pod of the name exists.
            if exc.status not in (404, 409):
                raise
            return
        self._ledger.count("refused_pod_deleted")
