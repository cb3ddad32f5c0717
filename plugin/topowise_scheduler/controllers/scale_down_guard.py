"""Disables the scale-down of nodes whose pods no other node would align.

An autoscaler removes a node if the pods of the node fit elsewhere by their sums. Pods that a kubelet has aligned may
fit nowhere then: they wait, or are refused. So the leader places the pods to align of each node on copies of the other
nodes, as `fit-together` does, and annotates the node while they do not all fit. An annotation of another writer is
left alone.

Autoscalers remove several nodes at once: all empty nodes, and a node with pods before the pods of the node before are
placed. So nodes are judged together (scale_up/relocations.py): the nodes to which the pods of others would go are
annotated as well, as far as half of the limit allows. Beyond that a node is judged by itself.

Invariant: the annotations on Nodes are the state. A new leader makes the relocations again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from topowise.errors import ParseError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise.runtime.event_loop import sliced
from topowise.runtime.log import OncePerChange, kv
from topowise_scheduler.controllers import controller, objects, pod_lists
from topowise_scheduler.ledger.gates.gate import may_get_exclusive
from topowise_scheduler.overlay.fit_together import GroupPlacer
from topowise_scheduler.overlay.overlay import NodeCopy, Overlay
from topowise_scheduler.overlay.scale_up.relocations import Relocations
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import GUARD_ANNOTATION, SCALE_DOWN_DISABLED, Pod, is_daemon

log = logging.getLogger(__name__)

DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
"""Annotation of a Node that Karpenter does not disrupt voluntarily."""
_KEYS: Final = (GUARD_ANNOTATION, SCALE_DOWN_DISABLED, DO_NOT_DISRUPT)
_INTERVAL_S: Final = 5.0
# Seconds of work in a pass, 4 % of the interval; the remaining nodes come in later passes.
_SHARE_S: Final = 0.2
_PASS: Final = "nodes"
# The most nodes that are annotated at the same time: a mistake must not end all scale-down of a large cluster.
_MOST_NODES: Final = 100
# Half of the limit is for nodes whose own pods would fit nowhere.
_SHARE_OF_OTHERS: Final = 2
_LIMITED: Final = "Nodes are judged by themselves, because no further nodes may stay for them"


class ScaleDownGuard:
    """Annotates nodes, at most `most_nodes` at a time. `clock` gives seconds, monotonic."""

    def __init__(
        self,
        api: Api,
        cluster: Trial,
        *,
        most_nodes: int = _MOST_NODES,
        not_ready: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._api = api
        self._cluster, self._ledger, self._nodes = cluster, cluster.ledger, cluster.nodes
        self._most_nodes = most_nodes
        self._not_ready = not_ready
        self._clock = clock
        # By node: what `Trial.changes` was when the node was judged last.
        self._judged_at: dict[str, tuple[int, int, int]] = {}
        self._relocations = Relocations()
        # By node that may go alone, beyond the limit: the nodes that would take its pods then.
        self._alone: dict[str, frozenset[str]] = {}
        # What `Trial.changes` was when the relocations were checked last.
        self._checked_at = (0, 0, 0)
        self._problems = OncePerChange(clock)

    async def run(self) -> None:
        """Works until cancelled."""
        await controller.run("guard nodes against a scale-down", self.due, self.sync, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, str]:
        """Returns the single item of a pass, none while the cluster is not known."""
        return {} if self._not_ready() else {_PASS: _PASS}

    async def sync(self, _: str = _PASS) -> None:
        """Judges some nodes, first the nodes whose pods have lost their places, then the annotated nodes. Raises
        ApiError."""
        changes, until = self._cluster.changes, self._clock() + _SHARE_S
        of_states, of_nodes = self._checked_at[:2]
        changed = {*self._ledger.node_states.changed_since(of_states), *self._nodes.changed_since(of_nodes)}
        self._checked_at = changes
        self._relocations.drop_changed(changed)
        self._alone = {
            name: hosts for name, hosts in self._alone.items() if name not in changed and hosts.isdisjoint(changed)
        }
        self._judged_at = {name: at for name, at in self._judged_at.items() if name in self._nodes}
        names = [name for name in self._nodes if self._is_due(name, changes)]
        names.sort(key=self._urgency)
        for name in names:
            await self._judge(name)
            self._judged_at[name] = changes
            if self._clock() >= until:
                return

    def _is_due(self, name: str, changes: tuple[int, int, int]) -> bool:
        if self._relocations.is_host(name):
            return name not in self._nodes.guarded
        if name in self._alone and not self._may_guard(1, share=_SHARE_OF_OTHERS):
            return False
        return name not in self._relocations and self._judged_at.get(name) != changes

    def _urgency(self, name: str) -> tuple[bool, bool, tuple[int, int, int], int]:
        pods = len(self._ledger.pods_on(name))
        is_at_risk = pods > 0 and name in self._judged_at and name not in self._nodes.guarded
        # Of equally urgent nodes an autoscaler removes the emptier node first.
        return not is_at_risk, name not in self._nodes.guarded, self._judged_at.get(name, (-1, -1, -1)), pods

    async def _judge(self, name: str) -> None:
        """Annotates a node, or removes the annotations, if that is due. Raises ApiError."""
        node = self._nodes.get(name)
        if node is None or node.guard == "theirs":
            return
        is_needed = self._relocations.is_host(name) or await self._is_needed(name)
        if is_needed != (node.guard == "ours") and (self._may_guard(1) or not is_needed):
            await self._annotate(name, is_guarded=is_needed)

    def _may_guard(self, more: int, *, share: int = 1) -> bool:
        """Returns whether so many further nodes may be annotated, within this part (1 / `share`) of the limit."""
        return len(self._nodes.guarded) + more <= self._most_nodes // share

    async def _is_needed(self, name: str) -> bool:
        """Returns whether a pod to align of the node would not be aligned on another node that stays. Raises
        ApiError."""
        aligned = {record.uid for record in self._ledger.pods_on(name) if may_get_exclusive(record)}
        if not aligned:
            return False
        pods = [
            kube_scheduler.unbound(pod)
            for pod in await pod_lists.on_node(self._api, name)
            if pod.metadata.uid in aligned and not is_daemon(pod)
        ]
        if not pods:
            return False
        others = [other for other in self._cluster.names if other != name]
        alone = await self._fit(pods, others, {})
        if alone is None:
            return True
        if await self._relocate(name, pods, others):
            return False
        # The node may go, but not together with others.
        if self._may_guard(0 if name in self._nodes.guarded else 1, share=_SHARE_OF_OTHERS):
            return True
        self._alone[name] = frozenset(alone)
        if self._problems.is_change(_LIMITED):
            log.warning(_LIMITED, extra=kv(mostNodes=self._most_nodes))
        return False

    async def _relocate(self, name: str, pods: Sequence[Pod], others: Sequence[str]) -> bool:
        """Finds hosts for the pods of a node, beside the pods of the nodes that may be removed with it, and annotates
        the hosts. Returns whether there are enough. Raises ApiError."""
        may_stay = [other for other in others if other not in self._relocations]
        stays = [other for other in may_stay if self._stays(other)]
        # Another node in place of an annotated node is nothing gained.
        may_grow = name not in self._nodes.guarded and self._may_guard(1, share=_SHARE_OF_OTHERS)
        for names in (stays, may_stay) if may_grow else (stays,):
            copies = await self._fit(pods, names, self._relocations.copies)
            if copies is None:
                continue
            new = [host for host in copies if not self._stays(host)]
            if new and not self._may_guard(len(new), share=_SHARE_OF_OTHERS):
                return False
            for host in new:
                await self._annotate(host, is_guarded=True)
            self._relocations.put(name, copies)
            return True
        return False

    def _stays(self, name: str) -> bool:
        """Returns whether the scale-down of a node is disabled."""
        node = self._nodes.get(name)
        return node is not None and (name in self._nodes.guarded or node.guard == "theirs")

    async def _fit(
        self, pods: Sequence[Pod], names: Sequence[str], before: Mapping[str, NodeCopy]
    ) -> Mapping[str, NodeCopy] | None:
        """Returns copies of the nodes that take the pods, None if the pods do not fit on these nodes."""
        # Evicted pods come back in any order; these two differ the most.
        placed = [await self._placed(order, names, before) for order in (pods, pods[::-1])]
        return None if None in placed else placed[0]

    async def _placed(
        self, pods: Sequence[Pod], names: Sequence[str], before: Mapping[str, NodeCopy]
    ) -> Mapping[str, NodeCopy] | None:
        placer = GroupPlacer(self._cluster, pods, names, Overlay(self._cluster, before))
        try:
            await sliced(placer.steps())
        except ParseError:
            # The node is left as it is for a pod that cannot be read.
            return {}
        if not placer.placement.fits:
            return None
        return {placement.node: placer.overlay.changed[placement.node] for placement in placer.placement.placements}

    async def _annotate(self, name: str, *, is_guarded: bool) -> None:
        body = {"metadata": {"annotations": dict.fromkeys(_KEYS, "true" if is_guarded else None)}}
        if not await objects.patch(self._api, paths.path(paths.NODES, name), body):
            return
        # The watch brings the same later.
        (self._nodes.guarded.add if is_guarded else self._nodes.guarded.discard)(name)
        self._ledger.count("scale_down_guarded" if is_guarded else "scale_down_released")
