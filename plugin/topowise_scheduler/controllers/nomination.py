"""Writes `status.nominatedNodeName`, by which kube-scheduler reserves resources of a node for a pod.

The field has three writers: kube-scheduler and the preemptor while they evict, and the nominator before both. Each
writer leaves the values of the other writers alone. So a write names the resourceVersion that it was decided on, and an
annotation marks the nominations of the nominator. `managedFields` would show the writer too, but then they would have
to be decoded for every pod. A status patch may change annotations.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.controllers import controller
from topowise_scheduler.ledger.pods.records import NOMINATED_ANNOTATION, PodRecord

# Another version, deleted, or a new pod of the name (client-go, PodControllerRefManager.ReleasePod).
_CHANGED: Final = (404, 409, 422)


async def nominate(api: Api, record: PodRecord, node: str, *, version: str, ahead: bool = False) -> bool:
    """Nominates a pod for a node, or for none (""); `ahead` of kube-scheduler's first attempt.

    Returns False if the pod has another version by now. Raises ApiError.
    """
    metadata = {
        "uid": record.uid,
        "resourceVersion": version,
        "annotations": {NOMINATED_ANNOTATION: (node or None) if ahead else None},
    }
    body = {"metadata": metadata, "status": {"nominatedNodeName": node or None}}
    try:
        await api.request(
            "PATCH",
            paths.pod(record.namespace, record.name, "status"),
            body=msgspec.json.encode(body),
            content_type=MERGE_PATCH,
            timeout=controller.REQUEST_TIMEOUT_S,
        )
    except ApiError as exc:
        if exc.status not in _CHANGED:
            raise
        return False
    return True
