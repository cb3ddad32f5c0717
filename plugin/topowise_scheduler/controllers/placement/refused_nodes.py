"""Nodes that kube-scheduler has refused to placed pods for a reason that is not known here, as a filter plug-in or an
extender has: pods of the same controller stay off such a node for a while, or they would be placed there again and
again. A pod that kube-scheduler refuses for a known reason needs nothing of this, as its next choice knows the reason.

Upstream: a pod with a single possible node stays unschedulable; the event is FailedScheduling.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Final, NamedTuple

from topowise.bounded import Bounded
from topowise_scheduler.ledger.pods.placements import Placement
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.trial import Trial

# Less than the time after which a lost pod is ended: the next pod of its controller comes at once.
_AFTER_S: Final = 25.0
# How long a node is left out, and with each further refusal twice as long.
_FIRST_S: Final = 300.0
_LONGEST_S: Final = 3600.0
_MAX_BYTES: Final = 4 << 20
_KEY_BYTES: Final = 1 << 10


class _LeftOut(NamedTuple):
    """Until when (seconds, monotonic), and for how long."""

    until: float
    pause: float


class RefusedNodes:
    """All times are seconds, monotonic. Not thread-safe."""

    def __init__(self, cluster: Trial) -> None:
        self._cluster = cluster
        # By UID of a refused pod: since when it has been refused without a known reason, infinity once it counts.
        self._since: dict[str, float] = {}
        self._nodes: Bounded[Hashable, dict[str, _LeftOut]]
        self._nodes = Bounded(_MAX_BYTES, lambda _, nodes: _KEY_BYTES + 100 * len(nodes))
        self._next_end = float("inf")

    def of(self, record: PodRecord, now: float) -> Collection[str]:
        """Returns the nodes that a pod is not to be placed on."""
        if not self._nodes:
            return ()
        nodes = self._nodes.get(_controller(record)) or {}
        return {name for name, left_out in nodes.items() if now < left_out.until}

    def watch(self, lost: Collection[Placement], now: float) -> bool:
        """Takes in the placed pods that kube-scheduler refuses now. Returns whether pods may be placed on a node again
        since the last call."""
        self._since = {placement.record.uid: self._since.get(placement.record.uid, now) for placement in lost}
        for placement in lost:
            record = placement.record
            if not self._is_acceptable(placement):
                self._since[record.uid] = now
            elif now - self._since[record.uid] >= _AFTER_S:
                self._since[record.uid] = float("inf")
                self._leave_out(record, placement.node, now)
        has_ended = self._next_end <= now
        if has_ended:
            ends = [left_out.until for nodes in self._nodes.values() for left_out in nodes.values()]
            self._next_end = min([end for end in ends if end > now], default=float("inf"))
        return has_ended

    def _is_acceptable(self, placement: Placement) -> bool:
        """Returns whether nothing is known that kube-scheduler has against the node."""
        record, cluster = placement.record, self._cluster
        exclusion, short = cluster.opposition(record, placement.node)
        between = cluster.between_pods(record, [placement.node])
        return exclusion is None and short is None and (between is None or bool(between.passes.all()))

    def _leave_out(self, record: PodRecord, node: str, now: float) -> None:
        nodes = dict(self._nodes.get(_controller(record)) or {})
        before = nodes.get(node)
        pause = _FIRST_S if before is None else min(2 * before.pause, _LONGEST_S)
        # Pods that were placed together are refused together.
        if before is None or before.until <= now:
            nodes[node] = _LeftOut(now + pause, pause)
            self._nodes.put(_controller(record), nodes)
            self._next_end = min(self._next_end, now + pause)


def _controller(record: PodRecord) -> Hashable:
    """Returns a key that the pods of a controller share, also those that it makes later."""
    return record.namespace, record.shape, tuple(sorted(record.labels.items()))
