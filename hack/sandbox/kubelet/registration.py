"""A node's own object, as a kubelet registers it and keeps its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from sandbox.kubelet.node import EmulatedNode
from topowise.errors import ApiError
from topowise.kube.api import MERGE_PATCH, Api

Taints = Sequence[Mapping[str, str]]


async def register(api: Api, name: str, node: EmulatedNode, taints: Taints = ()) -> None:
    """Creates the Node with `taints`, or updates the status of an existing Node, without taints as a kubelet does.
    Raises ApiError."""
    request = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": list(taints)},
        "status": {
            "capacity": node.capacity(),
            "allocatable": node.allocatable(),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": "v1.36.2", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }
    try:
        await api.request("POST", "/api/v1/nodes", body=msgspec.json.encode(request))
    except ApiError as exc:
        if exc.status != 409:
            raise
    body = msgspec.json.encode({"status": request["status"]})
    await api.request("PATCH", f"/api/v1/nodes/{name}/status", body=body, content_type=MERGE_PATCH)
