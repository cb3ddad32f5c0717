"""Events about pods, as `kubectl describe pod` shows them (events.k8s.io/v1)."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from topowise.kube import paths
from topowise.kube.api import Api
from topowise.text import escaped
from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.leader import chore

_REPORTER: Final = "topowise-scheduler"
# What the API server takes at the most.
_LONGEST_NOTE: Final = 1000
_LONGEST_NAME: Final = 200


async def post(
    api: Api, record: PodRecord, reason: str, note: str, *, kind: Literal["Normal", "Warning"], action: str
) -> None:
    """Raises ApiError."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    name = record.name[:_LONGEST_NAME].rstrip(".-")
    event = {
        # The API server takes no generateName that ends with a dot, as names of events have one before what is random.
        "metadata": {"name": f"{name}.{secrets.token_hex(8)}", "namespace": record.namespace},
        "eventTime": now,
        "reportingController": f"topowise.io/{_REPORTER}",
        "reportingInstance": _REPORTER,
        "action": action,
        "reason": reason,
        "type": kind,
        "note": escaped(note)[:_LONGEST_NOTE],
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": record.namespace,
            "name": record.name,
            "uid": record.uid,
        },
    }
    path = paths.path("/apis/events.k8s.io/v1/namespaces", record.namespace, "events")
    await api.request("POST", path, body=msgspec.json.encode(event), timeout=chore.REQUEST_TIMEOUT_S)
