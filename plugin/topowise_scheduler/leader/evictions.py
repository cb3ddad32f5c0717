"""Evictions by policy/v1, which respects budgets and gives a pod its time to end."""

from __future__ import annotations

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.leader import controller


async def evict(api: Api, victim: PodRecord, *, is_dry: bool = False) -> bool:
    """False if it is not the pod that we know, or a budget is against it. Raises ApiError for anything else."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": victim.name, "namespace": victim.namespace},
        "deleteOptions": {"preconditions": {"uid": victim.uid}},
    }
    path = paths.pod(victim.namespace, victim.name, "eviction")
    try:
        await api.request(
            "POST",
            path,
            query={"dryRun": "All"} if is_dry else {},
            body=msgspec.json.encode(body),
            timeout=controller.REQUEST_TIMEOUT_S,
        )
    except ApiError as exc:
        if exc.status not in (404, 409, 429):
            raise
        return False
    return True
