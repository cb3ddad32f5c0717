"""Labels the nodes that Karpenter must not place a placeholder on: all nodes but those added for placeholders.

A node without the label counts for a placeholder as its node, so Karpenter adds no second node for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topowise.kube import paths
from topowise.kube.api import Api
from topowise_scheduler.controllers import objects
from topowise_scheduler.overlay.scale_up.placeholders import KNOWN_NODE_LABEL
from topowise_scheduler.verdicts.kube_scheduler import Node

_LABELLED: Final = {"metadata": {"labels": {KNOWN_NODE_LABEL: ""}}}


async def mark(api: Api, nodes: Iterable[Node]) -> None:
    """Labels the nodes that lack the label. Raises ApiError."""
    for node in nodes:
        if KNOWN_NODE_LABEL in node.labels:
            continue
        await objects.patch(api, paths.path(paths.NODES, node.name), _LABELLED)
