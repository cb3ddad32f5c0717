"""Delays the reports of nodes whose reports use too much CPU to the next tick.

The size of a report is bounded (report/budget.py), but not how often an object is written. A node whose reports cost
more than `SHARE` of a CPU is *noisy*: its newest report waits for the tick of the ledger and replaces the report that
waited before. All noisy nodes share `SHARE` as well. The exporter writes at most ten reports a second, which take some
milliseconds each, so its nodes are never noisy.

Invariant: at most one report of a node waits, and no report is applied after a newer report of its node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from topowise.runtime.event_loop import TimeSlices

SHARE: Final = 0.1
"""Share of one CPU for the reports of a node, and for those of all noisy nodes together."""
_BURST_S: Final = 0.2


class LateReports:
    """Delayed reports by node. `clock` gives wall time and `cpu` CPU time, both in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float], cpu: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._cpu = cpu
        # CPU seconds that the reports of a node took, less its share of the time since then, and that time.
        self._owed: dict[str, tuple[float, float]] = {}
        self._noisy: set[str] = set()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._portions = TimeSlices(SHARE, clock)

    def __len__(self) -> int:
        """Returns the number of noisy nodes."""
        return len(self._noisy)

    def waits(self, name: str) -> bool:
        """Returns whether a report of this node has to wait."""
        if name in self._noisy and not self._owes(name):
            self._noisy.discard(name)
        return name in self._noisy

    @contextmanager
    def charged(self, name: Callable[[], str]) -> Iterator[None]:
        """Charges the CPU time of the block to a node. `name` is called at the end; "" charges no node."""
        began = self._cpu()
        try:
            yield
        finally:
            self._charge(name(), self._cpu() - began)

    def put(self, name: str, take: Callable[[], None]) -> None:
        """Queues a report in the place of an older report of the node; `take` applies it."""
        self._waiting[name] = take

    def drop(self, name: str) -> None:
        """Drops the waiting report of a node: a newer report was applied, or the object was deleted."""
        self._waiting.pop(name, None)

    def taking(self) -> Iterator[None]:
        """Applies waiting reports, a report per step, while the share lasts."""
        # Debts expire with time, so a node without new reports leaves the noisy nodes here.
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
        # In CPU seconds. A single large report is no reason to delay the node.
        if owed > _BURST_S:
            self._noisy.add(name)

    def _owes(self, name: str) -> float:
        """Returns the CPU seconds above its share that a node still owes; a node that owes nothing is forgotten."""
        owed, since = self._owed.get(name, (0.0, 0.0))
        share = SHARE / max(1, len(self._noisy)) if name in self._noisy else SHARE
        owed -= share * (self._clock() - since)
        if owed <= 0:
            self._owed.pop(name, None)
            self._noisy.discard(name)
            return 0.0
        return owed
