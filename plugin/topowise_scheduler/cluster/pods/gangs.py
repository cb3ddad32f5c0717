"""Gangs: pods that kube-scheduler decides in one cycle, all or nobody (KEP-4671).

Invariant: no room is kept for a try that is over, as far as anybody can tell. kube-scheduler tells extenders nothing
when it gives a gang up. But it decides one after the other, so a try is over when a member is asked about for the
second time; when somebody else is, and a member has found no node; and when nobody has asked about the gang for
`KEPT_S`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from topowise_scheduler.cluster.pods.records import PodRecord

KEPT_S: Final = 0.6
"""Seconds for which the room of a member is kept after the last question about its gang."""


class _Try(msgspec.Struct):
    """Who was asked about, the last of them when, and whether somebody has found no node."""

    asked: set[str] = msgspec.field(default_factory=set)
    last: str = ""
    at: float = 0.0
    has_failed: bool = False


class Gangs:
    """The tries that are under way, by the name of the gang."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tries: dict[str, _Try] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._tries

    def asked(self, record: PodRecord) -> set[str]:
        """kube-scheduler asks about a pod; those for whom no room is to be kept any more."""
        given_up = self._given_up(record.group)
        if not record.group:
            return given_up
        found = self._tries.setdefault(record.group, _Try())
        if record.uid in found.asked and record.uid != found.last:
            given_up |= found.asked
            self._tries[record.group] = found = _Try()
        found.asked.add(record.uid)
        found.last, found.at = record.uid, self._clock()
        return given_up

    def nowhere(self, record: PodRecord) -> None:
        """There is no node for the pod."""
        found = self._tries.get(record.group)
        if found is not None:
            found.has_failed = True

    def expire(self) -> None:
        """Forgets the tries about which nobody has asked for long."""
        until = self._clock() - KEPT_S
        self._tries = {name: one for name, one in self._tries.items() if one.at > until}

    def _given_up(self, group: str) -> set[str]:
        over = [name for name, one in self._tries.items() if one.has_failed and name != group]
        return {uid for name in over for uid in self._tries.pop(name).asked}
