"""Numbers for the states of nodes: two nodes have the same number only if every newcomer fares alike on them.

In a burst of alike pods one node after the other comes into the same few states. Whoever keeps what was said of a
state by its number need not ask again.

Invariant: what admissions of a newcomer read of a Kubelet (Kubelet.fork has all that changes) is in the key, and so is
all that possible_placements reads of pods that may lie elsewhere. A number is never given twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.same_node import sources

_MOST: Final = 4096
_NOBODY: Final[Mapping[str, int]] = {}


class Expected(NamedTuple):
    """A node's state, and what possible_placements has to know of those in it that may lie elsewhere."""

    node: Kubelet
    uncertain: Sequence[PodView] = ()
    highest: Mapping[str, int] = _NOBODY


class SameStates:
    """By state. Not thread-safe."""

    def __init__(self) -> None:
        # With what its key has by identity, so that this lives as long as the key.
        self._numbers: dict[Hashable, tuple[int, object]] = {}
        self._last = 0

    def number(self, empty: Kubelet, expected: Expected) -> int:
        """The one of a node, of which `empty` is the state with no pods."""
        lasting = (empty, *sources(expected.node), *(pod.containers for pod in expected.uncertain))
        key = (*map(id, lasting), *_held(expected.node), *_of_uncertain(expected))
        found = self._numbers.get(key)
        if found is None:
            if len(self._numbers) >= _MOST:
                self._numbers.clear()
            self._last += 1
            found = self._numbers[key] = self._last, lasting
        return found[0]


def _held(node: Kubelet) -> Iterator[Hashable]:
    """What is taken, whoever has it."""
    yield len(node.active)
    yield frozenset([(name, amount) for name, amount in node.requested.items() if amount])
    if node.cpu is not None:
        yield node.cpu.default
    if node.memory is not None:
        tables = node.memory.tables
        yield from (*tables.assignments, *tables.cells)
        for free in tables.free.items():
            yield free[0]
            yield tuple(free[1])
    yield from node.devices.allocated.items()


def _of_uncertain(expected: Expected) -> Iterator[Hashable]:
    """What each of them has, and how high it may lie."""
    node = expected.node
    for pod in expected.uncertain:
        yield expected.highest.get(pod.uid)
        yield pod.uid in node.active
        for manager in (node.cpu, node.memory):
            if manager is not None:
                yield tuple(manager.held.get(pod.uid, {}).items())
                yield pod.uid in manager.bubbles
        yield str(node.devices.held.get(pod.uid))
