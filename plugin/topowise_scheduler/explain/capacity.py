"""How many more copies of a pod a node takes: copies are admitted until the kubelet or the node's sums refuse.

`Filling.add` admits a copy, so that a caller can do other work between two copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from topowise_scheduler.explain import explanation
from topowise_scheduler.explain.refusal_texts import text
from topowise_scheduler.kubelet import Kubelet, numa_placement
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.refusals import Refusal

MOST: Final = 1000
"""Copies tried on a node: more than any kubelet takes (maxPods), which is not known of every node."""
_NO_FURTHER: Final = f"not tried beyond {MOST}"


Affinity = Callable[[Sequence[Kubelet], Sequence[str]], Refusal | None]
"""Why the devices of a node in these states do not suit the next copy beside these copies (uids), None if they do."""


def _anywhere(_states: Sequence[Kubelet], _copies: Sequence[str]) -> None:
    return None


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

    `states` are all possible states of the node, which `add` changes. `by_sums` is the number of copies that node
    allocatable has room for, and the reason for the end.
    """

    def __init__(
        self,
        node: str,
        record: PodRecord,
        states: Sequence[Kubelet] = (),
        by_sums: tuple[int, str] | None = None,
        *,
        is_exact: bool = False,
        count: int = 0,
        limit: str = "",
        affinity: Affinity = _anywhere,
    ) -> None:
        self.node = node
        self.count = count
        self.first = "-"
        self.limit = limit
        self._record = record
        self._states = states
        self._most, self._last = by_sums if by_sums is not None and by_sums[0] <= MOST else (MOST, _NO_FURTHER)
        self._is_exact = is_exact
        self._affinity = affinity

    def add(self) -> bool:
        """Admits another copy; False if it does not fit."""
        if not self.limit and self.count >= self._most:
            self.limit = self._last
        if self.limit:
            return False
        copies = [f"\0copy/{number}" for number in range(self.count + 1)]
        copy = msgspec.structs.replace(self._record, uid=copies.pop())
        self.limit = text(self._affinity(self._states, copies))
        if self.limit:
            return False
        placed_states = []
        for state in self._states:
            view = copy.view(state)
            admission, after = trial(state, view)
            placed_states.append(after)
            if not admission.admitted:
                precision = "exact" if self._is_exact else "counts"
                self.limit = explanation.explain(self.node, state, view, precision=precision).text
                return False
        self._states = placed_states
        if not self.count:
            self.first = numa_placement.in_words(numa_placement.of(self._states[0], copy.uid, is_exact=self._is_exact))
        self.count += 1
        return True

    def room(self) -> Room:
        """The result so far. Without a limit at least a copy fits: the verdict came before the first copy."""
        is_least = not self.limit
        return Room(self.node, max(int(is_least), self.count), is_least, self.first, self.limit)
