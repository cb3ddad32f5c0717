"""Pods that somebody asks about and that the watch of pods has not brought.

Mostly kube-scheduler's watch is some milliseconds ahead of ours; after a burst it may be seconds, and bookings must not
be lost for that. But whoever reaches the port can make up pods, and each would hold a place that a real one needs. So a
stranger may hold one until the watch is past the version of the pod that was asked about, or for some seconds if that
cannot be told. One that turns out to be nobody costs all strangers their trust: after it none of them holds anything,
until some are brought that were asked about before.

Invariant: no stranger holds a place for longer than `STRANGER_S` after it was first asked about, however often it is
asked about again, and no more than `MOST_STRANGERS` do at a time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# A watch that is seconds late is late for a burst of some hundred pods a second.
STRANGER_S: Final = 10.0
MOST_STRANGERS: Final = 1024


class _Stranger(NamedTuple):
    """Until when it may hold a place (seconds, monotonic), and the version that was asked about; 0 for none."""

    until: float
    version: int
    is_trusted: bool


class Strangers:
    """Not thread-safe."""

    def __init__(self) -> None:
        # Those on their way to a node; whoever is on one is known by that.
        self._pending: set[str] = set()
        # In the order in which they were first asked about.
        self._strangers: dict[str, _Stranger] = {}
        self._trusted = 0
        self._trust = MOST_STRANGERS
        self._watched = 0

    def __len__(self) -> int:
        return len(self._strangers)

    def brought(self, uid: str, version: str, *, is_pending: bool) -> None:
        """The watch has brought a pod."""
        self._watched = max(self._watched, _number(version))
        if is_pending:
            self._pending.add(uid)
        else:
            self._pending.discard(uid)
        if self._forget(uid):
            self._trust = min(max(1, 2 * self._trust), MOST_STRANGERS)

    def gone(self, uid: str) -> None:
        """The pod has ended or was deleted."""
        self._pending.discard(uid)

    def may_hold(self, uid: str, version: str, now: float) -> bool:
        """Whether a pod that is asked about may hold a place."""
        if uid in self._pending:
            return True
        if (known := self._strangers.get(uid)) is not None:
            return known.is_trusted and now < known.until
        number = _number(version)
        if 0 < number <= self._watched or len(self._strangers) >= MOST_STRANGERS:
            return False
        is_trusted = self._trusted < self._trust
        self._trusted += is_trusted
        self._strangers[uid] = _Stranger(now + STRANGER_S, number, is_trusted)
        return is_trusted

    def nobodies(self, now: float) -> list[str]:
        """Those who hold a place no more: the watch has passed them, or has had its time."""
        found = [uid for uid, one in self._strangers.items() if one.until <= now or 0 < one.version <= self._watched]
        for uid in found:
            self._forget(uid)
        if found:
            self._trust = 0
        return found

    def _forget(self, uid: str) -> bool:
        stranger = self._strangers.pop(uid, None)
        if stranger is None:
            return False
        self._trusted -= stranger.is_trusted
        return True


def _number(version: str) -> int:
    """Versions of one collection grow (KEP-5504); 0 for what is none."""
    return int(version) if version.isascii() and version.isdecimal() and len(version) <= 20 else 0
