"""The pods that need a new node: they wait only for alignment, long enough, and no node is requested for them.

An autoscaler does not see pods with the gate of this service. So such a pod may also lack resources in sum, or devices
of claims that are allocated here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Final

from topowise.errors import ParseError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime import clock
from topowise.runtime.event_loop import collected, sliced
from topowise_scheduler.controllers import pod_lists
from topowise_scheduler.controllers.controller import in_turn
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.waiting import looking
from topowise_scheduler.ledger.gates.gates import Gates
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.fit_together import GroupPlacer
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Pod

# Pods and classes of a pass; the remaining ones come in later passes.
_MOST_PODS: Final = 1024
_MOST_CLASSES: Final = 32
PATIENCE_S: Final = 60.0
"""Seconds that a pod must wait only for alignment, or a Workload of Kueue for a place of its pods, before a node is
requested: a node costs money, and pods that end make room within this time in a busy cluster."""


class Demand:
    """`patience`: for how long (seconds) a pod has to wait only for alignment. `clock` gives seconds, monotonic."""

    def __init__(
        self,
        api: Api,
        view: ClusterView,
        *,
        patience: float = PATIENCE_S,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._api = api
        self._ledger, self._view = view.ledger, view
        self._patience = patience
        self._clock = clock
        # By UID: since when the pod waits only for alignment.
        self._since: dict[str, float] = {}
        # When each class was looked at last.
        self._looked_at: dict[Hashable, float] = {}
        self._causes: dict[Hashable, str] = {}

    async def pods(self, requested: Collection[str], used: Mapping[str, int]) -> list[PodRecord]:
        """Returns the pods that need a node, without the `requested` UIDs. `used`: by namespace, as in turns.py; the
        pods whose turn comes first are examined. Raises ApiError."""
        now = self._clock()
        gates = self._ledger.gates
        waiting = [record for record in self._ledger.waiting.values() if is_examined(gates, record)]
        await self._look(waiting, now)
        wanted = [record for record in waiting if record.group or self._needs_node(record)]
        self._since = {record.uid: self._since.get(record.uid, now) for record in wanted}
        ready = [
            record
            for record in wanted
            if now - self._since[record.uid] >= self._patience and record.uid not in requested
        ]
        ready = in_turn(ready, used)[:_MOST_PODS]
        gangs = [members async for members in self._gangs(ready)]
        return [*(record for record in ready if not record.group), *(pod for members in gangs for pod in members)]

    async def _look(self, waiting: Sequence[PodRecord], now: float) -> None:
        """Updates the causes: why the pods of each class wait."""
        class_of = self._ledger.gates.class_of
        classes = {class_of(record): record for record in waiting if not record.group}
        self._looked_at = {pod_class: self._looked_at.get(pod_class, 0.0) for pod_class in classes}
        self._causes = {pod_class: cause for pod_class, cause in self._causes.items() if pod_class in classes}
        looked_at = {record.uid: self._looked_at[pod_class] for pod_class, record in classes.items()}
        for record in in_turn(classes.values(), {}, looked_at)[:_MOST_CLASSES]:
            pod_class = class_of(record)
            looked = (await collected(looking(self._view, record)))[0]
            self._causes[pod_class] = "alignment" if looked.lacks_only_alignment else looked.cause
            self._looked_at[pod_class] = now

    def _needs_node(self, record: PodRecord) -> bool:
        """Returns whether the pod waits for what a new node has, and no autoscaler adds one by itself."""
        cause = self._causes.get(self._ledger.gates.class_of(record))
        return cause == "alignment" or (cause == "resources" and record.status.is_placeable)

    async def _gangs(self, ready: Sequence[PodRecord]) -> AsyncIterator[list[PodRecord]]:
        """Yields of each gang the pods that do not fit beside its other pods."""
        for group in dict.fromkeys(record.group for record in ready if record.group):
            members = {record.uid: record for record in self._ledger.unscheduled.values() if record.group == group}
            namespace = next(record.namespace for record in ready if record.group == group)
            path = paths.path(paths.NAMESPACES, namespace, "pods")
            pods = await pod_lists.read(self._api, path, {"fieldSelector": "spec.nodeName=", "resourceVersion": "0"})
            unbound = [kube_scheduler.unbound(pod) for pod in pods if pod.metadata.uid in members]
            yield [members[pod.metadata.uid] for pod in await left_over(self._view.trial, unbound)]


async def left_over(cluster: Trial, pods: Sequence[Pod]) -> list[Pod]:
    """Returns the pods that fit on no node of the cluster beside the remaining pods."""
    without_node: list[Pod] = []
    remaining = list(pods)
    while remaining:
        placer = GroupPlacer(cluster, remaining, cluster.names)
        try:
            await sliced(placer.steps())
        except ParseError:
            return []
        if placer.placement.fits:
            break
        # Once a pod is refused, further pods of its template are refused too.
        at = len(placer.placement.placements)
        refused = [pod for pod in remaining[at:] if pod.spec == remaining[at].spec]
        without_node += refused
        uids = {pod.metadata.uid for pod in refused}
        remaining = [pod for pod in remaining if pod.metadata.uid not in uids]
    return without_node


def units(records: Sequence[PodRecord]) -> Iterator[list[PodRecord]]:
    """Yields the pods that need nodes independently of each other, then the pods of each gang."""
    for group in ("", *dict.fromkeys(record.group for record in records if record.group)):
        if members := [record for record in records if record.group == group]:
            yield members


def is_examined(gates: Gates, record: PodRecord) -> bool:
    """Returns whether topowise checks all requirements of the pod: it would wait on a new node for the others."""
    constraints = record.constraints
    return (
        not record.status.leaving
        and record.needs is not None
        and constraints is not None
        and not gates.unexamined(constraints.unexamined)
    )
