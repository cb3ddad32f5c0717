"""Labels the nodes that Karpenter must not place a placeholder on: all nodes but those added for placeholders.

A node without the label counts for a placeholder as its node, so Karpenter adds no second node for it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.kube_scheduler import Node
from topowise_scheduler.leader import controller
from topowise_scheduler.scale_up.placeholders import KNOWN_NODE_LABEL

_BODY = msgspec.json.encode({"metadata": {"labels": {KNOWN_NODE_LABEL: ""}}})


async def mark(api: Api, nodes: Iterable[Node]) -> None:
    """Labels the nodes that lack the label. Raises ApiError."""
    for node in nodes:
        if KNOWN_NODE_LABEL in node.labels:
            continue
        path = paths.path(paths.NODES, node.name)
        try:
            await api.request("PATCH", path, body=_BODY, content_type=MERGE_PATCH, timeout=controller.REQUEST_TIMEOUT_S)
        except ApiError as exc:
            if exc.status != 404:
                raise
