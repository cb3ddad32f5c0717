"""How many more copies of a pod a node takes: copies are placed until the kubelet or the node's sums refuse."""

from __future__ import annotations

from typing import Final

import msgspec

from topowise_scheduler.explain import explanation
from topowise_scheduler.explain.node_verdicts import NodeVerdict
from topowise_scheduler.explain.refusal_texts import text
from topowise_scheduler.kubelet import numa_placement
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.overlay import Overlay, Unfit
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.verdicts import kube_scheduler

MOST: Final = 1000
"""Copies tried on a node: more than any kubelet takes (maxPods), which is not known of every node."""
_NO_FURTHER: Final = f"not tried beyond {MOST}"
_BY_SUMS: Final = "not reported: only node allocatable was checked"


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """The number of copies that fit on a node, the NUMA nodes of the first copy, and the reason for the end.

    `is_least` is always False: the count is always finished.
    """

    node: str
    count: int
    is_least: bool = False
    first: str = "-"
    limit: str = ""


def room_on(trial: Trial, record: PodRecord, verdict: NodeVerdict) -> Room:
    """Returns the room for copies of a pod on the node of a verdict about the pod."""
    name, node, precision = verdict.name, trial.node(verdict.name), trial.precision(verdict.name)
    if not verdict.takes_pod or record.needs is None:
        return Room(name, 0, limit=text(verdict.reason))
    by_sums = None if node is None else kube_scheduler.room(node, record.needs, trial.used(record, name))
    if not precision:
        return Room(name, by_sums[0] if by_sums else 0, limit=_BY_SUMS)
    most, last = by_sums if by_sums is not None and by_sums[0] <= MOST else (MOST, _NO_FURTHER)
    overlay, first = Overlay(trial), "-"
    for count in range(most):
        placed = overlay.place(record, name)
        if isinstance(placed, Unfit):
            return Room(name, count, first=first, limit=_explained(name, placed, precision))
        overlay = placed.overlay
        if not count:
            containers = numa_placement.of(placed.state, placed.record.uid, is_exact=precision == "exact")
            first = numa_placement.in_words(containers)
    return Room(name, most, first=first, limit=last)


def _explained(name: str, unfit: Unfit, precision: str) -> str:
    if unfit.state is None or unfit.record is None:
        return text(unfit.reason)
    return explanation.explain(name, unfit.state, unfit.record.view(unfit.state), precision=precision).text
