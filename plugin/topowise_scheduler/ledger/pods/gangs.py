"""Gangs: pods that kube-scheduler places in one cycle, all or none (KEP-4671).

Invariant: no reservation outlives the scheduling attempt of its gang, as far as requests show the end of an attempt.
kube-scheduler does not notify extenders when it gives up a gang. But it places pods one at a time, so an attempt is
over in three cases: a member is queried for the second time; a pod outside the gang is queried after a member fitted on
no node; no member was queried for `KEPT_S`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from topowise_scheduler.ledger.pods.records import PodRecord

KEPT_S: Final = 0.6
"""Seconds for which a member stays reserved after the last query of its gang."""


class _Attempt(msgspec.Struct):
    """UIDs of the queried members, the last of them and its time, and whether a member fitted on no node."""

    queried: set[str] = msgspec.field(default_factory=set)
    last: str = ""
    at: float = 0.0
    has_failed: bool = False


class Gangs:
    """Scheduling attempts in progress, by name of the gang."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._attempts: dict[str, _Attempt] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._attempts

    def note_queried(self, record: PodRecord) -> set[str]:
        """Records a query of kube-scheduler. Returns the UIDs of pods whose reservations end by it."""
        # A pod outside a failed gang is queried: kube-scheduler has given the gang up.
        given_up = self._take_failed(record.group)
        if not record.group:
            return given_up
        attempt = self._attempts.setdefault(record.group, _Attempt())
        # A retry of the same request is no new attempt, so the last member may repeat.
        if record.uid in attempt.queried and record.uid != attempt.last:
            given_up |= attempt.queried
            self._attempts[record.group] = attempt = _Attempt()
        attempt.queried.add(record.uid)
        attempt.last, attempt.at = record.uid, self._clock()
        return given_up

    def note_unschedulable(self, record: PodRecord) -> None:
        """Records that the pod fits on no node."""
        attempt = self._attempts.get(record.group)
        if attempt is not None:
            attempt.has_failed = True

    def expire(self) -> None:
        """Drops the attempts without a query in the last `KEPT_S`."""
        until = self._clock() - KEPT_S
        self._attempts = {name: attempt for name, attempt in self._attempts.items() if attempt.at > until}

    def _take_failed(self, group: str) -> set[str]:
        """Drops the failed attempts of all other gangs. Returns the UIDs of their queried members."""
        failed = [name for name, attempt in self._attempts.items() if attempt.has_failed and name != group]
        return {uid for name in failed for uid in self._attempts.pop(name).queried}
