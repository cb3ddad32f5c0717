"""Evictions by policy/v1, which respects disruption budgets and the termination grace period."""

from __future__ import annotations

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise_scheduler.controllers import controller
from topowise_scheduler.ledger.pods.records import PodRecord


async def evict(api: Api, victim: PodRecord, *, is_dry: bool = False) -> bool:
    """Evicts a pod. Returns False if the pod is gone or a budget refuses. Raises ApiError for any other failure."""
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
