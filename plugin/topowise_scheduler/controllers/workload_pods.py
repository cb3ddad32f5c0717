"""Pods of Kueue's Workloads that need new nodes: the admission checks want them, and scale-up requests their nodes.

The pods do not exist before their Workload is admitted, so their UIDs are made of the UID of the Workload and a name.
Both controllers run in the leader. A new leader decides all checks that are Pending before it looks at placeholders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from topowise.runtime import clock
from topowise_scheduler.controllers.scale_up_demand import PATIENCE_S
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.scale_up.placeholders import Placeholder

# Seconds after `patience` in which the scale-up has to answer.
_ANSWER_S: Final = 60.0
# For how long (seconds) the nodes of a Workload that is not watched any more are kept: Kueue may be about to admit it.
_KEPT_S: Final = 60.0


class _Wanted(msgspec.Struct, frozen=True):
    since: float
    records: Mapping[str, PodRecord]


class _Placed(msgspec.Struct, frozen=True):
    at: float
    nodes: Mapping[str, str]


class WorkloadPods:
    """By Workload, the pods that need new nodes. `patience`: for how long (seconds) they wait before a node is
    requested. `clock` gives seconds, monotonic."""

    def __init__(self, *, patience: float = PATIENCE_S, clock: Callable[[], float] = clock.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._wanted: dict[str, _Wanted] = {}
        self._placed: dict[str, _Placed] = {}
        # Of the last pass of the scale-up: why no node is requested, "" if a node is.
        self._answers: dict[str, str] = {}

    # For the admission checks

    def put(self, workload: str, missing: Sequence[PodRecord], placed: Mapping[str, str]) -> None:
        """Wants nodes for the pods that are `missing` a node; `placed`: the nodes of the others, by UID of the pod."""
        wanted = self._wanted.get(workload)
        since = self._clock() if wanted is None else wanted.since
        records = {record.uid: msgspec.structs.replace(record, group=workload) for record in missing}
        self._wanted[workload] = _Wanted(since, records)
        self._placed[workload] = _Placed(self._clock(), placed)

    def fits(self, workload: str, placed: Mapping[str, str]) -> None:
        """Wants no node any more, as all pods have a place."""
        self.drop(workload)
        self._placed[workload] = _Placed(self._clock(), placed)

    def drop(self, workload: str) -> None:
        """Wants no node any more."""
        self._wanted.pop(workload, None)
        self._answers.pop(workload, None)

    def keep(self, workloads: Collection[str]) -> list[str]:
        """Drops all other Workloads. Returns those that wanted nodes."""
        before = self._clock() - _KEPT_S
        self._placed = {uid: item for uid, item in self._placed.items() if uid in workloads or item.at > before}
        gone = [workload for workload in self._wanted if workload not in workloads]
        for workload in gone:
            self.drop(workload)
        return gone

    def uids(self, workload: str) -> Collection[str]:
        """Returns the UIDs of the pods of a Workload that need a node."""
        return self._wanted[workload].records.keys() if workload in self._wanted else ()

    def answer(self, workload: str) -> str | None:
        """Returns why no node is requested, "" if a node is, None if that is not decided yet."""
        wanted = self._wanted.get(workload)
        if wanted is not None and self._clock() > wanted.since + self._patience + _ANSWER_S:
            return self._answers.get(workload, "the scale-up is not running")
        return self._answers.get(workload)

    # For the scale-up

    @property
    def waiting(self) -> dict[str, PodRecord]:
        """Returns by UID the pods that need a node."""
        return {uid: record for wanted in self._wanted.values() for uid, record in wanted.records.items()}

    def nodes_of(self, uids: Collection[str]) -> list[str]:
        """Returns the node of each pod with a place, of the Workloads that one of these pods belongs to: a node that
        was requested for a pod may get another pod of its Workload."""
        placed = [item.nodes for item in self._placed.values()]
        return [node for nodes in placed if not nodes.keys().isdisjoint(uids) for node in nodes.values()]

    def due(self, requested: Collection[str]) -> list[PodRecord]:
        """Returns the pods that have waited long enough, without the `requested` UIDs."""
        until = self._clock() - self._patience
        records = [wanted.records.values() for wanted in self._wanted.values() if wanted.since <= until]
        return [record for pods in records for record in pods if record.uid not in requested]

    def set_answers(self, refusals: Mapping[str, str], active: Iterable[Placeholder]) -> None:
        """Notes of a pass why no node was requested, by Workload, and for which pods nodes are on their way."""
        requested = {pod.uid for placeholder in active for pod in placeholder.pods}
        for workload, wanted in self._wanted.items():
            if not wanted.records.keys().isdisjoint(requested):
                self._answers[workload] = ""
            elif workload in refusals:
                self._answers[workload] = refusals[workload]
