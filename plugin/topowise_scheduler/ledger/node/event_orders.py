"""The states in which a node may be by the order of the known events, each state once.

Each admission and each end has a window of time (uncertainty.py). Of two events whose windows overlap either may have
come first. The release of the memory of init containers is an event that the kubelet reports to no API: it comes at any
time after the admission, and before now if the pod runs. The states are the folds over all orders that agree with the
windows. An order in which the kubelet would have refused a pod that it has acknowledged contradicts the evidence, and
is left out.

Invariant: if the windows are right and no event is missing, the kubelet is in one of the states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import Final, NamedTuple

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import finished
from topowise_scheduler.ledger.node.fold import Operation, gives_back, lists, operations_of
from topowise_scheduler.ledger.node.history import Entry, History
from topowise_scheduler.ledger.node.pod_parts import position_of
from topowise_scheduler.ledger.node.uncertainty import (
    Window,
    admission_window,
    end_window,
    has_choice,
    is_settled,
    unreported,
)

_MOST_STATES: Final = 16
_MOST_ADMISSIONS: Final = 64


class _Event(NamedTuple):
    """`is_sure`: the kubelet did not refuse the pod, or has released the memory. `before` is a mask of the events that
    surely came earlier, and `alike` a mask of the earlier events that may change places with this event, so that they
    are tried in turn. `released` are the init containers whose memory becomes free."""

    operation: Operation
    window: Window
    is_sure: bool
    released: Sequence[str] = ()
    before: int = 0
    alike: int = 0


def possible_states(base: Kubelet, history: History, now: float, named: Collection[str] = ()) -> list[Kubelet] | None:
    """Returns the states of the bound pods for all orders of the events, None if the orders are too many or the windows
    do not tell the whole course. `base` is the node as it was reported; `now` is in seconds, monotonic.

    Pods of one shape change places, but for pods that are `named`: which pod has what does not matter to newcomers.
    """
    if not _is_told_by_events(base, history) or (base.memory is not None and base.memory.has_unlisted):
        return None
    events = _events(base, history, now)
    return None if events is None else _folds(base, _with_alike(events, named))


def distinct(states: Iterable[Kubelet], without: Collection[str], seen: Sequence[Kubelet] = ()) -> list[Kubelet]:
    """Returns the states that differ from each other and from `seen` if they are `without` these pods."""
    left: list[Kubelet] = []
    bare = [_without(state, without) for state in seen]
    for state in states:
        reduced = _without(state, without)
        if not any(_is_same(reduced, before) for before in bare):
            bare.append(reduced)
            left.append(state)
    return left


def moved(entries: Sequence[Entry], node: Kubelet, alternatives: Sequence[Kubelet]) -> list[Entry]:
    """Returns the pods that may lie on other NUMA nodes than on `node`.

    An alternative state has the pod there, or a pod of the same shape with which the pod may have changed places.
    """
    positions: dict[bytes, set[int | None]] = {}
    for entry in entries:
        positions.setdefault(entry.record.admission_key, set()).update(
            _position(entry, state) for state in (node, *alternatives)
        )
    return [entry for entry in entries if len(positions[entry.record.admission_key]) > 1]


def _position(entry: Entry, node: Kubelet) -> int | None:
    return position_of(node, node.placements(entry.uid)) if entry.uid in node.active else None


def _is_told_by_events(base: Kubelet, history: History) -> bool:
    """Returns whether binds and ends alone tell what the kubelet did, to pods that hold anything."""
    report = history.report
    if report is None or report.precision != "exact":
        return False
    admitted = [*history.log, *unreported(history)]
    for entry in admitted:
        seen = entry.seen
        # The kubelet admitted such a pod in parts or at an unknown time, or the pod may have ended at any time.
        if seen.was_there or seen.resized is not None or seen.listed is not None or lists(report, entry):
            return False
        if has_choice(entry, base):
            return False
    return True


def _events(base: Kubelet, history: History, now: float) -> list[_Event] | None:
    """Returns the events since the report in the order in which the service heard of them."""
    assert history.report is not None
    ended = {end.entry.uid: end for end in history.ended}
    events: list[_Event] = []
    for operation in (operations := operations_of(history, history.report, expected=False)):
        entry, end = operation.entry, ended.get(operation.uid)
        if entry is not None:
            events.append(_Event(operation, admission_window(entry, end), is_settled(entry, now)))
        elif end is not None:
            events.append(_Event(operation, end_window(end), is_sure=False))
    # A UID that came or ended twice has no single window.
    # None instead of a guess: the caller then takes all placements as possible.
    if len({operation.key[:2] for operation in operations}) < len(operations) or len(events) < len(operations):
        return None
    events += _releases(base, history, events)
    return [event._replace(before=_before(event, events)) for event in events]


def _before(event: _Event, events: Sequence[_Event]) -> int:
    """Returns the mask of the events that surely came before an event."""
    before, operation = 0, event.operation
    for at, earlier in enumerate(events):
        is_own_admission = operation.entry is None and earlier.operation.entry is not None
        if (is_own_admission and earlier.operation.uid == operation.uid) or earlier.window.is_before(event.window):
            before |= 1 << at
    return before


def _releases(base: Kubelet, history: History, events: Iterable[_Event]) -> list[_Event]:
    """Returns the releases of the memory of init containers, of pods in the base and of pods that came later."""
    if base.memory is None:
        return []
    releases = []
    admissions = {event.operation.uid: event for event in events if event.operation.entry is not None}
    for entry in (*history.settled.values(), *history.log, *[end.entry for end in history.ended]):
        admission, allocated = admissions.get(entry.uid), base.memory.allocations.get(entry.uid, {})
        if admission is None and not allocated:
            continue
        view = entry.record.seen(base)
        memory = {container.name: container.memory for container in view.containers}
        names = [name for name in finished(view, None) if any((memory[name] or {}).values())]
        if admission is None:
            names = [name for name in names if name in allocated]
        if names:
            first = -inf if admission is None else admission.window.first
            operation = Operation(("release", entry.uid), entry.uid)
            releases.append(_Event(operation, Window(first, inf), entry.record.status.runs, names))
    return releases


def _with_alike(events: Sequence[_Event], named: Collection[str]) -> list[_Event]:
    ending = {event.operation.uid for event in events if event.operation.entry is None}
    kinds: dict[tuple[object, ...], int] = {}
    marked = []
    for at, event in enumerate(events):
        entry = event.operation.entry
        if entry is None or entry.uid in ending or entry.uid in named:
            marked.append(event)
            continue
        # Pods may change places only if the same events surely come before and after them.
        later = sum([1 << number for number, other in enumerate(events) if other.before >> at & 1])
        kind = (entry.record.admission_key, gives_back(entry), event.is_sure, event.before, later)
        marked.append(event._replace(alike=kinds.get(kind, 0)))
        kinds[kind] = kinds.get(kind, 0) | 1 << at
    return marked


def _folds(base: Kubelet, events: Sequence[_Event]) -> list[Kubelet] | None:
    """Returns the distinct states after all events, in any order; None if there are too many."""
    # By mask of the events that have come.
    states: dict[int, list[Kubelet]] = {0: [base]}
    admissions = 0
    for _ in events:
        following: dict[int, list[Kubelet]] = {}
        for come, before in states.items():
            for at, event in enumerate(events):
                # Visits each set of events once, so the cost grows with 2^n and not with n!.
                if come >> at & 1 or (event.before | event.alike) & ~come:
                    continue
                after = [state for kubelet in before for state in _after(kubelet, event)]
                admissions += len(before) * (event.operation.entry is not None)
                known = following.setdefault(come | 1 << at, [])
                known += distinct(after, (), known)
                if len(known) > _MOST_STATES or admissions > _MOST_ADMISSIONS:
                    return None
        states = following
    return next(iter(states.values()), None) or None


def _after(kubelet: Kubelet, event: _Event) -> list[Kubelet]:
    """Returns the states after an event, none if the event contradicts the evidence."""
    operation = event.operation
    # The end of a pod that was refused in this order.
    if operation.entry is None and operation.uid not in kubelet.active:
        return [kubelet]
    if operation.entry is None and not event.released:
        return [kubelet.without((operation.uid,))]
    copy = kubelet.fork()
    if operation.entry is None:
        assert copy.memory is not None
        copy.memory.remove(operation.uid, event.released)
        return [copy] if event.is_sure else [kubelet, copy]
    # A pod that the kubelet has not acknowledged may have been refused, which leaves traces.
    is_admitted = copy.admit_view(operation.entry.record.view(copy)).admitted
    return [copy] if is_admitted or not event.is_sure else []


def _without(state: Kubelet, uids: Collection[str]) -> Kubelet:
    there = [uid for uid in uids if uid in state.active]
    if not there:
        return state
    return state.without(there)


_PARTS: Final[Sequence[Callable[[Kubelet], object]]] = (
    lambda node: node.active.keys(),
    lambda node: node.devices.allocations,
    lambda node: node.cpu and (node.cpu.allocations, node.cpu.default, node.cpu.bubbles),
    lambda node: node.memory and (node.memory.allocations, node.memory.bubbles),
    lambda node: node.memory and (node.memory.tables.assignments, node.memory.tables.cells, node.memory.tables.free),
)


def _is_same(first: Kubelet, second: Kubelet) -> bool:
    return all(part(first) == part(second) for part in _PARTS)
