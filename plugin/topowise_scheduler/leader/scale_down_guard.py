"""Disables the scale-down of nodes whose pods no other node would align.

An autoscaler removes a node if the pods of the node fit elsewhere by their sums. Pods that a kubelet has aligned may
fit nowhere then: they wait, or are refused. So the leader places the pods to align of each node on copies of the other
nodes, as `fit-together` does, and annotates the node while they do not all fit. An annotation of another writer is
left alone.

Invariant: the annotations on Nodes are the state. Each node is judged by itself: two nodes that could be removed one at
a time may not both be removable at once, and are judged again after the first is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from topowise.errors import ApiError, ParseError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime.event_loop import sliced
from topowise_scheduler import kube_scheduler
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.gates.gate import may_get_exclusive
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.configuration import ScaleDownGuard as Settings
from topowise_scheduler.fit_together.group_placement import GroupPlacer
from topowise_scheduler.kube_scheduler import GUARD_ANNOTATION, SCALE_DOWN_DISABLED, Pod
from topowise_scheduler.leader import controller, pod_lists
from topowise_scheduler.presentation.explain.cluster_view import ClusterView
from topowise_scheduler.scale_up.node_groups import is_daemon

DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
"""Annotation of a Node that Karpenter does not disrupt voluntarily."""
_KEYS: Final = (GUARD_ANNOTATION, SCALE_DOWN_DISABLED, DO_NOT_DISRUPT)
_INTERVAL_S: Final = 5.0
# Seconds of work in a pass, 4 % of the interval; the remaining nodes come in later passes.
_SHARE_S: Final = 0.2
_PASS: Final = "nodes"


class ScaleDownGuard:
    """Annotates nodes, at most `settings.most_nodes` at a time. `clock` gives seconds, monotonic."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        answers: Answers,
        view: ClusterView,
        nodes: Nodes,
        settings: Settings,
        *,
        not_ready: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._ledger, self._answers, self._view, self._nodes = ledger, answers, view, nodes
        self._settings = settings
        self._not_ready = not_ready
        self._clock = clock
        # By node: what `ClusterView.changes` was when the node was judged last.
        self._judged_at: dict[str, tuple[int, int]] = {}

    async def run(self) -> None:
        """Works until cancelled."""
        await controller.run("guard nodes against a scale-down", self.due, self.sync, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, str]:
        """Returns the single item of a pass, none while the cluster is not known."""
        return {} if self._not_ready() else {_PASS: _PASS}

    async def sync(self, _: str = _PASS) -> None:
        """Judges some nodes, first the annotated nodes. Raises ApiError."""
        changes, until = self._view.changes, self._clock() + _SHARE_S
        self._judged_at = {name: at for name, at in self._judged_at.items() if name in self._nodes}
        names = [name for name in self._nodes if self._judged_at.get(name) != changes]
        names.sort(key=lambda name: (name not in self._nodes.guarded, self._judged_at.get(name, (-1, -1))))
        for name in names:
            await self._judge(name)
            self._judged_at[name] = changes
            if self._clock() >= until:
                return

    async def _judge(self, name: str) -> None:
        """Annotates a node, or removes the annotations, if that is due. Raises ApiError."""
        node = self._nodes.get(name)
        if node is None or node.guard == "theirs":
            return
        is_needed = await self.is_needed(name)
        may_guard = len(self._nodes.guarded) < self._settings.most_nodes
        if is_needed != (node.guard == "ours") and (may_guard or not is_needed):
            await self._annotate(name, is_guarded=is_needed)
            # The watch brings the same later.
            (self._nodes.guarded.add if is_needed else self._nodes.guarded.discard)(name)

    async def is_needed(self, name: str) -> bool:
        """Returns whether a pod to align of the node would not be aligned on any other node. Raises ApiError."""
        aligned = {record.uid for record in self._ledger.pods_on(name) if may_get_exclusive(record)}
        if not aligned:
            return False
        pods = [
            kube_scheduler.unbound(pod)
            for pod in await pod_lists.on_node(self._api, name)
            if pod.metadata.uid in aligned and not is_daemon(pod)
        ]
        names = [other for other in self._view.names if other != name]
        # Evicted pods come back in any order; these two differ the most.
        return bool(pods) and not (await self._fit(pods, names) and await self._fit(pods[::-1], names))

    async def _fit(self, pods: Sequence[Pod], names: Sequence[str]) -> bool:
        placer = GroupPlacer(self._answers, self._view, pods, names)
        try:
            await sliced(placer.steps())
        except ParseError:
            # The node is left as it is for a pod that cannot be read.
            return True
        return placer.placement.fits

    async def _annotate(self, name: str, *, is_guarded: bool) -> None:
        body = {"metadata": {"annotations": dict.fromkeys(_KEYS, "true" if is_guarded else None)}}
        try:
            await self._api.request(
                "PATCH",
                paths.path(paths.NODES, name),
                body=msgspec.json.encode(body),
                content_type=MERGE_PATCH,
                timeout=controller.REQUEST_TIMEOUT_S,
            )
        except ApiError as exc:
            if exc.status != 404:
                raise
            return
        self._ledger.count("scale_down_guarded" if is_guarded else "scale_down_released")
