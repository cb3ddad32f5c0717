"""The write of `status.nominatedNodeName`, by which kube-scheduler keeps the room of a node for a pod.

Several write it: kube-scheduler while it evicts, the preemptor while it does, and the nominator ahead of both. Each
leaves what it has not written itself. So a write names the version of the pod that it was decided on, and an annotation
beside it is there exactly if it was the nominator: `managedFields` would tell too, but every pod of the cluster would
have to be decoded with them. A status patch may change annotations.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.cluster.pods.records import NOMINATED_ANNOTATION, PodRecord
from topowise_scheduler.leader import controller

# Of another version, gone, or another one of its name (client-go, PodControllerRefManager.ReleasePod).
_CHANGED: Final = (404, 409, 422)


async def nominate(api: Api, record: PodRecord, node: str, *, version: str, ahead: bool = False) -> bool:
    """Keep the room of a node for a pod, or of none (""); `ahead` of kube-scheduler's first try.

    False if the pod is not of this version any more. Raises ApiError.
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
