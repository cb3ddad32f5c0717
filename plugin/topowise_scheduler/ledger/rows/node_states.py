"""The states of all nodes by name, and the same states in the engine.

Invariant: the engine has the predicted state of each reported node, and `possible` the other states in which the node
may be. A state that has changed is published at once, so that a question costs no bookkeeping.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import count
from typing import Any, Final, Generic, TypeVar

from topowise.bounded import Bounded
from topowise.runtime.log import V2, kv
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import constant_parts
from topowise_scheduler.ledger.changes import Changes
from topowise_scheduler.ledger.node.exact_placements import FAST, Effort
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.node.possible_placements import Possible
from topowise_scheduler.ledger.node.uncertainty import may_change_between
from topowise_scheduler.ledger.rows.possible_rows import PossibleRows
from topowise_scheduler.verdicts.engine import Engine

log = logging.getLogger(__name__)

# For so long after another scheduler has bound a pod, its next pod may come at any moment.
_ALONE_S: Final = 600.0
# Of each cache of values by node.
_MOST_BYTES: Final = 16 << 20
_MOST_NUMBER_BYTES: Final = 4 << 20
# States of nodes with more CPUs and devices are not recognised: their keys are too long.
_LARGE: Final = 1024
# The CPUs that count as much as a table of devices.
_TABLE: Final = 8
_NODE_BYTES: Final = 1 << 17
_MOST_NODE_BYTES: Final = 64 << 20


class SameStates:
    """Numbers for the states of nodes: two nodes have the same number only if they treat every new pod alike.

    In a burst of alike pods one node after the other comes into the same few states. What was found for a state is kept
    by its number and need not be found again.

    Invariant: the key has all that the admission of a new pod reads of a Kubelet (Kubelet.fork copies what changes),
    and all that possible_placements reads of uncertain pods. A number is never given twice, so that a state that is
    forgotten here gets another number. Not thread-safe.
    """

    def __init__(self) -> None:
        self._count = count(1)
        # Keys have some objects by identity, so these live as long as their number is in use.
        self._lasting: Bounded[tuple[int, ...], tuple[int, object]] = Bounded(_MOST_NODE_BYTES, lambda *_: _NODE_BYTES)
        self._numbers: Bounded[tuple[Hashable, ...], int] = Bounded(_MOST_NUMBER_BYTES, lambda key, _: _bytes(key))

    def number(self, empty: Kubelet, expected: Possible) -> int:
        """Returns the number of a node. `empty` is the node without pods."""
        devices = sum(_TABLE + len(table.ids) for table in empty.devices.tables.values())
        if empty.topology.cpus.bit_count() + devices > _LARGE:
            return next(self._count)
        lasting = (empty, *constant_parts(expected.node), *(pod.containers for pod in expected.uncertain))
        number, _ = self._lasting.once(tuple(map(id, lasting)), lambda: (next(self._count), lasting))
        states = (expected.node, *expected.alternatives)
        key = (number, *[part for state in states for part in (*_held(state), *_of_uncertain(state, expected))])
        return self._numbers.once(key, lambda: next(self._count))


def _bytes(key: Hashable) -> int:
    """Returns the bytes of a key with all its parts."""
    total, parts = 0, [key]
    while parts:
        part = parts.pop()
        total += sys.getsizeof(part)
        if isinstance(part, tuple | frozenset):
            parts.extend(part)
    return total


def _held(node: Kubelet) -> Iterator[Hashable]:
    """Yields what pods hold in all."""
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


def _of_uncertain(node: Kubelet, expected: Possible) -> Iterator[Hashable]:
    """Yields what uncertain pods hold in a state, and their highest positions."""
    for pod in expected.uncertain:
        yield expected.highest.get(pod.uid)
        yield pod.uid in node.active
        for manager in (node.cpu, node.memory):
            if manager is not None:
                yield tuple(manager.allocations.get(pod.uid, {}).items())
                yield pod.uid in manager.bubbles
        yield str(node.devices.allocations.get(pod.uid))


class NodeStates:
    """Not thread-safe. `clock` gives seconds, monotonic; `published` is called for each node that has changed."""

    def __init__(self, engine: Engine, clock: Callable[[], float], published: Callable[[str], None]) -> None:
        self._engine = engine
        self._clock = clock
        self._published = published
        self._states: dict[str, NodeState] = {}
        self._others_bound_at = float("-inf")
        self._ticked_at = float("-inf")
        self._with_past: set[str] = set()
        self._changes = Changes()
        self._same_states = SameStates()
        self._numbers: dict[str, tuple[int, int]] = {}
        self.possible = PossibleRows(engine, self.number)
        """The possible states of nodes with uncertain pods."""
        self._improved: set[str] = set()
        self.improvements = 0
        """Number of times that a node may have come to have more room."""
        self._reshaped: set[str] = set()

    def of(self, name: str) -> NodeState | None:
        """Returns the state of a node, None if neither a report nor a pod has named the node."""
        return self._states.get(name)

    def made(self, name: str) -> NodeState:
        """Returns the state of a node, which is made if there is none."""
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = NodeState()
        return state

    def items(self) -> Iterator[tuple[str, NodeState]]:
        """Yields names and states of all nodes, reported or not."""
        return iter(self._states.items())

    def reported(self) -> list[str]:
        """Returns the names of all reported nodes, sorted."""
        return sorted(name for name, state in self._states.items() if state.report is not None)

    def states(self, name: str, without: Collection[str], effort: Effort = FAST) -> Iterator[Kubelet]:
        """Yields copies of a node's state without these pods: the predicted state, then its other possible states.

        Yields nothing if the node is not reported. The caller may change the copies. More `effort` costs more, and
        leaves out states in which the node cannot be.
        """
        node_state = self._states.get(name)
        possible = None
        if node_state is not None:
            possible = node_state.possible(self._clock(), without, is_alone=self._is_alone)
        if possible is None:
            return
        yield possible.node.fork()
        yield from possible.states(effort)

    def number(self, name: str) -> int:
        """Returns a number that two nodes have only if new pods get the same verdicts and scores there; 0 for a node
        without a report."""
        state = self._states.get(name)
        if state is None or state.kubelet is None or state.report is None:
            return 0
        changed_at, number = self._numbers.get(name, (-1, 0))
        if changed_at != self._changes.at(name):
            expected = self.possible.expected(name) or Possible(state.kubelet)
            number = self._same_states.number(state.report.empty, expected)
            self._numbers[name] = self._changes.at(name), number
        return number

    # Changes

    @property
    def changes(self) -> int:
        """Returns the number of changes of nodes so far."""
        return self._changes.count

    def changed_at(self, name: str) -> int:
        """Returns what `changes` was when the node changed last."""
        return self._changes.at(name)

    def changed_since(self, changes: int) -> Iterator[str]:
        """Returns the nodes that have changed since `changes` was this number, also by a gate alone."""
        return self._changes.since(changes)

    def note_change(self, name: str) -> None:
        """Notes that a gate lets other pods onto the node, though its state is the same."""
        self._changes.note(name)

    def note_improved(self, name: str) -> None:
        """Notes that a node may take pods that it has refused."""
        self._improved.add(name)
        self.improvements += 1

    def note_bound_by_others(self) -> None:
        """Notes that another scheduler has bound a pod: any pod may come before pods on their way."""
        self._others_bound_at = self._clock()

    def take_improved(self) -> set[str]:
        """Returns the nodes that may have more room since the last call."""
        names, self._improved = self._improved, set()
        return names

    def take_reshaped(self) -> set[str]:
        """Returns the nodes that have changed, or lost their report, since the last call."""
        names, self._reshaped = self._reshaped, set()
        return names

    # Changing states

    def publish(self, name: str, state: NodeState, *, better: bool = True) -> None:
        """Publishes a state that has changed. `better`: the node may have more room."""
        if state.kubelet is None:
            return
        self._changes.note(name)
        self._reshaped.add(name)
        self._engine.put(name, state.kubelet)
        possible = state.possible(self._clock(), is_alone=self._is_alone)
        if possible is not None and (name in self.possible or not possible.is_sure):
            self.possible.put(name, possible)
        # After the engine has the state: the callback reads the new row.
        self._published(name)
        if better:
            self.note_improved(name)
        log.log(V2, "Node changed", extra=kv(node=name, pods=state.history.count))

    def drop_report(self, name: str, state: NodeState) -> None:
        """Takes the report of a node away. Its pods stay."""
        state.drop_report()
        self.possible.put(name, None)
        self._changes.forget(name)
        self._numbers.pop(name, None)
        self._engine.drop(name)
        self._improved.discard(name)
        self._reshaped.add(name)
        self.forget_if_empty(name)

    def note_past(self, name: str, state: NodeState) -> None:
        """Notes a node that may remember ended pods, which `ticking` lets it forget."""
        if state.remembers:
            self._with_past.add(name)

    def forget_if_empty(self, name: str) -> None:
        """Forgets a node that neither a report nor a pod names."""
        state = self._states.get(name)
        if state is not None and state.is_empty:
            del self._states[name]

    def ticking(self) -> Iterator[None]:
        """Lets time change what it alone may change, in steps of a node."""
        now = self._clock()
        self._engine.cache.forget_gone()
        for name in list(self._with_past):
            state = self._states.get(name)
            if state is None:
                self._with_past.discard(name)
                continue
            # No `better`: what is forgotten only makes the state more certain, not emptier.
            if state.forget_past(now):
                self.publish(name, state, better=False)
            if not state.remembers:
                self._with_past.discard(name)
                self.forget_if_empty(name)
            yield
        ticked_at, self._ticked_at = self._ticked_at, now
        for name, before in self.possible.items():
            # The node may have gone since the last step.
            state = self._states.get(name)
            if state is not None and may_change_between(state.history, ticked_at, now):
                possible = state.possible(now)
                if possible is not None and possible.doubted != before.doubted:
                    self.publish(name, state)
            # Also a node that time does not change costs a look at all its pods.
            yield

    @property
    def _is_alone(self) -> bool:
        """Returns whether nobody has bound a pod past this service lately. Such pods come unforeseen."""
        return self._clock() - self._others_bound_at >= _ALONE_S


Value = TypeVar("Value")
Key = TypeVar("Key", bound=tuple[Any, ...])


class CacheUntilChange(Generic[Value, Key]):
    """Values of nodes that have not changed since; bounded in bytes. A key begins with the node and ends with UIDs."""

    def __init__(self, node_states: NodeStates, size: Callable[[Key], int] = lambda _: 512) -> None:
        self._node_states = node_states
        self._values: Bounded[Key, tuple[int, Value]]
        self._values = Bounded(_MOST_BYTES, lambda key, _: size(key) + 100 * len(key[-1]))

    def get(self, key: Key) -> Value | None:
        """Returns the value of a key, None if it is not kept, or its node has changed."""
        value = self._values.get(key)
        return value[1] if value is not None and value[0] == self._node_states.changed_at(key[0]) else None

    def put(self, key: Key, value: Value) -> None:
        """Keeps a value until its node changes."""
        self._values.put(key, (self._node_states.changed_at(key[0]), value))
