"""Removes the start-up taint of a node once the node has a report.

A new node is Ready before its exporter has reported it, and until then pods may go there that its kubelet refuses. So
an operator registers new nodes with the taint `topowise.io/unreported:NoSchedule` (`registerWithTaints` of the kubelet
or the node group). This service removes the taint, not the exporter: only the process that answers kube-scheduler
knows that it has the report. It also keeps the permission to patch nodes off every node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.controllers import controller
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import STARTUP_TAINT, Nodes

_INTERVAL_S: Final = 0.5


class StartupTaint:
    """Removes the taint from nodes that have a report."""

    def __init__(self, api: Api, ledger: Ledger, nodes: Nodes) -> None:
        self._api = api
        self._ledger = ledger
        self._nodes = nodes

    async def run(self) -> None:
        """Removes taints until cancelled."""
        await controller.run("remove a start-up taint", self.due, self._remove, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, str]:
        """Returns the nodes with the taint and with a report that their kubelet confirms."""
        return {name: name for name in self._nodes.tainted if self._ledger.reports.is_confirmed(name)}

    async def _remove(self, name: str) -> None:
        path = paths.path(paths.NODES, name)
        try:
            node: dict[str, Any] = json.loads(
                await self._api.request("GET", path, timeout=controller.REQUEST_TIMEOUT_S)
            )
            taints = node["spec"].get("taints") or []
            remaining = [taint for taint in taints if taint.get("key") != STARTUP_TAINT]
            if len(remaining) == len(taints):
                return
            # The patch replaces the whole list of taints. With the version it fails after a change by another client.
            version = node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": remaining or None}}
            await self._api.request(
                "PATCH",
                path,
                body=msgspec.json.encode(body),
                content_type=MERGE_PATCH,
                timeout=controller.REQUEST_TIMEOUT_S,
            )
        except ApiError as exc:
            if exc.status != 404:
                raise
            return
        self._ledger.count("startup_taint_removed")
