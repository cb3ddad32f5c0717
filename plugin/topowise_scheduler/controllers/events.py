"""Events about pods and nodes, as `kubectl describe` shows them (events.k8s.io/v1)."""

from __future__ import annotations

import secrets
from typing import Final, Literal

import msgspec

from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise.text import escaped
from topowise_scheduler.controllers import controller
from topowise_scheduler.ledger.pods.records import PodRecord

_REPORTER: Final = "topowise-scheduler"
# The API server refuses longer notes.
_LONGEST_NOTE: Final = 1000
_LONGEST_NAME: Final = 200
# Namespace of events about cluster-scoped objects.
_DEFAULT_NAMESPACE: Final = "default"


async def post(
    api: Api, record: PodRecord, reason: str, note: str, *, kind: Literal["Normal", "Warning"], action: str
) -> None:
    """Posts an event about a pod. Raises ApiError."""
    regarding = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": record.namespace,
        "name": record.name,
        "uid": record.uid,
    }
    await _post(api, record.namespace, regarding, reason, note, kind=kind, action=action)


async def post_about_node(api: Api, name: str, reason: str, note: str, *, action: str) -> None:
    """Posts a warning about a Node. Raises ApiError."""
    # Kubelets write the name of a Node as its UID, and kubectl finds events about a Node by that.
    regarding = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}
    await _post(api, _DEFAULT_NAMESPACE, regarding, reason, note, kind="Warning", action=action)


async def post_about_workload(
    api: Api, version: str, namespace: str, name: str, uid: str, reason: str, note: str
) -> None:
    """Posts a warning about a Workload of Kueue. Raises ApiError."""
    kind = {"apiVersion": f"kueue.x-k8s.io/{version}", "kind": "Workload"}
    regarding = {**kind, "namespace": namespace, "name": name, "uid": uid}
    await _post(api, namespace, regarding, reason, note, kind="Warning", action="CheckAdmission")


async def _post(
    api: Api,
    namespace: str,
    regarding: dict[str, str],
    reason: str,
    note: str,
    *,
    kind: Literal["Normal", "Warning"],
    action: str,
) -> None:
    now = clock.utc_now().isoformat(timespec="microseconds").replace("+00:00", "Z")
    name = regarding["name"][:_LONGEST_NAME].rstrip(".-")
    event = {
        # The API server refuses a generateName that ends with a dot, which precedes the suffix of event names.
        "metadata": {"name": f"{name}.{secrets.token_hex(8)}", "namespace": namespace},
        "eventTime": now,
        "reportingController": f"topowise.io/{_REPORTER}",
        "reportingInstance": _REPORTER,
        "action": action,
        "reason": reason,
        "type": kind,
        "note": escaped(note)[:_LONGEST_NOTE],
        "regarding": regarding,
    }
    path = paths.path("/apis/events.k8s.io/v1/namespaces", namespace, "events")
    await api.request("POST", path, body=msgspec.json.encode(event), timeout=controller.REQUEST_TIMEOUT_S)
