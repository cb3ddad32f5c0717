"""Writes `status.nominatedNodeName`, by which kube-scheduler reserves resources of a node for a pod.

The field has several writers: kube-scheduler and the preemptor while they evict, and a placement before kube-scheduler
looks at the pod. Each leaves the values of the others alone, so a write names the resourceVersion that it was decided
on.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.controllers import controller
from topowise_scheduler.ledger.pods.records import PodRecord

CHANGED: Final = (404, 409, 422)
"""Statuses of a write to a pod of another version, to a deleted pod, or to a new pod of the name (client-go,
PodControllerRefManager.ReleasePod)."""


class _Written(msgspec.Struct):
    class Metadata(msgspec.Struct):
        resourceVersion: str = ""

    metadata: Metadata


_decode = msgspec.json.Decoder(_Written).decode


async def nominate(api: Api, record: PodRecord, node: str, *, version: str) -> str:
    """Nominates a pod for a node, or for none ("").

    Returns the pod's new version, "" if the pod has another version by now. Raises ApiError.
    """
    metadata = {"uid": record.uid, "resourceVersion": version}
    body = {"metadata": metadata, "status": {"nominatedNodeName": node or None}}
    path = paths.pod(record.namespace, record.name, "status")
    try:
        answer = await api.request(
            "PATCH",
            path,
            body=msgspec.json.encode(body),
            content_type=MERGE_PATCH,
            timeout=controller.REQUEST_TIMEOUT_S,
        )
        return _decode(answer).metadata.resourceVersion
    except msgspec.DecodeError as exc:
        raise ApiError(0, "BadAnswer", f"is not a pod: {exc}", request=f"PATCH {path}") from exc
    except ApiError as exc:
        if exc.status not in CHANGED:
            raise
        return ""
