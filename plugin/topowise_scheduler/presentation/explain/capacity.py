"""How many more pods like one a node has room for: copies are put there until its kubelet, or the sums, take no more.

A copy at a time, so that who has other work can do it between two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.presentation.explain import explanation, numa_placement

MOST: Final = 1000
"""So many are tried on a node: more than any kubelet takes (maxPods), unless nobody tells how many that is."""
_NO_FURTHER: Final = f"not tried beyond {MOST}"


Affinity = Callable[[Sequence[Kubelet], Sequence[str]], str]
"""Why the devices of a node in these states would not do for one more, "" if they would; beside these copies of it."""


def _anywhere(_states: Sequence[Kubelet], _copies: Sequence[str]) -> str:
    return ""


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """One node: how many fit, where the first would go, and why there are no more.

    `is_least`: it was not tried to the end, at least so many fit.
    """

    node: str
    count: int
    is_least: bool
    first: str
    limit: str


class Filling:
    """A node, while it is filled. `limit` says why there is no more room, "" as long as that was not found out.

    `states` are all that the node may look like, changed by this; `by_sums` is how many node allocatable has room for,
    and the words for what ends it.
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
        """Puts one more there; False if there is no room for it."""
        if not self.limit and self.count >= self._most:
            self.limit = self._last
        if self.limit:
            return False
        copies = [f"\0copy/{number}" for number in range(self.count + 1)]
        copy = msgspec.structs.replace(self._record, uid=copies.pop())
        self.limit = self._affinity(self._states, copies)
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
        """What was found so far; that one fits is known before it is tried."""
        is_least = not self.limit
        return Room(self.node, max(int(is_least), self.count), is_least, self.first, self.limit)
