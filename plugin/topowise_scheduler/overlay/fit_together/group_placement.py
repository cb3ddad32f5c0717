"""Places pods one after the other on copies of the nodes: do all of them fit, aligned?

Pods go where kube-scheduler would send them: to the node with the best score for their template that admits them beside
the pods before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from topowise_scheduler.kubelet import allocated_nodes
from topowise_scheduler.kubelet.allocated_nodes import Placed
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.candidates import Classes
from topowise_scheduler.overlay.overlay import Overlay
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts.kube_scheduler import RESOURCE_CLAIMS, Pod
from topowise_scheduler.verdicts.refusals import Reason

MOST_PODS: Final = 1024
"""The most pods of a request; each new template costs milliseconds in a large cluster."""


class PodPlacement(msgspec.Struct, frozen=True):
    """The node of a pod, and the placements of its containers."""

    record: PodRecord
    node: str
    containers: Mapping[str, Placed]


class GroupPlacement(msgspec.Struct, frozen=True):
    """The placed pods. `refused` has the number of nodes by reason against the first pod that is not placed, None if
    all are placed. `not_examined`: requirements of pods that the placement does not consider. `refusing` is the node of
    a pod that cannot be reserved there, "" if no reservation was tried."""

    placements: Sequence[PodPlacement]
    refused: Mapping[Reason, int] | None = None
    not_examined: Sequence[str] = ()
    refusing: str = ""

    @property
    def fits(self) -> bool:
        """Whether all pods are placed."""
        # No node may be left to refuse the pod.
        return self.refused is None


class GroupPlacer:
    """Places pods in order, in steps between which the caller can do other work. Reserves nothing.

    `overlay`: the cluster, or a copy of it on which pods were placed before. Raises ParseError for a pod that cannot be
    read.
    """

    def __init__(
        self, cluster: Trial, group: Sequence[Pod], names: Sequence[str], overlay: Overlay | None = None
    ) -> None:
        self._cluster = cluster
        self._pods = group
        self._classes = Classes(cluster, names)
        self.overlay = overlay or Overlay(cluster)
        """The cluster with the pods that are placed so far."""
        self.placement = GroupPlacement(())

    def steps(self) -> Iterator[None]:
        """Tries one node a step; `placement` is the answer after the last step."""
        placements: list[PodPlacement] = []
        not_examined: dict[str, None] = {}
        for pod in self._pods:
            record = self._cluster.record(pod)
            yield from self._classes.steps(pod, record)
            candidates = self._classes.of(pod, record)
            not_examined |= dict.fromkeys(self._unexamined(record))
            placed = yield from candidates.placing(self.overlay, record)
            if placed is None:
                self.placement = GroupPlacement(placements, candidates.refused, tuple(not_examined))
                return
            if not placed.is_certain:
                not_examined[RESOURCE_CLAIMS] = None
            self.overlay = placed.overlay
            is_exact = self._cluster.precision(placed.node) == "exact"
            containers = allocated_nodes.placements(placed.state, placed.record.uid, is_exact=is_exact)
            expected = msgspec.structs.replace(placed.record, uid=record.uid or placed.record.uid)
            placements.append(PodPlacement(expected, placed.node, containers))
            yield
        self.placement = GroupPlacement(placements, not_examined=tuple(not_examined))

    def _unexamined(self, record: PodRecord) -> list[str]:
        """Returns what the pod requires of nodes and no check here is about."""
        unexamined = () if record.constraints is None else record.constraints.unexamined
        return list(self._cluster.ledger.gates.unexamined(unexamined))
