"""How many more copies of a pod a node takes: copies are admitted until the kubelet or the node's sums refuse.

`Filling.add` admits a copy, so that a caller can do other work between two copies.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topowise_scheduler.explain import explanation, numa_placement
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay import Overlay, Unfit

MOST: Final = 1000
"""Copies tried on a node: more than any kubelet takes (maxPods), which is not known of every node."""
_NO_FURTHER: Final = f"not tried beyond {MOST}"


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """The number of copies that fit on a node, the NUMA nodes of the first copy, and the reason for the end.

    `is_least`: the count was not finished; at least `count` copies fit.
    """

    node: str
    count: int
    is_least: bool
    first: str
    limit: str


class Filling:
    """A node that is filled with copies. `limit` is the reason for the end, "" before the end.

    `by_sums` is the number of copies that node allocatable has room for, and the reason for the end. A node with a
    `limit` needs no pod.
    """

    def __init__(
        self,
        node: str,
        record: PodRecord | None = None,
        overlay: Overlay | None = None,
        by_sums: tuple[int, str] | None = None,
        *,
        is_exact: bool = False,
        count: int = 0,
        limit: str = "",
    ) -> None:
        self.node = node
        self.count = count
        self.first = "-"
        self.limit = limit
        self._record, self._overlay = record, overlay
        self._most, self._last = by_sums if by_sums is not None and by_sums[0] <= MOST else (MOST, _NO_FURTHER)
        self._is_exact = is_exact

    def add(self) -> bool:
        """Admits another copy; False if it does not fit."""
        if not self.limit and self.count >= self._most:
            self.limit = self._last
        if self.limit or self._record is None or self._overlay is None:
            return False
        placed = self._overlay.place(self._record, self.node)
        if isinstance(placed, Unfit):
            self.limit = self._explained(placed)
            return False
        self._overlay = placed.overlay
        if not self.count:
            copy = numa_placement.of(placed.state, placed.record.uid, is_exact=self._is_exact)
            self.first = numa_placement.in_words(copy)
        self.count += 1
        return True

    def _explained(self, unfit: Unfit) -> str:
        if unfit.state is None or unfit.record is None:
            return unfit.words
        view, precision = unfit.record.view(unfit.state), "exact" if self._is_exact else "counts"
        return explanation.explain(self.node, unfit.state, view, precision=precision).text

    def room(self) -> Room:
        """The result so far. Without a limit at least a copy fits: the verdict came before the first copy."""
        is_least = not self.limit
        return Room(self.node, max(int(is_least), self.count), is_least, self.first, self.limit)
