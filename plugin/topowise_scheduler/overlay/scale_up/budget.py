"""How many nodes may be requested now: limits, the first node of a group alone, and the back-off after failures.

Everything follows from the placeholders of the cluster, active and ended, so a new leader has the same answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels
from topowise_scheduler.overlay.scale_up.placeholders import FAILURES, Placeholder

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
