"""Why a waiting pod fits nowhere: the nearest node, what the pod lacks there, and the pods in the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.engine import Outcome
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.presentation.explain import explanation
from topowise_scheduler.presentation.explain.explanation import NodeExplanation
from topowise_scheduler.presentation.text import first_of, plural

# Nodes that are explained, a quarter of a millisecond each.
_LOOKED_AT: Final = 16


class Obstacle(msgspec.Struct, frozen=True):
    """Why a pod fits nowhere.

    `nearest` is the node that lacks least, "" if the pod does not fit on any empty node. `in_the_way` are the pods
    ("namespace/name") on its nearest NUMA node, pods of lower priority first; `lower_priority` is their number.
    """

    now: int
    never: int
    nearest: str = ""
    lack: str = ""
    in_the_way: tuple[str, ...] = ()
    lower_priority: int = 0

    @property
    def text(self) -> str:
        """A short text for people."""
        if not self.nearest:
            return f"None of {plural(self.never, 'node')} could align the pod, even if it were empty."
        parts = [f"{self.nearest} comes nearest: {self.lack}."]
        if self.in_the_way:
            lower = f" ({self.lower_priority} of lower priority)" if self.lower_priority else ""
            parts.append(f"In the way: {first_of(self.in_the_way)}{lower}.")
        never = f", {self.never} never" if self.never else ""
        parts.append(f"With enough room {plural(self.now, 'node')} would do{never}.")
        return " ".join(parts)


def obstacle(ledger: Ledger, answers: Answers, record: PodRecord, names: Sequence[str]) -> Obstacle | None:
    """What keeps the pod from these nodes, None if it fits on any of them."""
    return next((obstacle_ for obstacle_ in looking(ledger, answers, record, names) if obstacle_ is not None), None)


def looking(ledger: Ledger, answers: Answers, record: PodRecord, names: Sequence[str]) -> Iterator[Obstacle | None]:
    """`obstacle` in steps; a step without a result yields None."""
    if record.is_too_large:
        # The refusal itself states the limit.
        return
    yield from answers.fitting(record, names)
    outcomes = answers.verdicts_of(record, names).outcomes
    if (outcomes == Outcome.FITS).any():
        return
    now = np.flatnonzero(outcomes == Outcome.UNSCHEDULABLE)
    counts = Obstacle(len(now), int((outcomes == Outcome.UNRESOLVABLE).sum()))
    candidates = []
    for name in [names[index] for index in now[:_LOOKED_AT].tolist()]:
        candidates += [
            (_shortage(seen, at), name, seen, state, at)
            for state in _states(ledger, name)
            if (seen := _explained(name, state, record)).steps
            for at in range(len(state.node_ids))
        ]
        yield None
    if not candidates:
        yield counts
        return
    _, name, seen, state, at = min(candidates, key=lambda holder: holder[:2])
    holders = sorted(
        _holders(ledger, name, state, at), key=lambda holder: (holder.priority, holder.namespace, holder.name)
    )
    yield msgspec.structs.replace(
        counts,
        nearest=name,
        lack=seen.text,
        in_the_way=tuple(f"{holder.namespace}/{holder.name}" for holder in holders),
        lower_priority=sum(holder.priority < record.priority for holder in holders),
    )


def _states(ledger: Ledger, name: str) -> Iterator[Kubelet]:
    """The predicted state of the node, if it is reported."""
    node_state = ledger.node_states.of(name)
    if node_state is not None and node_state.kubelet is not None:
        yield node_state.kubelet


def _explained(name: str, state: Kubelet, record: PodRecord) -> NodeExplanation:
    copy = state.fork()
    return explanation.explain(name, copy, record.view(copy), precision="exact")


def _shortage(seen: NodeExplanation, at: int) -> tuple[int, float]:
    """The number of resources that a NUMA node lacks, and the missing share of the request."""
    rooms = seen.steps[-1].resources
    short = [room for room in rooms if not room.zones[at].fits]
    missing = sum(1 - min(room.zones[at].available, room.asked) / max(1, room.asked) for room in short)
    return len(short) or len(rooms) + 1, missing


def _holders(ledger: Ledger, name: str, state: Kubelet, at: int) -> Iterator[PodRecord]:
    """The pods with an allocation on the NUMA node; hints are not known of pods in a report."""
    for record in ledger.pods_on(name):
        if record.uid in state.active and any(
            place.mask >> at & 1 for place in allocated_nodes(state, record.uid).values()
        ):
            yield record
