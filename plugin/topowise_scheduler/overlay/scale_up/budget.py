"""How many nodes may be requested now: limits, the first node of a group alone, and the back-off after failures.

Everything follows from the placeholders of the cluster, active and ended, so a new leader has the same answers. Here is
also when a placeholder ends, and with which outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels
from topowise_scheduler.overlay.scale_up.placeholders import FAILURES, Outcome, Placeholder

TIME_LIMIT_S: Final = 900.0
"""Seconds from a request until the node is reported: cluster-autoscaler's --max-node-provision-time and Karpenter's
limit of a registration have the same value."""
HOLD_S: Final = 120.0
"""Seconds for which a new node is reserved for the pods it was requested for, from its first report: kube-scheduler
tries them again within a few seconds, and a retry that was just refused within its pause of ten."""


class Facts(NamedTuple):
    """What the cluster shows of a placeholder's pods and node, and of other pods of their Workload. Times are in
    seconds.

    `waiting`: pods that wait. `placed`: pods on any node. `on_node`: pods on nodes that were added to the group after
    the placeholder. `has_node`: the placeholder's Node exists. `reported_for`: for how long it is reported, and has
    devices for the claims of pods that wait, -1 before that. `refusal`: why the empty node would not take a pod that
    waits, or why a kubelet refused a pod, "" if neither.
    """

    age: float
    waiting: int
    placed: int
    on_node: int
    has_node: bool = False
    reported_for: float = -1.0
    refusal: str = ""


class End(NamedTuple):
    """The outcome "" means that the placeholder goes on."""

    outcome: Outcome
    why: str = ""


def end_of(placeholder: Placeholder, facts: Facts) -> End:
    """Returns whether and how a placeholder ends."""
    if facts.refusal:
        return End("useless", f"{placeholder.node} cannot align a pod that it was added for: {facts.refusal}")
    if not facts.waiting:
        if facts.on_node:
            return End("helped", f"{facts.on_node} of its pods are on new nodes")
        where = f"{facts.placed} of its pods are on other nodes" if facts.placed else "its pods are gone"
        return End("unneeded", f"{where}; no pod is on a node that was added")
    if placeholder.node and facts.reported_for >= 0:
        if facts.reported_for < HOLD_S:
            return End("")
        if facts.on_node:
            return End("helped", f"{facts.on_node} of its pods are on new nodes")
        return End("taken", f"other pods use {placeholder.node}")
    if placeholder.node and not facts.has_node:
        return End("late", f"{placeholder.node} is gone")
    if facts.age > TIME_LIMIT_S:
        what = f"{placeholder.node} has no report, or lacks devices," if placeholder.node else "no node came"
        return End("late", f"{what} within {TIME_LIMIT_S:g} s")
    return End("")


_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S


class Limits(msgspec.Struct, frozen=True):
    """`per_hour`: nodes requested in an hour, which bounds the money that a mistake can cost. `in_flight`, `per_group`:
    requested nodes that are not there yet, of all groups and of a group: what fits is known only from their reports.
    `back_off`: pause of a group after a failure in seconds, twice as long after each further."""

    per_hour: int
    in_flight: int = 10
    per_group: int = 10
    back_off: float = 1800.0


class Budget:
    """The budget at a time (`now`, seconds since 1970)."""

    def __init__(self, limits: Limits, placeholders: Iterable[Placeholder], now: float) -> None:
        self._limits = limits
        self._placeholders = tuple(placeholders)
        self._now = now

    def allowance(self, group: GroupLabels) -> int:
        """Returns how many nodes of a group may be requested now."""
        if self.paused_until(group) > self._now:
            return 0
        active = [item for item in self._placeholders if item.is_active and item.group == group]
        of_group = self._limits.per_group - sum(item.is_in_flight for item in active)
        return max(0, min(self.left, of_group if self.is_proven(group) else 1 - len(active)))

    @property
    def left(self) -> int:
        """How many nodes of all groups may be requested now."""
        in_flight = sum(item.is_in_flight for item in self._placeholders)
        return min(self._limits.in_flight - in_flight, self._limits.per_hour - len(self.recent))

    @property
    def recent(self) -> list[Placeholder]:
        """The placeholders of the last hour, ended or not."""
        return [item for item in self._placeholders if item.created > self._now - _HOUR_S]

    def affords(self, needed: Counter[GroupLabels]) -> bool:
        """Returns whether all these nodes may be requested now, or only the first of a group that is not proven."""
        if not all(self.is_proven(group) for group in needed):
            return all(self.allowance(group) > 0 for group in needed if not self.is_proven(group))
        fits = all(count <= self.allowance(group) for group, count in needed.items())
        return fits and needed.total() <= self.left

    def is_proven(self, group: GroupLabels) -> bool:
        """Returns whether the last requested node of the group with an end has helped: until then, or after a failure,
        nodes are requested one at a time, so that a wrong profile costs a single node."""
        return bool(self._of(group, ("helped",))) and not self._failures(group)

    def paused_until(self, group: GroupLabels) -> float:
        """Returns the end of the back-off of a group (seconds since 1970), 0 without failures."""
        failures = self._failures(group)
        if not failures:
            return 0.0
        return failures[-1].ended + min(_DAY_S, self._limits.back_off * 2.0 ** min(len(failures) - 1, 16))

    def is_kept(self, placeholder: Placeholder) -> bool:
        """Returns whether an ended placeholder still matters for the budget, a back-off or the proof of its group."""
        if placeholder.is_active or placeholder.created > self._now - _HOUR_S:
            return True
        if placeholder.outcome == "helped":
            is_newest = placeholder == max(self._of(placeholder.group, ("helped",)), key=lambda item: item.ended)
            return is_newest and placeholder.ended > self._now - _DAY_S
        return placeholder in self._failures(placeholder.group) and self.paused_until(placeholder.group) > self._now

    def _failures(self, group: GroupLabels) -> Sequence[Placeholder]:
        """Returns the failures of a group since a node of it has helped, by their end."""
        helped = max((item.ended for item in self._of(group, ("helped",))), default=0.0)
        return sorted([item for item in self._of(group, FAILURES) if item.ended > helped], key=lambda item: item.ended)

    def _of(self, group: GroupLabels, outcomes: Iterable[str]) -> list[Placeholder]:
        return [item for item in self._placeholders if item.group == group and item.outcome in outcomes]
