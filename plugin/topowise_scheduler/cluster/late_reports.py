"""Reports that wait for the next tick, because the reports of their nodes take too much of the CPU.

One report is bounded (report/budget.py), but an object may be written as often as the API server lets its writer. A
node whose reports cost more than `SHARE` of the CPU is *noisy*: of its reports the newest waits for the ledger's tick,
and replaces the one before. All noisy nodes together have one share. A node of our exporter writes at most ten reports
a second, of some milliseconds each, and is never noisy.

Invariant: at most one report of a node waits, and no older one is taken after a newer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from topowise.runtime.turns import Portions

SHARE: Final = 0.1
"""Of one CPU, for the reports of one node, and of all noisy nodes together."""
_BURST_S: Final = 0.2


class LateReports:
    """By node. `clock` and `cpu` give seconds, monotonic: on the wall, and of the CPU."""

    def __init__(self, clock: Callable[[], float], cpu: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._cpu = cpu
        # What the reports of a node have cost, less its share since then; of nodes that have not paid.
        self._owed: dict[str, tuple[float, float]] = {}
        self._noisy: set[str] = set()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._portions = Portions(SHARE, clock)

    def __len__(self) -> int:
        """How many nodes are noisy."""
        return len(self._noisy)

    def waits(self, name: str) -> bool:
        """Whether a report of this node has to wait."""
        if name in self._noisy and not self._owes(name):
            self._noisy.discard(name)
        return name in self._noisy

    @contextmanager
    def charged(self, name: Callable[[], str]) -> Iterator[None]:
        """Counts the CPU that is used within for a node, whose name is known by the end; "" for none."""
        began = self._cpu()
        try:
            yield
        finally:
            self._charge(name(), self._cpu() - began)

    def put(self, name: str, take: Callable[[], None]) -> None:
        """A report waits until it is taken; the one before is not taken any more."""
        self._waiting[name] = take

    def drop(self, name: str) -> None:
        """A newer report was taken, or the object is gone."""
        self._waiting.pop(name, None)

    def taking(self) -> Iterator[None]:
        """Takes the reports that wait, in steps of a report, for as long as their share lasts."""
        for name in list(self._owed):
            self._owes(name)
        for name in self._portions.of(list(self._waiting)):
            take = self._waiting.pop(name, None)
            if take is not None:
                take()
            yield

    def _charge(self, name: str, seconds: float) -> None:
        if not name:
            return
        owed = self._owes(name) + seconds
        self._owed[name] = owed, self._clock()
        if owed > _BURST_S:
            self._noisy.add(name)

    def _owes(self, name: str) -> float:
        """What a node still owes now; with nothing left it is forgotten."""
        owed, since = self._owed.get(name, (0.0, 0.0))
        share = SHARE / max(1, len(self._noisy)) if name in self._noisy else SHARE
        owed -= share * (self._clock() - since)
        if owed <= 0:
            self._owed.pop(name, None)
            self._noisy.discard(name)
            return 0.0
        return owed
