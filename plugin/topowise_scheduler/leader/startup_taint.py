"""A node is taken only when it is known: its start-up taint goes with its first report.

A node that joins is Ready before its exporter has reported it, and as long as nobody has, pods may go there that its
kubelet refuses. So an operator has new nodes register with the taint `topowise.io/unreported:NoSchedule` (the kubelet's
`registerWithTaints`, or the node group's), and it is removed here. It is this service that removes it, and not the
exporter, as only who answers kube-scheduler knows that it has the report; and one identity may then patch nodes instead
of one on every node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import STARTUP_TAINT, Nodes
from topowise_scheduler.leader import controller

_INTERVAL_S: Final = 0.5


class StartupTaint:
    """Removes the taint from nodes that are reported."""

    def __init__(self, api: Api, ledger: Ledger, nodes: Nodes) -> None:
        self._api = api
        self._ledger = ledger
        self._nodes = nodes

    async def run(self) -> None:
        """Until cancelled."""
        await controller.run("remove a start-up taint", self.due, self._remove, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, str]:
        """Nodes that have the taint and a report that their kubelet confirms."""
        return {name: name for name in self._nodes.tainted if self._ledger.reports.is_confirmed(name)}

    async def _remove(self, name: str) -> None:
        path = paths.path(paths.NODES, name)
        try:
            found: dict[str, Any] = json.loads(
                await self._api.request("GET", path, timeout=controller.REQUEST_TIMEOUT_S)
            )
            taints = found["spec"].get("taints") or []
            kept = [taint for taint in taints if taint.get("key") != STARTUP_TAINT]
            if len(kept) == len(taints):
                return
            # Taints are one list, so that somebody else's change in between must make this one fail.
            version = found["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": kept or None}}
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
